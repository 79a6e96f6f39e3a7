package engine

import (
	"path"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// A5 K12: what is delivered at the same time is finished together, entered in one write of
// the ledger before the first file goes; a message that the disk refuses keeps no
// other.
func TestMessagesThatEndTogetherAreFinishedTogether(t *testing.T) {
	below, err := durable.NewOS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = below.Close() })
	f := faultfs.New(below)
	b := newBox(t, f)
	b.books()
	b.spool.Ledger.Gone(postoffice.SpoolID{Ino: 1, MTime: 1}, 0, "test") // the journal is open
	e := newEngine(Config{Conf: b.spool.Conf, Log: b.spool.Log}, b.PO)
	e.spool = b.spool
	e.pool = newPool(e.intake.load)
	defer e.pool.close()
	e.now = time.Now()
	var names []string
	var ids []postoffice.SpoolID
	for range 4 {
		name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
		b.Mark(name, 0, "", workspec.TagOK)
		names, ids = append(names, name), append(ids, b.ID(name))
	}
	entered := f.On(faultfs.Write, postoffice.Ledger+"/*", faultfs.Always, func(string) error {
		if n := len(b.List(postoffice.Queue)); n != len(names) {
			t.Errorf("%d messages are left when their ends are entered, want %d", n, len(names))
		}
		return nil
	})
	full := f.Fail(faultfs.Remove, postoffice.Queue+"/"+path.Base(names[1]), unix.EIO, faultfs.Always)
	for i, name := range names {
		m := &thread.Message{Number: ids[i].Ino, Stamp: ids[i].MTime, Total: 1}
		m.SetName(name)
		e.messages.put(m)
		e.ends.check(m)
	}
	e.changes.finishAll()
	for len(e.changes.busy) > 1 {
		<-e.box.wake
		for _, fn := range e.box.take(nil) {
			fn()
		}
	}
	if n := entered.Hits(); n != 1 {
		t.Errorf("four ends took %d writes, want 1", n)
	}
	entered.End()
	if got := strings.Join(b.List(postoffice.Transport), " "); got != names[1] || e.messages.len() != 1 {
		t.Errorf("left in transport/: %s, and %d messages known; want %s alone", got, e.messages.len(), names[1])
	}
	for _, id := range ids {
		if r := b.LedgerRecord(id); r.Ended != ledger.Done || r.End.Delivered != 1 {
			t.Errorf("%v: got %+v, want it delivered", id, r)
		}
	}
	full.End()
	e.ends.remind(e.messages.get(ids[1].Ino))
	e.changes.finishAll()
	for len(e.changes.busy) > 0 {
		<-e.box.wake
		for _, fn := range e.box.take(nil) {
			fn()
		}
	}
	if left := append(b.List(postoffice.Transport), b.List(postoffice.Queue)...); len(left) > 0 || e.messages.len() != 0 {
		t.Errorf("left: %v, and %d messages known", left, e.messages.len())
	}
}
