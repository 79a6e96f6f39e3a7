package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
)

// K10: a message's files are in another hash directory than they belong in, and stayed
// there because an agent held a recipient. A change that waits behind the one which moves
// them is made where they are then.
func TestChangeBehindAMoveFollowsTheMessage(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	e := newEngine(Config{Conf: b.spool.Conf, Dir: dir, Log: b.spool.Log}, b.PO)
	e.pool = newPool(e.intake.load)
	defer e.pool.close()
	e.clock.tick()
	n, _ := postoffice.ParseName(name)
	m := &thread.Message{Number: n.Ino}
	m.SetName("A/" + name)
	e.messages.put(m)
	for _, top := range []string{"transport", "queue"} {
		if err := os.Mkdir(filepath.Join(dir, top, "A"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, top, name), filepath.Join(dir, top, "A", name)); err != nil {
			t.Fatal(err)
		}
	}
	e.placement.reload(m, nil)
	e.intake.noted(m.Name())
	e.attempts.record(m, nil, nil, thread.Round{})
	for e.changes.busy[m] != nil {
		<-e.box.wake
		for _, fn := range e.box.take(nil) {
			fn()
		}
	}
	if got := b.Log.String(); strings.Contains(got, "vanished") || m.Name() != name {
		t.Errorf("the message is given up:\n%s", got)
	}
}
