package store

import (
	"testing"

	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
)

// A18: each recipient is entered under what became of it, before the files are removed,
// and the report as a message of its own.
func TestEndsAreEnteredByTheirKind(t *testing.T) {
	b, _ := diskBox(t)
	b.books()
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"}, storetest.Rcpt{Line: "smtp h fails@h"},
		storetest.Rcpt{Line: "smtp h quiet@h", Notary: "NOTIFY=NEVER"}, storetest.Rcpt{Line: "smtp h late@h"}, storetest.Rcpt{Line: "error nouser nobody@h"})
	id := b.ID(name)
	l, err := b.spool.Load(name)
	assert.Must(t, err)
	offsets := map[string]int64{}
	for _, w := range l.Open {
		offsets[w.Address] = w.Offset
	}
	list := []Outcome{{Offset: offsets["ok@h"], Result: thread.Delivered}, {Offset: offsets["fails@h"], Result: thread.Failed, Text: "550 no"},
		{Offset: offsets["quiet@h"], Result: thread.Failed, Text: "550 no"}}
	assert.Must(t, b.record(name, list))
	if _, err := b.expire(name, []int64{offsets["late@h"]}, "421 busy"); err != nil {
		t.Fatal(err)
	}
	if s, err := b.spool.Settle(name, nil); err != nil || !s.Finished {
		t.Fatalf("got %+v, %v", s, err)
	}
	want := ledger.Outcomes{Delivered: 1, Failed: 2, Silent: 1, Expired: 1}
	if got := b.LedgerRecord(id); got.Ended != ledger.Done || got.End != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	book, err := ledger.Read(b.PO)
	assert.Must(t, err)
	for other, r := range book.Records {
		if other != id && (r.In != 1 || !r.Open()) {
			t.Errorf("the report: got %+v", r)
		}
	}
	if len(book.Records) != 2 {
		t.Errorf("got %d records, want the message and its report", len(book.Records))
	}
}
