package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// ZMailer's own specification, its failure and its success: the bytes that we add
// are those that ZMailer added, but for time, agent and what the server said.
func TestSampleFailureIsWrittenAsZMailerWroteIt(t *testing.T) { // M16, M20
	s := newSpool(t)
	before, err := os.ReadFile(filepath.Join("testdata", "05-fail", "transport-before"))
	assert.Must(t, err)
	after, err := os.ReadFile(filepath.Join("testdata", "05-fail", "transport-after"))
	assert.Must(t, err)
	message, err := os.ReadFile(filepath.Join("testdata", "05-fail", "router-file"))
	assert.Must(t, err)
	for dir, b := range map[string][]byte{"transport": before, "queue": message} {
		assert.Must(t, os.WriteFile(filepath.Join(s.Dir, dir, "10117782"), b, 0o600))
	}
	s.agent.Name = "smtp"
	s.agent.Now = func() time.Time { return time.Unix(1795220010, 0) }
	got := s.do("10117782", "b.example.com", byAddress(map[string]Result{
		"fail1@b.example.com": {
			Outcome: status.Failed, Code: status.BadMailbox,
			Reply:  "550 (fail1@b.example.com: no such user here)",
			Remote: "X-IP-addr; [127.0.0.1] (127.0.0.1|12525|127.0.0.1|60634)",
			Text: "\n<<- MAIL From:<sender@client.example.net> BODY=8BITMIME SIZE=429\n->> 250 2.1.0 Ok" +
				"\n<<- RCPT To:<fail1@b.example.com> NOTIFY=FAILURE,DELAY ORCPT=rfc822;fail1@b.example.com" +
				"\n->> 550 5.1.1 fail1@b.example.com: no such user here",
		},
		"ok@b.example.com": {Outcome: status.Delivered, Code: status.OK, Reply: "250 2.0.0 queued as SINK10419"},
	}))
	// The third field, which ZMailer's agent left empty here, names the server.
	want := "10117782/181\t\x01\x01\x01\x01X-IP-addr; [127.0.0.1] (127.0.0.1|12525|127.0.0.1|60634)\x01\terror2 550 (fail1@b.example.com: no such user here)\n" +
		"10117782/368\t\tok3 250 2.0.0 queued as SINK10419\n"
	assert.Same(t, got, want, "answers")
	// The d line of the sample is marked as reported, which the scheduler does later.
	wantFile := strings.Replace(string(after), "d+181", "d 181", 1)
	wantFile = strings.Replace(wantFile, "smtp[1199]", fmt.Sprintf("smtp[%d]", os.Getpid()), 1)
	assert.Same(t, s.Text("10117782"), wantFile, "specification")
}

func TestOutcomesAndTheirAnswers(t *testing.T) {
	notary := "a@b.example\x01delayed\x014.2.1\x01smtp; 451 4.2.1 later\x01dns; mx.example.org\x01test[PID]"
	with := func(r Result, f func(*Result)) Result { f(&r); return r }
	for name, c := range map[string]struct {
		notify     string
		res        Result
		tag        string
		word       string // after NUMBER/OFFSET TAB
		diagnostic string // NOTARY of the d line; "" if there must be none
	}{
		"delivered, no DSN asked": {res: ok, tag: "+", word: "\tok3 250 2.0.0 queued"},
		"delivered, success wanted": {notify: "NOTIFY=FAILURE,success", res: ok, tag: "+", word: "\tok2 250 2.0.0 queued",
			diagnostic: "a@b.example\x01relayed\x012.0.0\x01x-local; 250 2.0.0 queued\x01\x01test[PID]"},
		"delivered, success wanted and passed on": {notify: "NOTIFY=SUCCESS", tag: "+", word: "\tok3 250 2.0.0 queued",
			res: with(ok, func(r *Result) { r.Relayed = true })},
		"delivered without a word": {res: Result{Outcome: status.Delivered}, tag: "+", word: "\tok3 Ok"},
		"failed": {res: noUser, tag: "-", word: "\x01\x01\x01\x01dns; mx.example.org\x01\terror2 550 5.1.1 no such user",
			diagnostic: "a@b.example\x01failed\x015.1.1\x01smtp; 550 5.1.1 no such user\x01dns; mx.example.org\x01test[PID]"},
		"failed, never to be told": {notify: "NOTIFY=NEVER", res: noUser, tag: "-", word: "\x01\x01\x01\x01dns; mx.example.org\x01\terror2 550 5.1.1 no such user",
			diagnostic: "a@b.example\x01failed\x015.1.1\x01smtp; 550 5.1.1 no such user\x01dns; mx.example.org\x01test[PID]"},
		"deferred":               {res: later, tag: " ", word: notary + "\tdeferred 451 4.2.1 later"},
		"deferred with the host": {res: with(later, func(r *Result) { r.Host = true }), tag: " ", word: notary + "\tdeferall 451 4.2.1 later"},
		"deferred for some time": {res: with(later, func(r *Result) { r.After = 1500 * time.Millisecond }), tag: " ", word: notary + "\tretryat +2 451 4.2.1 later"},
		"unknown is temporary":   {res: Result{}, tag: " ", word: "a@b.example\x01delayed\x014.0.0\x01\x01\x01test[PID]\tdeferred"},
		"a reply of several lines": {res: with(later, func(r *Result) { r.Reply = "451 4.2.1\nlater\t" }), tag: " ",
			word: notary + "\tdeferred 451 4.2.1 later"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.queue(rcpt{"smtp", "b.example", "a@b.example", c.notify})
			off := s.Spec(file).Groups[0].Recipients[0].Offset
			number, _, _ := strings.Cut(file, "-")
			got := s.do(file, "b.example", give(c.res))
			assert.Equal(t, got, fmt.Sprintf("%s/%d\t%s\n", number, off, c.word), "answer")
			assert.Equal(t, s.Tags(file), c.tag, "tag")
			var notary string
			for _, d := range s.Spec(file).Diagnostics {
				notary += strings.Replace(d.Notary.String(), fmt.Sprintf("test[%d]", os.Getpid()), "test[PID]", 1)
				if d.Recipient != off || !d.Time.Equal(testTime.Truncate(time.Second)) || d.Reported {
					t.Errorf("d line: got %+v", d)
				}
			}
			assert.Equal(t, notary, c.diagnostic, "diagnostic")
		})
	}
}

func TestTwoPartialRoundsDeliverEachRecipientOnce(t *testing.T) { // S8
	s := newSpool(t)
	var rcpts []rcpt
	for _, a := range []string{"a", "b", "c", "d"} {
		rcpts = append(rcpts, rcpt{"smtp", "h.example", a + "@h.example", ""})
	}
	name := s.queue(rcpts...)
	count := map[string]int{}
	counting := func(results map[string]Result) Deliverer {
		return deliverFunc(func(ctx context.Context, d *Delivery) {
			for _, r := range d.Recipients {
				count[r.Address]++
			}
			byAddress(results).Deliver(ctx, d)
		})
	}
	s.do(name, "h.example", counting(map[string]Result{"a@h.example": ok, "b@h.example": later, "c@h.example": noUser}))
	assert.Equal(t, s.Tags(name), "+ - ", "after the first round")
	s.do(name, "h.example", counting(map[string]Result{"b@h.example": ok, "d@h.example": later}))
	assert.Equal(t, s.Tags(name), "++- ", "after the second round")
	s.do(name, "h.example", counting(map[string]Result{"d@h.example": ok}))
	assert.Equal(t, s.Tags(name), "++-+", "after the third round")
	want := map[string]int{"a@h.example": 1, "b@h.example": 2, "c@h.example": 1, "d@h.example": 3}
	assert.Same(t, count, want, "deliveries")
	assert.Equal(t, s.do(name, "h.example", give(ok)), "#resync "+name+"\n", "with nothing open")
}

// One body whatever the number of recipients, one diagnostic write and one fsync for
// all that failed, seven bytes for each tag.
func TestThousandRecipientsShareOneBodyAndOneFsync(t *testing.T) { // K3
	s := newSpool(t)
	var rcpts []rcpt
	for i := range 1000 {
		rcpts = append(rcpts, rcpt{"smtp", "h.example", fmt.Sprintf("u%d@h.example", i), ""})
	}
	name := s.queue(rcpts...)
	s.fs.taken()
	bodies := 0
	got := s.do(name, "h.example", deliverFunc(func(_ context.Context, d *Delivery) {
		bodies++
		for i, r := range d.Recipients {
			if i%2 == 0 {
				d.Done(r, ok)
			} else {
				d.Done(r, noUser)
			}
		}
	}))
	if n := strings.Count(got, "\n"); n != 1000 || bodies != 1 {
		t.Errorf("got %d answers in %d deliveries, want 1000 in 1", n, bodies)
	}
	assert.Equal(t, strings.Count(s.Tags(name), "-"), 500, "failed")
	ops := map[string]int{}
	for _, op := range s.fs.taken() {
		ops[strings.Replace(op, name, "NAME", 1)]++
	}
	want := map[string]int{
		"open transport/NAME":    1,
		"read transport/NAME":    1,
		"open queue/NAME":        1,
		"read queue/NAME":        1,
		"readat transport/NAME":  1,    // what stands between the locks
		"readat queue/NAME":      2,    // how long it was, is there an empty line
		"writeat transport/NAME": 1001, // one for all locks
		"append transport/NAME":  1,
		"sync transport/NAME":    1,
	}
	assert.Same(t, ops, want, "operations")
}

// A success of one recipient is a lock and a tag: no append, no fsync. The specification and
// a small message are read once, each by one call.
func TestPlainSuccessCostsTwoSmallWrites(t *testing.T) {
	s := newSpool(t)
	const header, body = "Subject: x\n\n", "body\n"
	size := len("comment octets 0123456789abcdef 00000000\n") + len(testEnvelope+header+body)
	name, at := s.messageOf(fmt.Sprintf("comment octets %016d 00000000\n", size)+testEnvelope, header, body)
	s.specify(name, at, "Subject: x\n", rcpt{"smtp", "h.example", "u@h.example", ""})
	s.fs.taken()
	s.do(name, "h.example", give(ok))
	got := strings.ReplaceAll(strings.Join(s.fs.taken(), ", "), name, "NAME")
	assert.Equal(t, got, "open transport/NAME, read transport/NAME, open queue/NAME, read queue/NAME, writeat transport/NAME, writeat transport/NAME")
}

func TestDiagnosticIsOnDiskBeforeTheTag(t *testing.T) {
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h.example", "u@h.example", ""})
	s.fs.taken()
	s.do(name, "h.example", give(noUser))
	ops := s.fs.taken()
	written := slices.Index(ops, "append transport/"+name)
	synced := slices.Index(ops, "sync transport/"+name)
	if written < 0 || synced < written || synced != len(ops)-2 || ops[len(ops)-1] != "writeat transport/"+name {
		t.Errorf("got %q, want the d line, fsync, the tag at the end", ops)
	}
}

// The trap "delivered mark saved after the retry time": who has the message is on the
// disk before the scheduler hears that the others are to be tried again.
func TestPartialDeliveryIsSynced(t *testing.T) {
	for name, c := range map[string]struct {
		results map[string]Result
		syncs   int
	}{
		"all delivered":               {map[string]Result{"a@h": ok, "b@h": ok}, 0},
		"one delivered, one deferred": {map[string]Result{"a@h": ok, "b@h": later}, 1},
		"both deferred":               {map[string]Result{"a@h": later, "b@h": later}, 0},
		"one delivered, one failed":   {map[string]Result{"a@h": ok, "b@h": noUser}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.queue(rcpt{"smtp", "h", "a@h", ""}, rcpt{"smtp", "h", "b@h", ""})
			s.fs.taken()
			s.do(file, "h", byAddress(c.results))
			syncs := 0
			for _, op := range s.fs.taken() {
				if op == "sync transport/"+file {
					syncs++
				}
			}
			assert.Equal(t, syncs, c.syncs, "fsyncs")
		})
	}
}

// Whatever the disk refuses, the scheduler is never told more than the file says.
func TestDiskFaultDefersAndLosesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		op   string // and the directory; each one from the nth fails
		nth  int
		err  unix.Errno
		res  Result
		tags string
	}{
		"the lock cannot be written":     {"writeat transport", 1, unix.EIO, ok, " "},
		"the message cannot be read":     {"readat queue", 1, unix.EIO, ok, " "},
		"too many files for the message": {"open queue", 1, unix.EMFILE, ok, " "},
		"a diagnostic has no room":       {"append transport", 1, unix.ENOSPC, noUser, " "},
		"a diagnostic cannot be synced":  {"sync transport", 1, unix.EIO, noUser, " "},
		"a failure cannot be marked":     {"writeat transport", 2, unix.EIO, noUser, "~"},
		"a deferral cannot be unlocked":  {"writeat transport", 2, unix.EIO, later, "~"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			file := s.queue(rcpt{"smtp", "h", "a@h", ""})
			seen := 0
			s.fs.failing(func(op, name string) error {
				if !strings.HasPrefix(op+" "+name, c.op+"/") {
					return nil
				}
				if seen++; seen >= c.nth {
					return c.err
				}
				return nil
			})
			got := s.do(file, "h", give(c.res))
			s.fs.failing(nil)
			if !strings.Contains(got, "\x01delayed\x014.") || !strings.Contains(got, "\tdeferred ") {
				t.Errorf("got answer %q, want a deferral", got)
			}
			assert.Equal(t, s.Tags(file), c.tags, "tag")
			assert.Contains(t, s.log.String(), "msg=disk", "log")
			// The next attempt of the same process gets through, over a lock that it
			// failed to give back.
			s.do(file, "h", give(ok))
			assert.Equal(t, s.Tags(file), "+", "at the next attempt: tag")
		})
	}
}

// A delivery that cannot be marked is not put off, which would repeat it: the scheduler
// is asked to mark it. Whoever looks at the file meanwhile finds it in doubt.
func TestSuccessThatCannotBeMarkedIsLeftToTheScheduler(t *testing.T) {
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""})
	writes := 0
	s.fs.failing(func(op, _ string) error {
		if op == "writeat" {
			if writes++; writes > 1 { // the first sets the lock
				return unix.EIO
			}
		}
		return nil
	})
	got := s.do(name, "h", give(ok))
	s.fs.failing(nil)
	assert.Contains(t, got, "\tok 250 2.0.0 queued\n")
	assert.Equal(t, s.Tags(name), "~", "tag")
	assert.Contains(t, s.log.String(), "msg=disk", "log")
}

func TestSuccessReportWithoutRoomIsLeftToTheScheduler(t *testing.T) {
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", "NOTIFY=SUCCESS"})
	s.fs.failing(func(op, name string) error {
		if op == "append" {
			return unix.ENOSPC
		}
		return nil
	})
	got := s.do(name, "h", give(ok))
	assert.Contains(t, got, "\ta@h\x01relayed\x012.0.0\x01x-local; 250 2.0.0 queued\x01\x01test[PID]\tok 250 2.0.0 queued\n")
	assert.Equal(t, s.Tags(name), "+", "tag")
}

func TestPanicOfDelivererDefersTheRest(t *testing.T) {
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""}, rcpt{"smtp", "h", "b@h", ""})
	got := s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		d.Done(d.Recipients[0], ok)
		panic(errors.New("index out of range"))
	}))
	if strings.Count(got, "\tok3 ") != 1 || strings.Count(got, "\tdeferred ") != 1 {
		t.Errorf("got %q, want one ok3 and one deferred", got)
	}
	assert.Equal(t, s.Tags(name), "+ ", "tags")
	if got := s.log.String(); !strings.Contains(got, "msg=panic") || !strings.Contains(got, "done_test.go") {
		t.Errorf("got log %q, want the panic and its stack", got)
	}
}

func TestSecondResultIsDropped(t *testing.T) {
	s := newSpool(t)
	name := s.queue(rcpt{"smtp", "h", "a@h", ""})
	got := s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		d.Done(d.Recipients[0], ok)
		d.Done(d.Recipients[0], noUser)
	}))
	if !strings.Contains(got, "\tok3 ") || s.Tags(name) != "+" {
		t.Errorf("got %q and tags %q, want the first result", got, s.Tags(name))
	}
	assert.Equal(t, len(s.Spec(name).Diagnostics), 0, "diagnostics")
}

// The same address in two groups is two recipients: each has its own offset, its own
// header, its own diagnostic.
func TestSameAddressInTwoGroupsIsReportedTwice(t *testing.T) { // M20
	s := newSpool(t)
	name, body := s.message("Subject: x\n\n", "body\n")
	var b strings.Builder
	w := workspec.NewWriter(&b)
	w.Preamble(&workspec.Spec{Message: name, BodyOffset: body})
	for _, header := range []string{"X-Group: 1\n", "X-Group: 2\n"} {
		w.Group(workspec.Sender{Channel: "local", Host: "sender", Address: "s@example.org", Privilege: "1"},
			[]workspec.Recipient{{Channel: "smtp", Host: "h", Address: "a@h", Privilege: "65534", Notary: "NOTIFY=FAILURE"}}, []byte(header))
	}
	assert.Must(t, w.Close())
	assert.Must(t, os.WriteFile(s.Path(name), []byte(b.String()), 0o600))
	var headers []string
	s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
		for _, r := range d.Recipients {
			headers = append(headers, string(d.Header(r.Group)))
			d.Done(r, noUser)
		}
	}))
	assert.Same(t, headers, []string{"X-Group: 1\n", "X-Group: 2\n"}, "headers")
	spec := s.Spec(name)
	if len(spec.Diagnostics) != 2 {
		t.Fatalf("got %d diagnostics, want 2", len(spec.Diagnostics))
	}
	for i, d := range spec.Diagnostics {
		r, g := spec.Groups[i].Recipients[0], spec.Groups[i]
		if d.Recipient != r.Offset || d.HeaderOffset != g.HeaderOffset || d.NotaryOffset != r.NotaryOffset {
			t.Errorf("diagnostic %d: got %d:%d:%d, want %d:%d:%d", i, d.Recipient, d.HeaderOffset, d.NotaryOffset,
				r.Offset, g.HeaderOffset, r.NotaryOffset)
		}
	}
}

// A deferral is the answer to "sent", and the next attempt sends without a question;
// but not where the message may stand in the store, or where an agent that looks there
// did not come to look.
func TestDoubtOutlivesADeferral(t *testing.T) {
	send := func(res Result) Deliverer {
		return deliverFunc(func(_ context.Context, d *Delivery) {
			assert.NoError(t, d.Sent())
			d.Done(d.Recipients[0], res)
		})
	}
	stands := later
	stands.Uncertain = true
	for name, c := range map[string]struct {
		attempts []Deliverer
		asked    bool // the attempt after them has a Sent
	}{
		"sent, deferred":                         {[]Deliverer{send(later)}, false},
		"sent, deferred, may stand there":        {[]Deliverer{send(stands)}, true},
		"then deferred before it was looked for": {[]Deliverer{send(stands), give(later), give(later)}, true},
		"then looked for and sent again":         {[]Deliverer{send(stands), send(later)}, false},
		"never sent":                             {[]Deliverer{give(stands), give(later)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			s.agent.Settles = true
			name := s.queue(rcpt{"local", "h", "a@h", ""})
			for _, a := range c.attempts {
				s.do(name, "h", a)
				s.deferred(name)
			}
			var sent *workspec.Event
			s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
				sent = d.Recipients[0].Sent
				d.Done(d.Recipients[0], ok)
			}))
			if (sent != nil) != c.asked {
				t.Errorf("got %+v, want one: %v", sent, c.asked)
			}
		})
	}
}

// deferred writes what the scheduler does after a deferral.
func (s *spool) deferred(name string) {
	s.Helper()
	spec, err := s.PostOffice.Queue.Open(name)
	assert.Must(s, err)
	defer spec.Close()
	e := workspec.DeferredEvent(testTime, s.Spec(name).Groups[0].Recipients[0].Offset, 1, testTime.Add(time.Minute), status.SystemTrouble, "later")
	assert.Must(s, spec.Append(workspec.AppendEvent(nil, &e)))
}
