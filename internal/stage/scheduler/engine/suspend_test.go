package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/mailq"
)

// suspend adds a suspension, or with change takes some away.
func (r *rig) suspend(s suspension.Suspension) postoffice.OperationID {
	r.T.Helper()
	r.suspensions++
	s.Order = postoffice.NewOperationID(time.Now(), "suspend", r.suspensions)
	s.Since, s.Who = time.Now(), "tester"
	x, err := suspension.New(s)
	assert.Must(r.T, err)
	assert.Must(r.T, suspension.Change(r.PO, time.Now(), func(l *suspension.List) error {
		l.Add(x)
		return nil
	}))
	return s.Order
}

func (r *rig) resume(order postoffice.OperationID) {
	r.T.Helper()
	assert.Must(r.T, suspension.Change(r.PO, time.Now(), func(l *suspension.List) error {
		l.Remove(l.Find(order))
		return nil
	}))
}

// Op5: a host is suspended while its queue is empty; mail that comes waits, over a restart
// too, others' goes on, and all is delivered when the suspension is taken back.
func TestOp5SuspensionHoldsNewMailOverARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, quick)
	r.start()
	order := r.suspend(suspension.Suspension{Host: "*.example.NET"})
	r.wait(1, "msg=suspended", "order="+string(order))
	r.queue("smtp mx.example.net ok.a@h", "smtp other ok.b@h")
	r.wait(1, "msg=delivered", "ok.b@h")
	c, _ := r.dial()
	var info mailq.ThreadInfo
	_, err := c.Ask(mailq.Request{Kind: mailq.JSONThread, Channel: "smtp", Host: "mx.example.net"}, func(line string) error {
		if info.Host == "" {
			return json.Unmarshal([]byte(line), &info)
		}
		return nil
	})
	assert.Must(t, err)
	assert.Equal(t, info.State, "suspended", "state")
	assert.Equal(t, info.Suspended.Order, string(order), "order")
	r.stop()
	r.start()
	r.wait(2, "msg=suspended", "order="+string(order))
	r.queue("smtp h ok.c@h")
	r.wait(1, "msg=delivered", "ok.c@h")
	r.never("msg=delivered", "ok.a@h")
	r.resume(order)
	r.wait(1, "msg=resumed", "order="+string(order), "cause=resumed")
	r.wait(1, "msg=delivered", "ok.a@h")
}

// Op5: a suspension ends by itself at its time.
func TestOp5SuspensionEndsByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, quick)
	order := r.suspend(suspension.Suspension{Channel: "smtp", Until: time.Now().Add(1500 * time.Millisecond)})
	r.queue("smtp h ok.a@h")
	r.start()
	r.wait(1, "msg=suspended", "order="+string(order))
	r.wait(1, "msg=resumed", "order="+string(order), "cause=time")
	r.wait(1, "msg=delivered", "ok.a@h")
}

// Op5: the mail of a sender waits, whether it was queued before the suspension, whose senders
// the scheduler does not have in memory, or comes later; that of others goes on.
func TestOp5SuspendedSendersMailWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, quick)
	r.start()
	all := r.suspend(suspension.Suspension{Channel: "smtp"})
	r.wait(1, "msg=suspended", "order="+string(all))
	for i := range 150 { // more than are read in one go
		r.Queue(fmt.Sprintf("other%d@elsewhere.example", i), storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.other%d@h", i)})
	}
	r.Queue("News@Shop.example", storetest.Rcpt{Line: "smtp h ok.before@h"})
	r.wait(151, "msg=queued")
	one := r.suspend(suspension.Suspension{Sender: "@shop.example"})
	r.wait(1, "msg=suspended", "order="+string(one))
	r.resume(all)
	r.wait(150, "msg=delivered", "ok.other")
	r.Queue("news@shop.example", storetest.Rcpt{Line: "smtp h ok.after@h"})
	r.Queue("shop@elsewhere.example", storetest.Rcpt{Line: "smtp h ok.last@h"})
	r.wait(1, "msg=delivered", "ok.last@h")
	r.never("msg=delivered", "ok.before@h")
	r.never("msg=delivered", "ok.after@h")
	r.resume(one)
	r.wait(1, "msg=delivered", "ok.before@h")
	r.wait(1, "msg=delivered", "ok.after@h")
}

// Op5: of the source addresses of a clause one is suspended: the messages that would leave
// from it wait, and the others go on.
func TestOp5SuspendedSourcesMailWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, func(s *conf.Settings) {
		quick(s)
		s.Sources = []string{"127.0.0.1", "127.0.0.2=mx2.example.org"}
	})
	order := r.suspend(suspension.Suspension{Source: "127.0.0.2"})
	waits := map[string]bool{}
	for i := range 20 {
		name := r.queue(fmt.Sprintf("smtp h ok.n%d@h", i))
		waits[fmt.Sprintf("ok.n%d@h", i)] = r.Request(name).ID.Turn()%2 == 1
	}
	n := 0
	for _, w := range waits {
		if w {
			n++
		}
	}
	if n == 0 || n == 20 {
		t.Fatalf("%d of 20 messages have the source", n)
	}
	r.start()
	r.wait(20-n, "msg=delivered")
	for address, w := range waits {
		if w {
			r.never("msg=delivered", address)
		}
	}
	r.resume(order)
	r.wait(20, "msg=delivered")
}

// twoSources is a rig whose clause has two source addresses.
func twoSources(t *testing.T) *rig {
	return newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, func(s *conf.Settings) {
		quick(s)
		s.Sources = []string{"127.0.0.1", "127.0.0.2"}
	})
}

// queueFrom queues a message whose first attempt comes from the source of a number.
func (r *rig) queueFrom(source uint64, line string) (name string) {
	r.T.Helper()
	for range 100 {
		if name = r.queue(line); r.Request(name).ID.Turn()%2 == source {
			return name
		}
		assert.Must(r.T, errors.Join(os.Remove(filepath.Join(r.dir, postoffice.Transport, name)), os.Remove(filepath.Join(r.dir, postoffice.Queue, name))))
	}
	r.T.Fatal("of 100 messages none has the source")
	return ""
}

// Op5: a message that a rule on replies gives the other source waits if that is suspended, and
// goes on if the one that it leaves is; also after a restart.
func TestOp5SuspendedSourceHoldsWhatIsMovedToIt(t *testing.T) {
	t.Parallel()
	r := twoSources(t)
	r.queueFrom(0, "smtp h move1.to@h")
	r.queueFrom(1, "smtp h move2.through@h")
	r.queueFrom(0, "smtp h move2.back@h")
	// What is delivered after them.
	later := func(source uint64, name string) (deliver func()) {
		r.queueFrom(source, "smtp "+name+" ok."+name+"@h")
		order := r.suspend(suspension.Suspension{Host: name})
		return func() {
			t.Helper()
			r.resume(order)
			r.wait(1, "msg=delivered", "ok."+name+"@h")
		}
	}
	first, second, third := later(0, "first"), later(0, "second"), later(1, "third")
	order := r.suspend(suspension.Suspension{Source: "127.0.0.2"})
	r.start()
	r.wait(1, "msg=deferred", "move1.to@h")
	r.wait(1, "msg=deferred", "move2.back@h")
	first()
	r.stop()
	r.start()
	second()
	for _, address := range []string{"move1.to@h", "move2.through@h", "move2.back@h"} {
		r.never("msg=delivered", address)
	}
	r.never("msg=deferred", "move2.through@h")
	r.exactly(1, "msg=deferred", "move2.back@h")

	// The other one is suspended in its place.
	other := r.suspend(suspension.Suspension{Source: "127.0.0.1"})
	r.wait(1, "msg=suspended", "order="+string(other))
	r.resume(order)
	r.wait(1, "msg=delivered", "move1.to@h")
	r.wait(1, "msg=deferred", "move2.through@h")
	r.wait(2, "msg=deferred", "move2.back@h")
	third()
	r.never("msg=delivered", "move2")
	r.resume(other)
	r.wait(1, "msg=delivered", "move2.through@h")
	r.wait(1, "msg=delivered", "move2.back@h")
}

// Op5: a line that cannot be read raises an alarm, and the others are in force; so do those
// that were read before when the whole file cannot be read.
func TestOp5DamagedSuspensionsRaiseAnAlarm(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, quick)
	r.config.MonitorEvery = 50 * time.Millisecond
	order := r.suspend(suspension.Suspension{Host: "h"})
	file := filepath.Join(r.dir, postoffice.SuspensionFile)
	text, err := os.ReadFile(file)
	assert.Must(t, err)
	assert.Must(t, os.WriteFile(file, append(text, "deliveries order=20261126-070000-suspend-9 since=2026-11-26T07:00:00Z host=\"x\n"...), 0o644))
	r.queue("smtp h ok.a@h", "smtp x ok.b@h")
	r.start()
	r.wait(1, "msg=alarm-raised", "subject="+postoffice.SuspensionFile, ":3:")
	r.wait(1, "msg=delivered", "ok.b@h")
	assert.Must(t, os.Remove(file))
	assert.Must(t, os.Mkdir(file, 0o755))
	r.wait(1, "msg=suspensions-unread")
	r.queue("smtp h ok.c@h", "smtp x ok.d@h")
	r.wait(1, "msg=delivered", "ok.d@h")
	r.never("msg=delivered", "ok.c@h")
	assert.Must(t, os.Remove(file))
	assert.Must(t, os.WriteFile(file+".new", nil, 0o644))
	assert.Must(t, os.Rename(file+".new", file))
	r.wait(1, "msg=resumed", "order="+string(order))
	r.wait(1, "msg=delivered", "ok.c@h")
	r.wait(1, "msg=alarm-cleared", "subject="+postoffice.SuspensionFile)
}
