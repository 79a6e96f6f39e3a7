package engine

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/taproto"
)

// unruly is what the first agent of a test does with its first delivery before it turns
// to it, if it ever does.
func (s *script) unruly(how string, j taproto.Job) {
	out := s.out.(*os.File)
	switch strings.ReplaceAll(how, "_", " ") {
	case "endless line":
		junk := strings.Repeat("x", 64<<10)
		for {
			if _, err := io.WriteString(out, junk); err != nil {
				os.Exit(0)
			}
		}
	case "flood":
		junk := strings.Repeat("# no end of words\n", 4<<10)
		for n := 0; n < 100<<20; n += len(junk) {
			if _, err := io.WriteString(out, junk); err != nil {
				os.Exit(0)
			}
		}
	case "hungry flood":
		junk := strings.Repeat("#hungry\n", 8<<10)
		for n := 0; n < 100<<20; n += len(junk) {
			if _, err := io.WriteString(out, junk); err != nil {
				os.Exit(0)
			}
		}
	case "closed output":
		_ = out.Close()
		hang()
	case "closed output after the tag":
		s.deliver(j)
		_ = out.Close()
		hang()
	case "child":
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stdout = []string{"TEST_AGENT=child", raced}, out
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		s.note("child %d", cmd.Process.Pid)
		s.die()
	case "half an answer":
		s.say("12345/67")
		s.die()
	case "stranger":
		// Every queued message's recipients, any client that has them, and none at all.
		names, err := os.ReadDir(".")
		if err != nil {
			panic(err)
		}
		for _, e := range names {
			if n, _, _ := strings.Cut(e.Name(), "-"); e.Name() != filepath.Base(j.Name) {
				for off := range 400 {
					s.say(fmt.Sprintf("%s/%d\t\tok3 taken\n", n, off))
				}
			}
		}
		s.say("0/0\t\tok3\n18446744073709551615/999999999999999999\t\terror gone\n1/-1\t\tok3\n")
	}
}

// S7: an agent of any manners loses nothing and delivers nothing twice; it is ended, and
// another one takes over. Real processes.
func TestUnrulyAgentLosesNothing(t *testing.T) {
	tests := map[string]string{ // what is logged of it
		"endless line":                "msg=agent-killed",
		"flood":                       "msg=agent-killed",
		"hungry flood":                "msg=agent-killed",
		"deaf":                        "msg=agent-deaf",
		"closed output":               "msg=agent-deaf",
		"closed output after the tag": "msg=agent-deaf",
		"child":                       "msg=agent-ended",
		"half an answer":              "msg=agent-ended",
		"stranger":                    "reason=\"it has no such delivery; ignored\"",
	}
	for how, logged := range tests {
		for _, slots := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s, %d slots", how, slots), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, scriptConf(fmt.Sprintf("TEST_SLOTS=%d TEST_UNRULY=%s", slots, strings.ReplaceAll(how, " ", "_")), "maxthr=1"), 0, quick)
				r.config.Look, r.config.deaf, r.config.StopTimeout = 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond
				t.Cleanup(func() { killChildren(r) })
				var want []string
				for i := range 5 {
					want = append(want, fmt.Sprintf("ok.%d@h", i))
					r.Queue("a@b", storetest.Rcpt{Line: "smtp h " + want[i]})
				}
				r.start()
				r.wait(5, "msg=finished")
				r.wait(1, logged)
				if n, _ := r.events.count("msg=agent-said"); n > 2*20 {
					t.Errorf("%d lines of an agent's chatter in the log", n)
				}
				r.config.StopTimeout = 20 * time.Second
				if err := r.stop(); err != nil {
					t.Error(err)
				}
				r.deliveredOnce(want...)
				if n := len(r.Reports()); n != 0 {
					t.Errorf("%d reports", n)
				}
			})
		}
	}
}

// killChildren ends the processes that agents have left.
func killChildren(r *rig) {
	for _, line := range r.notes("child ") {
		if pid, err := strconv.Atoi(strings.TrimPrefix(line, "child ")); err == nil {
			// An error means that it has ended.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// S7: what an agent babbles is not kept in memory.
func TestFloodOfAnAgentTakesNoMemory(t *testing.T) {
	r := newRig(t, scriptConf("TEST_SLOTS=1 TEST_UNRULY=flood", ""), 0, quick)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.start()
	r.wait(1, "msg=finished")
	runtime.ReadMemStats(&after)
	if got := after.HeapSys - before.HeapSys; after.HeapSys > before.HeapSys && got > 64<<20 {
		t.Errorf("the heap grew by %d bytes", got)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// hang ends with the process. Not select{}: the runtime may find that nothing can happen any
// more.
func hang() {
	for range time.Tick(time.Hour) {
	}
}
