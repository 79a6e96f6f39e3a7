package scheduler

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// books makes the box keep a ledger.
func (b *box) books() {
	b.spool.Ledger = ledger.New(b.po, ledger.Config{Role: "scheduler"})
	b.t.Cleanup(b.spool.Ledger.Close)
}

// idOfMessage is the spool ID of queue/name.
func (b *box) idOfMessage(name string) postoffice.SpoolID {
	b.t.Helper()
	info, err := b.po.StatMessage(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return postoffice.IDOf(info)
}

// record is the ledger's record of a message.
func (b *box) record(id postoffice.SpoolID) ledger.Record {
	b.t.Helper()
	book, err := ledger.Read(b.po)
	if err != nil {
		b.t.Fatal(err)
	}
	if book.Records[id] == nil {
		b.t.Fatalf("the ledger does not know %s: %v", id, book.Records)
	}
	return *book.Records[id]
}

// A18: each recipient is entered under what became of it, before the files are removed,
// and the report as a message of its own.
func TestEndsAreEnteredByTheirKind(t *testing.T) {
	b, _ := diskBox(t)
	b.books()
	name := b.queue("a@b", rcpt{line: "smtp h ok@h"}, rcpt{line: "smtp h fails@h"},
		rcpt{line: "smtp h quiet@h", notary: "NOTIFY=NEVER"}, rcpt{line: "smtp h late@h"}, rcpt{line: "error nouser nobody@h"})
	id := b.idOfMessage(name)
	l, err := b.spool.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	offsets := map[string]int64{}
	for _, w := range l.Open {
		offsets[w.Address] = w.Offset
	}
	list := []Outcome{{Offset: offsets["ok@h"], Result: thread.Delivered}, {Offset: offsets["fails@h"], Result: thread.Failed, Text: "550 no"},
		{Offset: offsets["quiet@h"], Result: thread.Failed, Text: "550 no"}}
	if err := b.spool.Record(name, list); err != nil {
		t.Fatal(err)
	}
	if _, err := b.spool.Expire(name, []int64{offsets["late@h"]}, "421 busy"); err != nil {
		t.Fatal(err)
	}
	if s, err := b.spool.Settle(name, nil); err != nil || !s.Finished {
		t.Fatalf("got %+v, %v", s, err)
	}
	want := ledger.Outcomes{Delivered: 1, Failed: 2, Silent: 1, Expired: 1}
	if got := b.record(id); got.Ended != ledger.Done || got.End != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	book, err := ledger.Read(b.po)
	if err != nil {
		t.Fatal(err)
	}
	for other, r := range book.Records {
		if other != id && (r.In != 1 || !r.Open()) {
			t.Errorf("the report: got %+v", r)
		}
	}
	if len(book.Records) != 2 {
		t.Errorf("got %d records, want the message and its report", len(book.Records))
	}
}

// A18: recipients that an earlier life delivered are counted by the next, which does not
// read their tags again.
func TestRestartInMidMessageCountsAllRecipients(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, quick)
	name := r.queue("a@b", rcpt{line: "smtp h ok.first@h"}, rcpt{line: "smtp h ok.second@h"}, rcpt{line: "local h ok.third@h"})
	id := r.idOfMessage(name)
	f, err := r.po.OpenSpec(name)
	if err != nil {
		t.Fatal(err)
	}
	first := r.parse(name).Groups[0].Recipients[0].Offset
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
	if got := r.record(id); got.End != (ledger.Outcomes{Delivered: 3}) {
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
			name := b.queue("a@b", rcpt{line: "smtp h a@h"}, rcpt{line: "smtp h b@h"})
			id := b.idOfMessage(name)
			b.spool.Ledger.Routed(id, 2, false)
			list := b.parse(name).Groups[0].Recipients
			done := []Outcome{{Offset: list[0].Offset, Result: thread.Delivered}}
			if tt.finished {
				done = append(done, Outcome{Offset: list[1].Offset, Result: thread.Delivered})
			}
			if err := b.spool.Record(name, done); err != nil {
				t.Fatal(err)
			}
			if tt.known {
				b.spool.Ledger.Done(id, tt.want)
			}
			if err := os.Remove(filepath.Join(dir, "queue", name)); err != nil {
				t.Fatal(err)
			}
			// The number is given to the next message.
			younger := postoffice.SpoolID{Ino: id.Ino, MTime: b.now.Add(time.Hour).UnixNano()}
			b.spool.Ledger.Routed(younger, 1, false)
			if err := b.spool.Abandon(name); err != nil {
				t.Fatal(err)
			}
			if got := b.record(id); got.End != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got := b.record(younger); !got.Open() {
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
	name := r.queue("a@b", rcpt{line: "smtp h defer9@h"}, rcpt{line: "smtp h defer9.b@h"})
	id := r.idOfMessage(name)
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
	if got := r.record(id); got.Ended != ledger.Gone || got.End != (ledger.Outcomes{Gone: 2}) {
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
	name, err := queueWith(r.po, "a@b", testHeader, "Body of the message.\n", []rcpt{{line: "smtp h ok@h"}, {line: "smtp h defer1@h"}}, occupy)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := postoffice.ParseName(name); !postoffice.IsRandom(n.Ino) {
		t.Fatalf("it is %s", name)
	}
	id := r.idOfMessage(name)
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
	if got := r.record(id); got.Ended != ledger.Done || got.End != (ledger.Outcomes{Delivered: 2}) {
		t.Errorf("the ledger has %+v", got)
	}
}
