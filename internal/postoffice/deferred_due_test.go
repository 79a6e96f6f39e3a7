package postoffice

import (
	"errors"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
)

const dur5Message = "from <q@example.net>\nto <a@example.net>\nenv-end\nSubject: a\n\nbody\n"

func dur5Owner(t *testing.T, p *PostOffice) *Owner {
	t.Helper()
	o := assert.Get(p.Owners.Take("test"))(t)
	return o
}

// Dur5: the times that the schedule goes by are the file's own: ModTime stays that of its
// arrival through all moves, and CTime is that of the last one.
func TestDur5TimesOfAWaitingMessage(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	o := dur5Owner(t, p)
	before := time.Now().Add(-time.Second)
	a := submit(t, p, dur5Message)
	for range 3 {
		c := assert.Get(p.Router.Claim(o, a.Name[len(Router)+1:]))(t)
		assert.Must(t, c.Defer("include"))
		list, err := p.Aside.ListWaiting()
		if err != nil || len(list) != 1 {
			t.Fatalf("got %+v, %v, want one message", list, err)
		}
		w := list[0]
		if w.ID != a.ID || w.Why != "include" || w.Info.CTime.Before(before) || w.Info.CTime.Before(w.Info.ModTime) {
			t.Errorf("got %+v, want %v, put aside after it arrived", w, a.ID)
		}
		before = w.Info.CTime
		a, err = p.Aside.RecallTo(p.Router.Dir(), Deferred, w.Name, w.ID)
		assert.Must(t, err)
	}
}

// Dur5: a message that a router claims out of deferred/ is there once after a kill or a
// loss of power at any operation, and one of two that claim it has it.
func TestDur5EveryCutOfALastClaimKeepsTheMessage(t *testing.T) {
	for _, strict := range []bool{false, true} {
		start := func() (*cutfs.FS, func()) {
			base := cutfs.New()
			p := newOn(t, base, strict)
			a := submit(t, p, dur5Message)
			c := assert.Get(p.Router.Claim(dur5Owner(t, p), a.Name))(t)
			assert.Must(t, c.Defer("include"))
			for _, dir := range Directories() {
				assert.Must(t, base.SyncDir(dir))
			}
			disk := base.Process()
			p = assert.Get(Open(Config{FS: disk, Strict: strict}))(t)
			list := assert.Get(p.Aside.ListWaiting())(t)
			if len(list) != 1 {
				t.Fatalf("got %+v, want one message", list)
			}
			o := assert.Get(p.Owners.takeAny("first", 1001, nil))(t)
			return disk, func() {
				c, err := p.Router.ClaimWaiting(o, list[0])
				if err == nil {
					if _, err := p.Router.ClaimWaiting(o, list[0]); !errors.Is(err, ErrGone) && !disk.Dead() {
						t.Errorf("a second claim: got %v, want ErrGone", err)
					}
					err = c.Release()
				}
				if err != nil && !disk.Dead() {
					t.Fatalf("uncut: %v", err)
				}
			}
		}
		everyCut(t, 4, start, func(what string, _ cutfs.Loss, after *cutfs.FS) {
			p := assert.Get(Open(Config{FS: after, Strict: strict}))(t)
			assert.Get(p.Router.Recover(RouterRecovery{Complete: func([]byte) bool { return false }, Now: time.Now(), Tries: 5}))(t)
			waiting, err := p.Aside.ListWaiting()
			free, ferr := p.Router.List(true, time.Now())
			if err := errors.Join(err, ferr); err != nil || len(waiting)+len(free) != 1 {
				t.Errorf("strict %v, %s: got %v in deferred/, %v in router/, %v, want the message once", strict, what, waiting, free, err)
			}
		})
	}
}
