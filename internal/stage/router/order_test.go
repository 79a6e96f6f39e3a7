package router

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// line is a router with one worker, turn by turn, on a clock of its own.
type line struct {
	*office
	d    *dispatcher
	now  time.Time
	poll time.Time
	n    int
}

// newLine makes one with router2/ and router3/.
func newLine(t *testing.T, change ...func(*Config)) *line {
	t.Helper()
	l := &line{now: time.Now()}
	l.office = newOffice(t, nil, append(change, func(c *Config) { c.Now = func() time.Time { return l.now } })...)
	assert.Must(t, l.po.Router.EnsureDirs([]string{"router2", "router3"}))
	l.d = newDispatcher(l.r, nil)
	return l
}

// into submits a message that is so old, as a name for the router, without a hint.
func (l *line) into(dir string, age time.Duration) string {
	l.t.Helper()
	l.n++
	a := l.submitInto(dir, plain(fmt.Sprintf("a%d@example.net", l.n)))
	at := l.now.Add(-age)
	assert.Must(l.t, os.Chtimes(filepath.Join(l.dir, a.Name), at, at))
	return postoffice.RouterName(dir, filepath.Base(a.Name))
}

// comes submits a message and gives the hint of it.
func (l *line) comes(dir string) string {
	l.t.Helper()
	name := l.into(dir, 0)
	l.d.hint(watch.Hint{Dir: filepath.Join(l.dir, dir), Name: filepath.Base(name)})
	return name
}

// turn does what is due, a second later, and routes one message; "": none.
func (l *line) turn() string {
	l.t.Helper()
	l.now = l.now.Add(time.Second)
	if l.now.Sub(l.poll) >= defaultPoll {
		l.poll = l.now
		l.d.hint(watch.Hint{})
	}
	if !l.d.wake.at.IsZero() && !l.now.Before(l.d.wake.at) {
		l.d.wake = alarm{}
		l.d.scan()
	}
	o, ok := l.d.next()
	if !ok {
		return ""
	}
	l.d.given(o)
	err := l.r.routeOne(l.t.Context(), o.name, o.tried)
	l.d.running--
	l.d.alone = false
	l.d.routed(jobResult{o.name, err})
	return o.name
}

// M3: 100 in router2, 1 into router/ → routed next.
func TestMessageInRouterGoesBeforeAHundredElsewhere(t *testing.T) {
	t.Parallel()
	for name, unsorted := range map[string]bool{"by age": false, "-s": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, func(c *Config) { c.Unsorted = unsorted })
			waiting := map[string]bool{}
			for range 50 {
				waiting[l.into("router2", time.Minute)] = true
				waiting[l.into("router3", time.Minute)] = true
			}
			for range 10 {
				if got := l.turn(); !waiting[got] || postoffice.RouterPath(got)[:8] != "router2/" {
					t.Fatalf("got %q, want one of router2/", got)
				}
			}
			// By a hint, and found at a look.
			if next := l.comes(postoffice.Router); l.turn() != next {
				t.Error("the message in router/ was not routed next")
			}
			next := l.into(postoffice.Router, 0)
			l.poll = time.Time{}
			if l.turn() != next {
				t.Error("the message in router/ was not routed next after a look")
			}
			for n := range 90 {
				if got := l.turn(); !waiting[got] || n < 40 && got[:8] != "router2/" || n >= 40 && got[:8] != "router3/" {
					t.Fatalf("turn %d: got %q", n, got)
				}
			}
			assert.Equal(t, l.turn(), "")
		})
	}
}

// Mail comes as fast as it is routed, for ever, and forty messages wait always. None
// waits for ever, wherever it is and whatever happened to it.
func TestConstantLoadStarvesNothing(t *testing.T) {
	t.Parallel()
	const backlog = 40
	for name, c := range map[string]struct {
		change func(*Config)
		// plant makes the message that is waited for, before any other or among them.
		plant func(l *line) string
		limit int // turns
	}{
		"the oldest in router/": {nil, func(l *line) string { return l.into(postoffice.Router, time.Hour) }, 1},
		"not the oldest, in router/": {nil, func(l *line) string { return l.into(postoffice.Router, 30*time.Second) },
			backlog + backlog/2},
		"old, in router2/": {nil, func(l *line) string { return l.into("router2", 2*time.Hour) }, turns},
		"old, in router3/, older ones in router2/": {nil, func(l *line) string {
			for range 5 {
				l.into("router2", 3*time.Hour)
			}
			return l.into("router3", 2*time.Hour)
		}, 6 * turns},
		"young, in router2/, and grows old":         {func(c *Config) { c.Aging = 50 * time.Second }, func(l *line) string { return l.into("router2", 0) }, 50 + turns + 1},
		"a time from before the clock was set back": {nil, func(l *line) string { return l.into("router2", -48*time.Hour) }, turns},
		"-s, in router/":                            {func(c *Config) { c.Unsorted = true }, func(l *line) string { return l.into(postoffice.Router, 0) }, 2 * backlog},
		"-s, in router2/": {func(c *Config) { c.Unsorted, c.Aging = true, 50*time.Second }, func(l *line) string { return l.into("router2", 0) },
			50 + 2*turns},
		"failed once, in router/": {nil, func(l *line) string {
			name := l.into(postoffice.Router, 0)
			l.disk.Fail(faultfs.Open, "router/"+name+"-*", unix.EACCES, 1)
			l.d.scan()
			for l.turn() != name {
			}
			return name
		}, 60 + 2*15},
		"has ended a router": {nil, func(l *line) string {
			name := l.into(postoffice.Router, 0)
			claim, err := l.po.Router.Claim(l.r.owner, name)
			if err == nil {
				_, _, err = claim.Panicked("panic: once", l.now, 5)
			}
			assert.Must(l.t, err)
			return name
		}, 60 + 2*15},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, func(cfg *Config) {
				if c.change != nil {
					c.change(cfg)
				}
			})
			want := c.plant(l)
			for range backlog {
				l.into(postoffice.Router, time.Minute)
			}
			l.poll = time.Time{}
			for n := 1; ; n++ {
				got := l.turn()
				if got == want {
					t.Logf("after %d turns", n)
					return
				}
				if got == "" || n == c.limit {
					t.Fatalf("turn %d: got %q; it is not routed after %d turns", n, got, c.limit)
				}
				l.comes(postoffice.Router)
			}
		})
	}
}

// That is rule 2: without it what stands in a lower directory waits for ever.
func TestLowerDirectoryWaitsWhileItIsYoung(t *testing.T) {
	t.Parallel()
	l := newLine(t, func(c *Config) { c.Aging = 24 * time.Hour })
	waits := l.into("router2", 2*time.Hour)
	for range 10 {
		l.into(postoffice.Router, time.Minute)
	}
	for n := range 100 {
		if got := l.turn(); got == waits || got == "" {
			t.Fatalf("turn %d: got %q", n, got)
		}
		l.comes(postoffice.Router)
	}
	// And not more than each fourth turn, however many are old.
	for range 100 {
		l.into("router3", 48*time.Hour)
	}
	l.d.classes.of("router3").listed = time.Time{}
	l.poll = time.Time{}
	lower := 0
	for range 100 {
		if got := l.turn(); got == "" {
			t.Fatal("nothing to do")
		} else if len(got) > 8 && got[:8] == "router3/" {
			lower++
		}
		l.comes(postoffice.Router)
	}
	assert.Equal(t, lower, 100/turns, "router3/ of 100 turns")
}

// A directory that is made while the router runs is found at a look, and so is mail in
// one that is no longer in ROUTERDIRS.
func TestDirectoryThatAppearsIsServed(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) { c.Poll = 50 * time.Millisecond })
	o.start(t, o.r)
	o.log.Await(t, "msg=started")
	assert.Must(t, o.po.Router.EnsureDirs([]string{"router4"}))
	o.log.Await(t, "msg=router-directory", "name=router4")
	a := o.submitInto("router4", plain("a@example.net"))
	if filepath.Dir(a.Name) != "router4" {
		t.Fatalf("got %s", a.Name)
	}
	o.log.Await(t, "msg=routed", "id="+a.ID.String())
}
