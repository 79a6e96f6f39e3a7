package store

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// appendRaw appends bytes to a specification as a transport agent does, and sets the tags
// of recipients.
func (b *box) appendRaw(name, lines string, failed ...int) {
	b.T.Helper()
	f, spec := b.opened(name), b.Parse(name)
	var err error
	if lines != "" {
		err = f.Append([]byte(lines))
	}
	for _, n := range failed {
		err = errors.Join(err, f.SetTag(workspec.TagBytes(spec.Format, workspec.TagFailed), workspec.TagOffset(storetest.OffsetOf(spec, n))))
	}
	assert.Must(b.T, err)
}

// notary returns the NOTARY field of a failure as ZMailer's agents write it.
func notary(address string) string {
	return strings.Join([]string{address, "failed", "5.1.1", "smtp; 550 (" + address + ": no such user here)", "X-IP-addr; [127.0.0.1]", "smtp[1199]"}, "\x01")
}

// Dur1: whatever the diagnostic of a failed recipient says, or without one, the sender is
// told of each failed recipient once before the message is gone.
func TestDur1FailureIsReportedWhateverItsDiagnosticSays(t *testing.T) {
	const known, generic = "smtp; 550", "x-local; failed"
	tests := map[string]struct {
		lines func(one, two, header int64) string
		want  [2]string // what the Diagnostic-Code of each recipient begins with
	}{
		"-1 where there is no N line, as ZMailer's agents write": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1795220010\t%s\t\r<<- RCPT\r->> 550\nd %d:%d:-1::1795220010\t%s\t\r<<- RCPT\r->> 550\n", one, header, notary("one@h"), two, header, notary("two@h"))
		}, [2]string{known, known}},
		"-1 in every number": {func(one, two, header int64) string {
			return fmt.Sprintf("d -1:-1:-1::-1\t%s\t\nd -1:-1:-1::-1\t%s\t\n", notary("one@h"), notary("two@h"))
		}, [2]string{known, known}},
		"none": {func(one, two, header int64) string { return "" }, [2]string{generic, generic}},
		"one of two": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1795220010\t%s\t\n", two, header, notary("two@h"))
		}, [2]string{generic, known}},
		"offsets that no file has": {func(one, two, header int64) string {
			return fmt.Sprintf("d 999999999999999999:1:1::1\t%s\t\nd 99999999999999999999999:1:1::1\t%s\t\n", notary("one@h"), notary("two@h"))
		}, [2]string{known, generic}},
		"the offset of the other": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1795220010\t%s\t\nd %d:%d:-1::1795220010\t%s\t\n", two, header, notary("one@h"), one, header, notary("two@h"))
		}, [2]string{known, known}},
		"both of one": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1795220010\t%s\t\nd %d:%d:-1::1795220010\t%s\t\n", one, header, notary("one@h"), one, header, notary("one@h"))
		}, [2]string{known, generic}},
		"an offset inside of a line": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1795220010\t\x01failed\x015.1.1\t\n", one+3, header)
		}, [2]string{generic, generic}},
		"torn": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1795220010\t%s\t\nd %d:%d", one, header, notary("one@h"), two, header)
		}, [2]string{known, generic}},
		"no numbers": {func(one, two, header int64) string { return "d \td ::::\t\td a:b:c::d\t" + notary("one@h") + "\t\n" }, [2]string{generic, generic}},
		"a delay": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1\tone@h\x01delayed\x014.0.0\t\n", one, header)
		}, [2]string{generic, generic}},
		"a delivery": {func(one, two, header int64) string {
			return fmt.Sprintf("d %d:%d:-1::1\tone@h\x01delivered\x012.0.0\t\nd %d:%d:-1::1\t%s\t\n", one, header, two, header, notary("two@h"))
		}, [2]string{generic, known}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h one@h"}, storetest.Rcpt{Line: "smtp h two@h"})
			s := b.Parse(file)
			b.appendRaw(file, tt.lines(storetest.OffsetOf(s, 0), storetest.OffsetOf(s, 1), s.Groups[0].HeaderOffset), 0, 1)
			if set := b.settle(file); !set.Finished {
				t.Fatalf("got %+v", set)
			}
			storetest.Gone(t, b.FS, file)
			reports := b.Reports()
			if len(reports) != 1 {
				t.Fatalf("%d reports", len(reports))
			}
			who, codes := storetest.Fields(reports[0], "Final-Recipient"), storetest.Fields(reports[0], "Diagnostic-Code")
			if len(who) != 2 || len(codes) != 2 {
				t.Fatalf("got %q, %q", who, codes)
			}
			for i, address := range []string{"one@h", "two@h"} {
				at := 0
				if !strings.HasSuffix(who[at], address) {
					at = 1
				}
				if who[at] != "rfc822; "+address || !strings.HasPrefix(codes[at], tt.want[i]) {
					t.Errorf("%s: got %q with %q, want %q", address, who, codes, tt.want[i])
				}
			}
		})
	}
}

// Dur1: a diagnostic that names a recipient whose failure was reported is reported for the
// recipient that it is about, and for none twice.
func TestDur1DiagnosticAtTheOffsetOfOneThatWasTold(t *testing.T) {
	b, _ := diskBox(t)
	file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h one@h"}, storetest.Rcpt{Line: "smtp h two@h"}, storetest.Rcpt{Line: "smtp h three@h"})
	b.Mark(file, 0, "failed", workspec.TagFailed)
	b.Now = b.Now.Add(time.Hour)
	if set := b.settle(file); set.Finished || len(b.Reports()) != 1 {
		t.Fatalf("got %+v and %d reports", set, len(b.Reports()))
	}
	one := storetest.OffsetOf(b.Parse(file), 0)
	b.appendRaw(file, fmt.Sprintf("d %d:0:-1::1795220010\t%s\t\nd %d:0:-1::1795220010\t\x01failed\x015.1.1\t\n", one, notary("two@h"), one), 1, 2)
	if set := b.settle(file); !set.Finished {
		t.Fatalf("got %+v", set)
	}
	var told []string
	for _, report := range b.Reports() {
		told = append(told, storetest.Fields(report, "Final-Recipient")...)
	}
	slices.Sort(told)
	assert.Equal(t, strings.Join(told, ", "), "rfc822; one@h, rfc822; three@h, rfc822; two@h", "recipients reported")
}

// Dur1: a recipient that was opened again and fails again is reported, also where the
// diagnostic of its first failure is still there.
func TestDur1SecondFailureIsReported(t *testing.T) {
	for name, again := range map[string]func(b *box, file string){
		"the agent says so alone": func(b *box, file string) {
			err := b.record(file, []Outcome{{Offset: storetest.OffsetOf(b.Parse(file), 0), Result: thread.Failed, Text: "550 5.7.1 never again"}})
			assert.Must(b.T, err)
		},
		"its tag says so alone": func(b *box, file string) { b.appendRaw(file, "", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h one@h"})
			b.Mark(file, 0, "failed", workspec.TagFailed)
			q := b.Request(file)
			q.Failed = true
			b.Ordered(operations.Retry(q, file))(1)
			again(b, file)
			if set := b.settle(file); !set.Finished || len(b.Reports()) != 1 {
				t.Errorf("got %+v and %d reports", set, len(b.Reports()))
			}
		})
	}
}

// Dur1: a sender's address that cannot be read does not leave a failure untold where an e
// line says who is to hear of it.
func TestDur1ErrorAddressHearsOfItWhereTheSenderCannot(t *testing.T) {
	b, _ := diskBox(t)
	file, err := storetest.QueueWith(b.PO, "not an address", storetest.Header, "x\n", []storetest.Rcpt{{Line: "smtp h one@h"}},
		func(s *workspec.Spec, _ *workspec.Sender) { s.ErrorTo = []string{"owner-list@far.example"} })
	assert.Must(t, err)
	b.Mark(file, 0, "failed", workspec.TagFailed)
	if set := b.settle(file); !set.Finished || len(b.Reports()) != 1 || !strings.Contains(b.Reports()[0], "\nto <owner-list@far.example>\n") {
		t.Errorf("got %+v and the reports %q", set, b.Reports())
	}
}

// Dur1: an operator has a recipient tried again at any moment while its message is being
// ended: the message is not removed, or the operator gets an error.
func TestDur1RecipientPutBackWhileItsMessageEndsIsNotLost(t *testing.T) {
	for name, act := range map[string]func(q operations.Request, file string) (operations.Result, error){
		"retry": func(q operations.Request, file string) (operations.Result, error) {
			q.Failed, q.Told = true, true
			return operations.Retry(q, file)
		},
		"undo": operations.Undo,
	} {
		t.Run(name, func(t *testing.T) {
			put := 0
			for step := 0; ; step++ {
				below, _ := storetest.Disk(t)
				f := faultfs.New(below)
				b := newBox(t, f)
				b.books()
				file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h ok@h"}, storetest.Rcpt{Line: "smtp h one@h"}, storetest.Rcpt{Line: "smtp h two@h"})
				b.Mark(file, 0, "", workspec.TagOK)
				b.Mark(file, 1, "failed", workspec.TagFailed)
				if name == "undo" {
					b.Ordered(operations.Remove(b.Request(file), file))(1)
				} else {
					b.Mark(file, 2, "failed", workspec.TagFailed)
				}
				operator := openBox(t, below, 0, storetest.Conf)
				q := operator.Request(file)
				n, done := 0, false
				rule := f.On(faultfs.Any, "*/*", faultfs.Always, func(string) error {
					if n++; n != step+1 || !operator.free(file) {
						return nil
					}
					res, err := act(q, file)
					if err != nil && !errors.Is(err, operations.ErrMoved) && !errors.Is(err, operations.ErrNothing) {
						t.Errorf("step %d: %v", step, err)
					}
					done = err == nil && len(res.Changed) > 0
					return nil
				})
				set := b.settle(file)
				rule.End()
				switch {
				case done && set.Finished:
					t.Errorf("step %d: the message is gone, and a recipient was put back", step)
				case done:
					put++
					assert.Contains(t, storetest.Tags(b.Parse(file)), " ", "step %d: tags", step)
					if l := b.load(file); len(l.Open) == 0 {
						t.Errorf("step %d: nothing is to be delivered", step)
					}
				case !set.Finished:
					t.Errorf("step %d: got %+v and nothing was put back", step, set)
				}
				if n <= step {
					if put == 0 {
						t.Errorf("of %d steps none let the operator in", n)
					}
					return
				}
			}
		})
	}
}

// free reports whether no process holds the flock of a specification that is there.
func (b *box) free(name string) bool {
	f, err := b.PO.Queue.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	h, err := b.FS.Open("transport/"+name, 0, 0)
	if err != nil {
		return false
	}
	defer h.Close()
	free, err := h.TryLock()
	return err == nil && free
}

// Many recipients that were opened again fail at once: what that takes grows as their number,
// not as its square.
func TestManyThatWereOpenedAgainFail(t *testing.T) {
	took := func(n int) uint64 {
		b, _ := diskBox(t)
		name := b.Queue("a@b", many(n)...)
		spec := b.Parse(name)
		offsets, outcomes := make([]int64, n), make([]Outcome, n)
		for i := range offsets {
			offsets[i] = storetest.OffsetOf(spec, i)
			outcomes[i] = Outcome{Offset: offsets[i], Result: thread.Failed, Text: "550 5.1.1 no such user"}
		}
		e := workspec.OrderEvent(b.Now, workspec.EventRetry, "S7A1", offsets, "me", "", "", workspec.Attr{Key: "reopen", Value: "1"})
		assert.Must(t, b.opened(name).Append(workspec.AppendEvent(nil, &e)))
		return allocated(func() {
			assert.Must(t, b.record(name, outcomes))
		})
	}
	took(10)
	few, many := took(200), took(1600)
	if many > 16*few {
		t.Errorf("200 recipients take %d bytes of memory, 1600 take %d", few, many)
	}
}

// Dur1: the check before the files go does not believe that the failures were reported: a
// message with one that is not stays, the operator sees it in the file, in the log and in
// the alarms, and an order about it is obeyed.
func TestDur1MessageWithAnUnreportedFailureIsNotRemoved(t *testing.T) {
	b, _ := diskBox(t)
	b.books()
	file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h one@h"}, storetest.Rcpt{Line: "smtp h never@h", Notary: "NOTIFY=NEVER"})
	b.Mark(file, 0, "failed", workspec.TagFailed)
	b.Mark(file, 1, "failed", workspec.TagFailed)
	f, err := b.spool.open(file)
	assert.Must(t, err)
	defer f.close()
	if done, err := b.spool.finish(f); done || !errors.Is(err, ErrUnreported) {
		t.Fatalf("finish: got %v, %v", done, err)
	}
	err = b.spool.refuseEnd(f)
	if !errors.Is(err, ErrUnreported) || !strings.Contains(err.Error(), "one@h") || strings.Contains(err.Error(), "never@h") {
		t.Fatalf("got %v", err)
	}
	s := b.Parse(file)
	if e := s.History[len(s.History)-1]; e.Event != workspec.EventUnreported || e.Get("rcpts") != strconv.FormatInt(storetest.OffsetOf(s, 0), 10) {
		t.Errorf("the last line of its history: %+v", e)
	}
	if got := b.List("queue"); len(got) != 1 || got[0] != file {
		t.Errorf("queue/ has %q", got)
	}
	// Each start of the scheduler finds it so: the history does not grow by that.
	assert.Must(t, f.read())
	if err := b.spool.refuseEnd(f); !errors.Is(err, ErrUnreported) {
		t.Errorf("refused again: got %v", err)
	}
	assert.Equal(t, len(b.Parse(file).History), len(s.History), "lines of history after two refusals")
}
