package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// clockBox returns a box whose disk has the virtual clock, too.
func clockBox(t testing.TB, conf string) *box {
	t.Helper()
	f := cutfs.New()
	b := newBoxConf(t, f, 0, conf)
	f.SetClock(func() time.Time { return b.Now })
	return b
}

// open returns the addresses that agents are to have, with the time until the next attempt.
func (b *box) open(name string) string {
	b.T.Helper()
	var list []string
	for _, w := range b.load(name).Open {
		word := w.Address
		if w.Next.After(b.Now) {
			word += " in " + w.Next.Sub(b.Now).String()
		}
		list = append(list, word)
	}
	return strings.Join(list, ", ")
}

// deferredOnce has an attempt for a recipient fail now; the next one is in an hour.
func (b *box) deferredOnce(name string, n int) {
	b.T.Helper()
	err := b.record(name, []Outcome{{Offset: storetest.OffsetOf(b.Parse(name), n), Result: thread.Deferred, Attempt: 3, Next: b.Now.Add(time.Hour),
		Notary: workspec.Notary{Status: "4.2.2"}, Text: "mailbox full"}})
	assert.Must(b.T, err)
}

// A hold has chosen recipients wait, over restarts, until it is released or its time has
// come; that time does not make them older, and no report is sent on it.
func TestHeldRecipientsWaitAndDoNotAge(t *testing.T) {
	b := clockBox(t, storetest.Conf)
	file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
	b.Ordered(operations.Hold(b.Request(file, "x@h"), file, time.Time{}))(1)
	assert.Equal(t, b.open(file), "y@h", "open")
	if l := b.load(file); l.Held != 1 || len(l.Aside) != 1 || !l.Wake.IsZero() {
		t.Errorf("held %d at %v, wakes %v", l.Held, l.Aside, l.Wake)
	}
	b.Now = b.Now.Add(200 * time.Hour) // expiry is 3d
	b.Mark(file, 1, "", workspec.TagOK)
	if s := b.settle(file); s.Expired != 0 || s.Finished || len(b.Reports()) != 0 {
		t.Errorf("settled %+v with %d reports", s, len(b.Reports()))
	}
	b.Ordered(operations.Release(b.Request(file), file))(1)
	l := b.load(file)
	if len(l.Open) != 1 || l.Open[0].Away != 200*time.Hour {
		t.Fatalf("after the release: %+v, want 200h that do not count", l.Open)
	}
	assert.Equal(t, l.Look.Sub(b.Now).Round(time.Second), 4*time.Hour, "time until its delay is reported")
	if _, err := operations.Release(b.Request(file), file); !errors.Is(err, operations.ErrNothing) {
		t.Errorf("a second release: %v", err)
	}

	// Until a time.
	b.Ordered(operations.Hold(b.Request(file), file, b.Now.Add(time.Hour)))(1)
	if l := b.load(file); len(l.Open) != 0 || l.Look.Sub(b.Now) != time.Hour || l.Wake != l.Look {
		t.Errorf("held for an hour: %d open, look in %v", len(l.Open), l.Look.Sub(b.Now))
	}
	if s := b.settle(file); s.Woken || s.Look.Sub(b.Now) != time.Hour {
		t.Errorf("settled at once: %+v", s)
	}
	b.Now = b.Now.Add(time.Hour)
	if s := b.settle(file); !s.Woken {
		t.Errorf("settled in time: %+v, want it woken", s)
	}
	if got := b.open(file); got != "x@h" || b.load(file).Open[0].Away != 201*time.Hour {
		t.Errorf("after its time: open %q, %+v", got, b.load(file).Open)
	}
}

// Frozen recipients wait for an operator; a thaw begins their time anew, with the first of
// the waits.
func TestFrozenRecipientsWaitForAnOperator(t *testing.T) { // A13
	b := clockBox(t, storetest.Conf)
	file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
	b.Now = b.Now.Add(70 * time.Hour)
	b.deferredOnce(file, 0)
	b.Ordered(operations.Freeze(b.Request(file, "x@h"), file, workspec.CausePerson))(1)
	b.Now = b.Now.Add(700 * time.Hour)
	if s := b.settle(file); s.Expired != 0 {
		t.Errorf("settled %+v", s)
	}
	if held, err := b.expire(file, []int64{storetest.OffsetOf(b.Parse(file), 0)}, "x"); err != nil || len(held) != 0 || storetest.Tags(b.Parse(file)) != "  " {
		t.Errorf("expired what is frozen: %v, %v, tags %q", held, err, storetest.Tags(b.Parse(file)))
	}
	assert.Equal(t, b.open(file), "y@h", "open")
	b.Ordered(operations.Thaw(b.Request(file), file))(1)
	l := b.load(file)
	if len(l.Open) != 2 || l.Open[0].Address != "x@h" || l.Open[0].Attempts != 0 || !l.Open[0].Next.IsZero() || l.Open[0].Away.Round(time.Second) != 770*time.Hour {
		t.Errorf("thawed: %+v, want a new time", l.Open)
	}
}

// A thaw while an agent has a recipient begins its time anew, too: that this attempt was
// thought to be the last one is no longer true.
func TestThawedInFlightDoesNotExpire(t *testing.T) {
	b := clockBox(t, storetest.Conf)
	file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	off := []int64{storetest.OffsetOf(b.Parse(file), 0)}
	b.Now = b.Now.Add(100 * time.Hour)
	b.Lock(file, 0, b.agent())
	for _, give := range []func() (operations.Result, error){
		func() (operations.Result, error) {
			return operations.Freeze(b.Request(file), file, workspec.CausePerson)
		},
		func() (operations.Result, error) { return operations.Thaw(b.Request(file), file) },
	} {
		if res, err := give(); err != nil || len(res.Busy) != 1 {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
	b.Mark(file, 0, "", workspec.TagToDo)
	b.deferredOnce(file, 0)
	assert.Must(t, b.PO.Queue.DropNote(file))
	_, waiting, err := b.spool.Expire(file, off, "")
	if err != nil || len(waiting) != 1 || storetest.Tags(b.Parse(file)) != " " || len(b.List("transport")) != 2 {
		t.Errorf("waiting %v, %v, tags %q, transport/ has %v; want it open and a note", waiting, err, storetest.Tags(b.Parse(file)), b.List("transport"))
	}
	b.Now = b.Now.Add(100 * time.Hour)
	if _, waiting, err := b.spool.Expire(file, off, ""); err != nil || len(waiting) != 0 || storetest.Tags(b.Parse(file)) != "-" {
		t.Errorf("waiting %v, %v, tags %q; want it failed", waiting, err, storetest.Tags(b.Parse(file)))
	}
}

// A6: what becomes of a recipient at the end of its time is onexpiry's.
func TestEndOfTimeIsAsOnExpirySays(t *testing.T) {
	for what, want := range map[string]struct {
		tag     string // of the first
		reports int
		log     []string
	}{
		"bounce": {"-", 1, []string{"msg=expired", "dropped=false"}},
		"drop":   {"-", 0, []string{"msg=expired", "dropped=true"}},
		"freeze": {" ", 0, []string{"msg=frozen", "cause=expired", "full"}},
	} {
		t.Run(what, func(t *testing.T) {
			b := clockBox(t, strings.Replace(storetest.Conf, "expiry=3d", "expiry=3d onexpiry="+what, 1))
			file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "uucp h z@h"})
			b.load(file) // records that nothing serves z@h
			b.deferredOnce(file, 0)
			b.Now = b.Now.Add(80 * time.Hour)
			_, waiting, err := b.spool.Expire(file, []int64{storetest.OffsetOf(b.Parse(file), 0)}, "")
			if err != nil || (len(waiting) == 1) != (what == "freeze") {
				t.Errorf("waiting: %v, %v", waiting, err)
			}
			assert.Equal(t, storetest.Tags(b.Parse(file)), want.tag+" ", "tags")
			done := b.settle(file).Finished
			if n := len(b.Reports()); n != want.reports || done != (what != "freeze") {
				t.Errorf("%d reports, want %d; finished %v", n, want.reports, done)
			}
			b.WantLog(append(want.log, "rcpt=x@h")...)
			b.WantLog(want.log[0], "rcpt=z@h")
			if what != "freeze" {
				return
			}
			if l := b.load(file); l.Held != 2 || len(l.Open) != 0 {
				t.Errorf("after a restart: held %d, open %d", l.Held, len(l.Open))
			}
			b.Ordered(operations.Thaw(b.Request(file, "x@h"), file))(1)
			assert.Equal(t, b.open(file), "x@h", "thawed")
		})
	}
}

// A retry is due now, whatever the recipient or its host waits for, and keeps the count of
// its attempts.
func TestRetryIsDueNow(t *testing.T) { // A13
	b := clockBox(t, storetest.Conf)
	file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
	b.deferredOnce(file, 0)
	b.deferredOnce(file, 1)
	if got := b.open(file); got != "x@h in 1h0m0s, y@h in 1h0m0s" {
		t.Fatalf("open: %q", got)
	}
	b.Ordered(operations.Retry(b.Request(file, "y@h"), file))(1)
	assert.Equal(t, b.open(file), "x@h in 1h0m0s, y@h", "open")
	if w := b.load(file).Open[1]; w.Attempts != 3 || !w.Hurry {
		t.Errorf("got %+v", w)
	}
	b.deferredOnce(file, 1)
	assert.Equal(t, b.open(file), "x@h in 1h0m0s, y@h in 1h0m0s", "after the attempt")
}

// A13: a recipient that has failed is opened again while its sender was not told; its
// time begins anew, and the failure of before is not reported.
func TestFailedRecipientIsOpenedAgain(t *testing.T) {
	b := clockBox(t, storetest.Conf)
	file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
	b.Mark(file, 0, "failed", workspec.TagFailed)
	b.settle(file) // gathers for five minutes
	if _, err := operations.Retry(b.Request(file, "x@h"), file); !errors.Is(err, operations.ErrNothing) {
		t.Errorf("without Failed: %v", err)
	}
	again := b.Request(file, "x@h")
	again.Failed = true
	b.Ordered(operations.Retry(again, file))(1)
	assert.Equal(t, b.open(file), "x@h, y@h", "open")
	b.Now = b.Now.Add(10 * time.Minute)
	b.settle(file)
	assert.Equal(t, len(b.Reports()), 0, "reports on a recipient that is open")
	b.Mark(file, 0, "failed", workspec.TagFailed)
	b.Now = b.Now.Add(10 * time.Minute)
	b.settle(file)
	assert.Equal(t, len(b.Reports()), 1, "reports")
	again = b.Request(file, "x@h")
	again.Failed = true
	if _, err := operations.Retry(again, file); !errors.Is(err, operations.ErrNothing) {
		t.Errorf("the sender was told: %v", err)
	}
	again.Told = true
	b.Ordered(operations.Retry(again, file))(1)
	b.Mark(file, 0, "", workspec.TagOK)
	b.Mark(file, 1, "", workspec.TagOK)
	if !b.settle(file).Finished {
		t.Error("it is not finished")
	}
}

// M41: expiry by an operator, of one recipient or of the message, reported or silent; what is
// frozen or held, too.
func TestExpiryByAnOperator(t *testing.T) {
	for name, report := range map[string]bool{"reported": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			b := clockBox(t, storetest.Conf)
			file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"}, storetest.Rcpt{Line: "smtp h z@h"})
			b.Ordered(operations.Freeze(b.Request(file, "y@h"), file, workspec.CausePerson))(1)
			b.deferredOnce(file, 0)
			q := b.Request(file, "x@h", "y@h")
			q.Report = report
			b.Ordered(operations.Expire(q, file))(2)
			if got := b.open(file); got != "z@h" || storetest.Tags(b.Parse(file)) != "-- " {
				t.Errorf("open %q, tags %q", got, storetest.Tags(b.Parse(file)))
			}
			b.Mark(file, 2, "", workspec.TagOK)
			if !b.settle(file).Finished {
				t.Error("it is not finished")
			}
			reports := b.Reports()
			if (len(reports) == 1) != report {
				t.Fatalf("%d reports", len(reports))
			}
			if report && (!strings.Contains(reports[0], "4.4.7") || !strings.Contains(reports[0], "mailbox full") || len(storetest.Fields(reports[0], "Final-Recipient")) != 2) {
				t.Errorf("got %s", reports[0])
			}
		})
	}
}

// What is ordered while an agent has a recipient holds when the agent gives it back, and
// means nothing if it delivers.
func TestOrderHoldsWhenTheAgentGivesBack(t *testing.T) {
	tests := map[string]struct {
		order func(operations.Request, string) (operations.Result, error)
		tag   string // then
	}{
		"hold": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Hold(q, n, time.Time{})
		}, " "},
		"freeze": {func(q operations.Request, n string) (operations.Result, error) {
			return operations.Freeze(q, n, workspec.CausePerson)
		}, " "},
		"expire": {operations.Expire, "-"},
		"remove": {operations.Remove, "-"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, delivered := range []bool{false, true} {
				b := clockBox(t, storetest.Conf)
				file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
				b.Lock(file, 0, b.agent())
				res, err := tt.order(b.Request(file), file)
				if err != nil || len(res.Changed) != 0 || len(res.Busy) != 1 {
					t.Fatalf("got %+v, %v, want it busy", res, err)
				}
				if l := b.load(file); len(l.Open) != 1 || !l.Open[0].Locked {
					t.Errorf("while the agent has it: %+v", l.Open)
				}
				if delivered {
					b.Mark(file, 0, "", workspec.TagOK)
					if !b.settle(file).Finished || len(b.List("removed")) != 0 {
						t.Errorf("it was delivered, and is not finished; removed/ has %v", b.List("removed"))
					}
					continue
				}
				b.Mark(file, 0, "", workspec.TagToDo)
				rec, err := b.spool.Record(file, []Outcome{{Offset: storetest.OffsetOf(b.Parse(file), 0), Result: thread.Deferred, Attempt: 1, Next: b.Now.Add(time.Hour)}})
				if err != nil || len(rec.Taken) != 1 || (len(rec.Ended) == 1) != (tt.tag == "-") || storetest.Tags(b.Parse(file)) != tt.tag {
					t.Errorf("given back: %+v, %v, tags %q, want %q", rec, err, storetest.Tags(b.Parse(file)), tt.tag)
				}
				if tt.tag == " " {
					assert.Equal(t, b.open(file), "", "open")
				} else if !b.settle(file).Finished {
					t.Error("it is not finished")
				}
			}
		})
	}
}

// An end that an operator took back is not reported, whatever becomes of the recipient then.
func TestEndThatWasTakenBackIsNotReported(t *testing.T) {
	tests := map[string]struct {
		then func(b *box, name string)
		want int // reports
	}{
		"removed": {func(b *box, name string) { b.Ordered(operations.Remove(b.Request(name), name))(1) }, 0},
		"given up again": {func(b *box, name string) {
			q := b.Request(name)
			q.Report = true
			b.Ordered(operations.Expire(q, name))(1)
		}, 1},
		"removed, and back": {func(b *box, name string) {
			b.Ordered(operations.Remove(b.Request(name), name))(1)
			b.Ordered(operations.Undo(b.Request(name), name))(1)
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
			q := b.Request(file)
			q.Report = true
			b.Ordered(operations.Expire(q, file))(1)
			q = b.Request(file)
			q.Failed = true
			b.Ordered(operations.Retry(q, file))(1)
			tt.then(b, file)
			b.Now = b.Now.Add(time.Hour)
			b.settle(file)
			assert.Equal(t, len(b.Reports()), tt.want, "reports")
		})
	}
}

// A18: each recipient is entered under what became of it, before the files are removed,
// and the report as a message of its own.
func TestEndsAreEnteredByTheirKind(t *testing.T) {
	b, _ := diskBox(t)
	b.books()
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"}, storetest.Rcpt{Line: "smtp h fails@h"},
		storetest.Rcpt{Line: "smtp h quiet@h", Notary: "NOTIFY=NEVER"}, storetest.Rcpt{Line: "smtp h late@h"}, storetest.Rcpt{Line: "error nouser unknown@h"})
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
	assert.Equal(t, len(book.Records), 2, "records")
}
