package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// A message whose file has a time that is still to come gets old all the same, whatever
// starts of the scheduler come between: its age is counted from the change of its inode.
func TestDel9FutureTimeExpires(t *testing.T) {
	t.Parallel()
	for name, touch := range map[string]bool{"before the scheduler sees it": false, "while it waits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &leaps{}
			r := newRig(t, scriptConf("TEST_SLOTS=1", "expiry=4h interval=10m retries=1 idlemax=1s"), 0, nil)
			r.config.clocks = clock.clocks()
			file := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer999@h"})
			future := time.Now().Add(10 * 365 * 24 * time.Hour)
			set := func() {
				if err := os.Chtimes(filepath.Join(r.dir, "queue", file), future, future); err != nil {
					t.Fatal(err)
				}
			}
			if !touch {
				set()
			}
			r.start()
			r.wait(1, "msg=deferred")
			if touch {
				set()
			}
			clock.by.Add(int64(3 * time.Hour))
			if touch {
				r.Queue("a@b", storetest.Rcpt{Line: "smtp h2 ok@h"}) // it wakes the scheduler
				r.wait(1, "msg=touched")
			} else {
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
				r.start()
			}
			r.wait(2, "msg=deferred")
			if n, _ := r.events.count("msg=expired"); n != 0 {
				t.Fatal("it has expired already")
			}
			clock.by.Add(int64(2 * time.Hour))
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h3 ok@h"})
			r.wait(1, "msg=expired", "rcpt=defer999@h")
			r.wait(1, "msg=report", "kind=failed")
		})
	}
}

// Each of as many clauses as a file may have sets what it says, and more are refused.
func TestDel9ManyClauses(t *testing.T) {
	const most = 1 << 16
	var text strings.Builder
	for i := range most {
		fmt.Fprintf(&text, "smtp/h%d\n\tinterval=%ds command=\"x\"\n", i, i+1)
	}
	c, err := conf.Parse("scheduler.conf", []byte(text.String()), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 255, 256, most / 2, most - 257, most - 1} {
		if s := c.Match("smtp", fmt.Sprintf("h%d", i)); s == nil || s.Interval != time.Duration(i+1)*time.Second {
			t.Errorf("clause %d: got %+v", i, s)
		}
	}
	text.WriteString("smtp/*\n\tcommand=\"x\"\n")
	if _, err := conf.Parse("scheduler.conf", []byte(text.String()), noEnv); err == nil {
		t.Error("a file with one clause more is read")
	}
}
