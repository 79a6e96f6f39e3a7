package router

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/rules"
)

// byDefault is RESUBMIT and RESUBMITEXPIRY as they are without a setting.
var byDefault = config.Resubmission{First: 5 * time.Minute, Longest: time.Hour, Expiry: 3 * 24 * time.Hour}

// deferring is an office whose list cannot be read until mend, and its clock.
type deferring struct {
	*office
	list string
	mu   sync.Mutex
	time time.Time
}

func newDeferring(t *testing.T, s config.Resubmission, change ...func(*Config)) *deferring {
	t.Helper()
	d := &deferring{list: filepath.Join(t.TempDir(), "members"), time: time.Now()}
	change = append(change, func(c *Config) { c.Now, c.Resubmit = d.now, s })
	d.office = newOffice(t, map[string]string{"aliases": "team: :include:" + d.list + "\n"}, change...)
	return d
}

func (d *deferring) now() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.time
}

func (d *deferring) later(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.time = d.time.Add(by)
}

func (d *deferring) mend() {
	d.t.Helper()
	assert.Must(d.t, os.WriteFile(d.list, []byte("bond\nq@example.net\n"), 0o644))
}

// age makes the deferred messages older: they arrived by so much earlier.
func (d *deferring) age(by time.Duration) {
	d.t.Helper()
	for _, name := range d.names("deferred") {
		if strings.HasPrefix(name, "reason.") {
			continue
		}
		at := time.Now().Add(-by)
		assert.Must(d.t, os.Chtimes(filepath.Join(d.dir, "deferred", name), at, at))
	}
}

// look is what a router does at each poll, and waits for last attempts.
func (d *deferring) look() {
	d.t.Helper()
	assert.Must(d.t, d.r.Recover())
	d.r.resubmits.done.Wait()
}

// Dur5: a message whose lookup failed is routed again by itself when its wait is over, and
// no sooner; what it waits doubles with its age, up to the longest.
func TestDur5DeferredMessageIsRoutedAgainByItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ age, wait time.Duration }{
		"just arrived":   {0, 5 * time.Minute},
		"twenty minutes": {20 * time.Minute, 20 * time.Minute},
		"a day":          {24 * time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeferring(t, byDefault)
			a := d.submit(plain("team@example.org"))
			d.route()
			d.logged(1, "msg=deferred", "id="+a.ID.String(), " next=")
			if c.age > 0 {
				d.age(c.age)
			}
			d.later(c.wait - 10*time.Second)
			d.look()
			d.expect("before its time", map[string]int{"deferred": 1})
			d.later(20 * time.Second)
			d.look()
			d.expect("at its time", map[string]int{"router": 1})
			d.logged(1, "msg=resubmitted", "why=include")
			d.route()
			d.expect("tried in vain", map[string]int{"deferred": 1})
			d.mend()
			d.later(2 * time.Hour)
			d.look()
			if got := d.route(); len(got) != 1 || len(got[0].recipients()) != 2 {
				t.Errorf("mended: got %+v", got)
			}
			d.expect("mended", map[string]int{"queue": 1, "transport": 1})
		})
	}
}

// Dur5: one that is too old gets a last attempt. If that fails, too, each recipient fails
// with 5.4.7, as the sender wants to hear of it; else the message is routed.
func TestDur5ExpiredMessageIsGivenUp(t *testing.T) {
	t.Parallel()
	text := "from <q@example.net>\nret HDRS\nenvid e1\ntodsn NOTIFY=NEVER\nto <team@example.org>\nto <bond@example.org>\nenv-end\nSubject: x\n\nb\n"
	for name, mended := range map[string]bool{"in vain": false, "mended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeferring(t, byDefault)
			d.submit(text)
			d.route()
			d.age(byDefault.Expiry)
			if mended {
				d.mend()
			}
			d.later(byDefault.Longest + time.Minute)
			d.look()
			d.expect("after the last attempt", map[string]int{"queue": 1, "transport": 1})
			got := handedOver(t, d.po)
			if len(got) != 1 {
				t.Fatalf("got %+v, want one message", got)
			}
			failed := 0
			for _, r := range got[0].spec.Groups[0].Recipients {
				if r.Channel == rules.Error && strings.HasPrefix(r.Host, "5.4.7:") {
					failed++
				}
			}
			assert.Equal(t, failed, map[bool]int{false: 2}[mended], "failed recipients in %+v", got[0].spec.Groups)
			if !mended {
				d.logged(1, "msg=given-up", "why=include", "rcpts=2")
				assert.Equal(t, got[0].spec.Groups[0].Recipients[0].Notary, "NOTIFY=NEVER")
			}
		})
	}
}

// Dur5: what a router may not try by itself stays: with RESUBMIT=off all, else what has
// crashed routers, and a file that has another name, as after a copy by links.
func TestDur5SomeMessagesWaitForAnOperator(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s    config.Resubmission
		make func(path string) error
	}{
		"off":           {config.Resubmission{}, func(string) error { return nil }},
		"ended routers": {byDefault, func(path string) error { return os.Rename(path, strings.TrimSuffix(path, "include")+"crash") }},
		"another name": {byDefault, func(path string) error {
			return os.Link(path, filepath.Join(filepath.Dir(path), "..", "queue", "1-2"))
		}},
		"off and expired": {config.Resubmission{Expiry: time.Second}, func(string) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeferring(t, c.s)
			a := d.submit(plain("team@example.org"))
			d.route()
			assert.Must(t, c.make(filepath.Join(d.dir, "deferred", fmt.Sprintf("%d.include", a.ID.Ino))))
			d.later(100 * time.Hour)
			d.look()
			if got := d.names("router"); len(got) != 0 {
				t.Errorf("got %q in router/", got)
			}
			if list, err := d.po.Aside.ListDeferred(); len(list) != 1 || err != nil {
				t.Errorf("got %q, %v, want it deferred", list, err)
			}
		})
	}
}

// Dur5: many routers beside each other give each message back once, and up once.
func TestDur5ManyRoutersTryEachMessageOnce(t *testing.T) {
	t.Parallel()
	for name, age := range map[string]time.Duration{"again": time.Minute, "last": byDefault.Expiry} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDeferring(t, byDefault)
			const messages = 40
			for range messages {
				d.submit(plain("team@example.org"))
			}
			d.route()
			d.age(age)
			routers := []*Router{d.r}
			for range 4 {
				routers = append(routers, d.router(func(c *Config) { c.Now, c.Resubmit = d.now, byDefault }))
			}
			d.mend()
			d.later(2 * time.Hour)
			var wait sync.WaitGroup
			for _, r := range routers {
				wait.Go(func() {
					assert.NoError(t, r.Recover())
					r.resubmits.done.Wait()
				})
			}
			wait.Wait()
			d.route()
			d.expect("all of them", map[string]int{"queue": messages, "transport": messages})
		})
	}
}
