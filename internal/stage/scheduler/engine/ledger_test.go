package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// A18: recipients that an earlier life delivered are counted by the next, which does not
// read their tags again.
func TestRestartInMidMessageCountsAllRecipients(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, quick)
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok.first@h"}, storetest.Rcpt{Line: "smtp h ok.second@h"}, storetest.Rcpt{Line: "local h ok.third@h"})
	id := r.ID(name)
	f, err := r.PO.Queue.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	first := r.Parse(name).Groups[0].Recipients[0].Offset
	if err := f.SetTag(workspec.TagBytes(workspec.FormatOurs, workspec.TagOK), workspec.TagOffset(first)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wait(2, "msg=delivered")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if got := r.LedgerRecord(id); got.End != (ledger.Outcomes{Delivered: 3}) {
		t.Errorf("got %+v", got)
	}
}

// A specification without its message: killed while it was finishing, its end is entered
// already; else it is entered now, with the open recipients as gone.
func TestHalfAMessageIsEnteredOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		known, finished bool
		want            ledger.Outcomes
	}{
		"its end is known":          {true, true, ledger.Outcomes{Delivered: 2}},
		"its end was lost":          {false, true, ledger.Outcomes{Delivered: 2}},
		"somebody removed the file": {false, false, ledger.Outcomes{Delivered: 1, Gone: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b, dir := diskBox(t)
			b.books()
			name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h a@h"}, storetest.Rcpt{Line: "smtp h b@h"})
			id := b.ID(name)
			b.spool.Ledger.Routed(id, 2, false)
			list := b.Parse(name).Groups[0].Recipients
			done := []store.Outcome{{Offset: list[0].Offset, Result: thread.Delivered}}
			if tt.finished {
				done = append(done, store.Outcome{Offset: list[1].Offset, Result: thread.Delivered})
			}
			if _, err := b.spool.Record(name, done); err != nil {
				t.Fatal(err)
			}
			if tt.known {
				b.spool.Ledger.Done(id, tt.want)
			}
			if err := os.Remove(filepath.Join(dir, "queue", name)); err != nil {
				t.Fatal(err)
			}
			// The number is given to the next message.
			younger := postoffice.SpoolID{Ino: id.Ino, MTime: b.Now.Add(time.Hour).UnixNano()}
			b.spool.Ledger.Routed(younger, 1, false)
			if err := b.spool.Abandon(name); err != nil {
				t.Fatal(err)
			}
			if got := b.LedgerRecord(id); got.End != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got := b.LedgerRecord(younger); !got.Open() {
				t.Errorf("the message that has the number now: got %+v", got)
			}
		})
	}
}

// K10: files that are taken away while the scheduler has the message are entered as gone,
// and counted as delivered when they come back and are.
func TestVanishedMessageIsEnteredAsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, func(s *conf.Settings) { s.Interval = 100 * time.Millisecond; s.IdleMax = time.Hour })
	r.config.Look = 50 * time.Millisecond
	r.start()
	r.wait(1, "msg=started")
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer9@h"}, storetest.Rcpt{Line: "smtp h defer9.b@h"})
	id := r.ID(name)
	r.wait(2, "msg=deferred")
	// The message first: without its specification it would be routed again.
	for _, dir := range []string{"queue", "transport"} {
		if err := os.Remove(filepath.Join(r.dir, dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r.wait(1, "msg=vanished", "name="+name)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if got := r.LedgerRecord(id); got.Ended != ledger.Gone || got.End != (ledger.Outcomes{Gone: 2}) {
		t.Errorf("got %+v", got)
	}
}

// Sec4: a message whose name was taken goes on under a number taken at random. Its spool ID
// is that of its inode all the same: in the ledger, in the log and for who asks.
func TestSec4MessageWithANumberTakenAtRandomKeepsItsSpoolID(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, func(s *conf.Settings) { s.Interval = time.Hour; s.IdleMax = time.Hour })
	r.books()
	taken := ""
	occupy := func(s *workspec.Spec, _ *workspec.Sender) {
		if taken == "" {
			taken = filepath.Join(r.dir, "queue", s.Message)
			if err := os.WriteFile(taken, []byte("somebody's"), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	name, err := storetest.QueueWith(r.PO, "a@b", storetest.Header, "Body of the message.\n", []storetest.Rcpt{{Line: "smtp h ok@h"}, {Line: "smtp h defer1@h"}}, occupy)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := postoffice.ParseName(name); !postoffice.IsRandom(n.Ino) {
		t.Fatalf("it is %s", name)
	}
	id := r.ID(name)
	r.start()
	r.wait(1, "msg=deferred", "id="+id.String())
	for _, key := range []string{id.String(), name} {
		info := mailq.MessageInfo{}
		c, _ := r.dial()
		_, err := c.Ask(mailq.Request{Kind: mailq.JSONMessage, ID: key}, func(line string) error { return json.Unmarshal([]byte(line), &info) })
		if err != nil || info.ID != id.String() || info.Name != name || len(info.Recipients) != 1 || len(info.Why) != 1 {
			t.Errorf("asked for %s: %+v, %v", key, info, err)
		}
	}
	r.etrn("h")
	r.wait(1, "msg=finished", "id="+id.String())
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if got := r.LedgerRecord(id); got.Ended != ledger.Done || got.End != (ledger.Outcomes{Delivered: 2}) {
		t.Errorf("the ledger has %+v", got)
	}
}
