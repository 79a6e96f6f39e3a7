package router

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// plant puts a file into public/, as a program of root's that knows nothing of our mark.
func (o *office) plant(name, text string) {
	o.t.Helper()
	o.plantOf(-1, name, text)
}

// plantOf is plant by a user: the file is the user's before it has its name, as a router may run.
func (o *office) plantOf(uid int, name, text string) {
	o.t.Helper()
	file := filepath.Join(o.dir, postoffice.Public, "t."+name)
	err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chown(file, uid, -1), os.Chmod(file, 0o700),
		os.Rename(file, filepath.Join(o.dir, postoffice.Public, name)))
	assert.Must(o.t, err)
}

// Sec8: a message cannot be copied, for a full disk or a failing one: one line of the log
// names the file and the cause, other messages go on, and it is routed once when the
// trouble is over.
func TestSec8PickupThatFailsIsLoggedOnceAndTriedAgain(t *testing.T) {
	t.Parallel()
	const copies = postoffice.Router + "/.pickup.*"
	for _, tt := range []struct {
		name  string
		at    faultfs.Op
		file  string
		err   error
		stays string // "": the copy is there alone, and recovery gives it its name
	}{
		{"full disk", faultfs.Write, copies, unix.ENOSPC, "public/101"},
		{"failing sync", faultfs.Sync, copies, unix.EIO, "public/101"},
		{"failing removal", faultfs.Remove, postoffice.Public + "/101", unix.EIO, "public/101"},
		{"failing rename", faultfs.Rename, copies, unix.EIO, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// Recovery may take a copy that has no lock yet for one that was left; the next try is
			// later then. That is not to happen at each try.
			o := newOffice(t, nil, func(c *Config) { c.Poll = 400 * time.Millisecond })
			o.plant("101", plain("first@example.net"))
			again := make(chan struct{}, 1)
			rule := o.disk.On(tt.at, tt.file, faultfs.Always, func(string) error {
				select {
				case again <- struct{}{}:
				default:
				}
				return tt.err
			})
			o.start(t, o.r)
			o.log.Await(t, "msg=not-picked-up", "name=public/101", tt.err.Error())
			o.submit(plain("other@example.net"))
			o.log.Await(t, "msg=routed")
			if tt.stays != "" {
				if _, err := os.Stat(filepath.Join(o.dir, tt.stays)); err != nil {
					t.Error(err)
				}
			}
			// It is tried again in vain; a rename is recovery's.
			for range 3 {
				select {
				case <-again:
				case <-time.After(30 * time.Second):
					t.Fatal("it is not tried again")
				}
			}
			o.logged(1, "msg=not-picked-up")
			rule.End()
			o.log.AwaitCount(t, 2, "msg=routed")
			o.expect("in the end", map[string]int{"queue": 2, "transport": 2})
			for _, m := range handedOver(t, o.po) {
				if strings.Contains(string(m.message), "first@") != strings.Contains(string(m.message), "submitter 65534 ") {
					t.Errorf("the message begins with %q", m.message[:200])
				}
			}
		})
	}
}

// Sec8: large files of one user, whose copies take their time, keep no other user waiting.
func TestSec8LargeFilesOfAUserKeepNobodyWaiting(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can submit as several users")
	}
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) { c.Poll = 100 * time.Millisecond })
	const one, other = 4711, 4712
	// Each copy of the one user's waits in its sync until the other's message is routed.
	end := make(chan struct{})
	begun := make(chan struct{}, 100)
	o.disk.On(faultfs.Sync, postoffice.Router+"/.pickup.*", faultfs.Always, func(name string) error {
		text, err := os.ReadFile(filepath.Join(o.dir, name))
		if err == nil && strings.Contains(string(text), "submitter 4711 ") {
			begun <- struct{}{}
			<-end
		}
		return nil
	})
	for n := range 20 {
		o.plantOf(one, "20"+string(rune('a'+n)), plain("large@example.net"))
	}
	o.start(t, o.r)
	goOn := sync.OnceFunc(func() { close(end) })
	t.Cleanup(goOn) // before the router is awaited
	for range perUser {
		select {
		case <-begun:
		case <-time.After(30 * time.Second):
			t.Fatal("the copies do not begin")
		}
	}
	o.plantOf(other, "101", plain("small@example.net"))
	o.log.Await(t, "msg=picked-up", "uid=4712")
	o.log.Await(t, "msg=routed")
	goOn()
	o.log.AwaitCount(t, 20, "msg=picked-up", "uid=4711")
}

// Many files that cannot be copied are looked through together, not each time one of them
// fails.
func TestPausesOfManySubmissionsEndTogether(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	hints := &countedHints{}
	o := newOffice(t, nil, func(c *Config) { c.Now = func() time.Time { return now } })
	c := newCollector(o.r, nil)
	c.hints = hints
	const files = 1000
	for n := range files {
		name := "public/" + strconv.Itoa(n)
		c.put(4711, name)
		if got, uid, ok := c.next(); !ok || got != name || uid != 4711 {
			t.Fatalf("next: got %s, %d, %v", got, uid, ok)
		}
		c.done(name, 4711, postoffice.ErrUnsettled)
		now = now.Add(time.Millisecond)
	}
	if hints.interrupts > 2 {
		t.Errorf("%d files interrupted the wait %d times", files, hints.interrupts)
	}
	ends := 0
	for seen := 0; seen < files; ends++ {
		if c.wake.IsZero() || ends > 10 {
			t.Fatalf("%d of %d files are tried again after %d pauses", seen, files, ends)
		}
		now = c.wake
		seen += len(c.over())
	}
	if ends > 3 {
		t.Errorf("%d files are looked through %d times", files, ends)
	}
}

// countedHints counts interrupts.
type countedHints struct{ interrupts int }

func (h *countedHints) Await(time.Time) []watch.Hint { return nil }
func (h *countedHints) Interrupt()                   { h.interrupts++ }
func (h *countedHints) Close()                       {}

// Sec2: a file of a user's that an earlier version let be made in router/, and that is not
// whole, goes to quarantine/: no process can complete it, and no file of a user's stays there.
func TestSec2IncompleteFileInRouterIsPutAside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make other users' files")
	}
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) { c.Poll = 100 * time.Millisecond })
	file := filepath.Join(o.dir, postoffice.Router, "4711")
	err := errors.Join(os.WriteFile(file, nil, 0o666), os.Chown(file, 4711, -1), os.Chtimes(file, time.Now(), time.Now().Add(-time.Minute)))
	assert.Must(t, err)
	o.start(t, o.r)
	o.log.Await(t, "msg=disbelieved", "uid=4711", "quarantine=quarantine/router.")
	o.expect("in the end", map[string]int{"router": 0})
	list, err := os.ReadDir(filepath.Join(o.dir, postoffice.Quarantine))
	if err != nil || len(list) != 1 {
		t.Errorf("quarantine/ has %v, %v, want one file", list, err)
	}
}
