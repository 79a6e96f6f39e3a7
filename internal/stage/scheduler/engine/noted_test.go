package engine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
)

// M41: an order that is given while its message is read for the first time, or just moved
// by the scheduler itself, is obeyed, and its note does not stay.
func TestOrderAboutAMessageThatIsBeingReadIsObeyed(t *testing.T) {
	tests := map[string]func(t *testing.T, e *engine, dir, name string, release func()){
		"read": func(_ *testing.T, e *engine, _, name string, release func()) {
			e.intake.want(name)
			<-e.box.wake // it was read, and is not known yet
			release()
			e.intake.noted(name)
		},
		"moved": func(t *testing.T, e *engine, dir, name string, release func()) {
			e.intake.want(name)
			turns(t, e, func() bool { return e.messages.len() == 1 })
			release()
			var errs []error
			for _, top := range []string{"transport", "queue"} {
				top = filepath.Join(dir, top)
				errs = append(errs, os.Mkdir(filepath.Join(top, "A"), 0o755), os.Rename(filepath.Join(top, name), filepath.Join(top, "A", name)))
			}
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
			n, _ := postoffice.ParseName(name)
			e.messages.get(n.Ino).SetName("A/" + name)
			e.intake.noted(name)
		},
	}
	for how, tt := range tests {
		t.Run(how, func(t *testing.T) {
			b, dir := diskBox(t)
			name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
			q := operations.Request{PostOffice: b.PO, ID: b.Request(name).ID, Now: time.Now(), Who: "test"}
			if _, err := operations.Hold(q, name, time.Time{}); err != nil {
				t.Fatal(err)
			}
			e := newEngine(Config{Conf: b.spool.Conf, Dir: dir, Log: b.spool.Log}, b.PO)
			e.pool = newPool(e.intake.load)
			defer e.pool.close()
			e.clock.tick()
			note := filepath.Join(dir, "transport", "look."+name)
			if err := os.Remove(note); err != nil {
				t.Fatal(err)
			}
			tt(t, e, dir, name, func() {
				if _, err := operations.Release(q, name); err != nil {
					t.Error(err)
				}
			})
			turns(t, e, func() bool {
				_, err := os.Stat(note)
				n, _ := postoffice.ParseName(name)
				m, waits := e.messages.get(n.Ino), false
				if m != nil {
					m.Vertices(func(*thread.Vertex) { waits = true })
				}
				return waits && errors.Is(err, os.ErrNotExist)
			})
		})
	}
}

// turns lets the engine go on until done.
func turns(t *testing.T, e *engine, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		for _, fn := range e.box.take(nil) {
			fn()
		}
		if done() {
			return
		}
		select {
		case <-e.box.wake:
		case <-deadline.C:
			t.Fatal("the engine did not come so far in 10 s")
		}
	}
}
