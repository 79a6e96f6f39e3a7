package scheduler

import (
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/workspec"
)

// Z8: a recipient that no clause serves is told at every start; that it is held
// stands in its history once, and so does that a clause serves it again.
func TestUnservedRecipientIsHeldUntilAClauseServesIt(t *testing.T) {
	b, dir := diskBox(t)
	file := b.queue("a@b", rcpt{line: "uucp far x@h"}, rcpt{line: "smtp h other@h"})
	reopen := func(conf string) {
		f, err := durable.NewOS(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		b = openBox(t, f, 0, conf)
	}
	for range 2 {
		if l := b.load(file); l.Held != 1 || len(l.Open) != 1 {
			t.Errorf("held %d, open %d, want 1 and 1", l.Held, len(l.Open))
		}
		b.wantLog("level=ERROR", "unknown-channel", "x@h")
		reopen(testConf)
	}
	mended := strings.Replace(testConf, "smtp/*\n", "smtp/*\nuucp/*\n", 1)
	for range 2 {
		reopen(mended)
		if l := b.load(file); l.Held != 0 || len(l.Open) != 2 {
			t.Errorf("held %d, open %d, want 0 and 2", l.Held, len(l.Open))
		}
	}
	s := b.parse(file)
	var got []string
	for _, e := range s.History {
		if e.Recipient != offsetOf(s, 0) {
			t.Errorf("an event of byte %d: %+v", e.Recipient, e)
		}
		got = append(got, e.Event)
	}
	if strings.Join(got, " ") != workspec.EventUnserved+" "+workspec.EventServed {
		t.Errorf("history %q, want held, then served", got)
	}
}

// M27: recipients that nothing serves expire as well, by a sweep, and their sender is
// told; what is served is not touched.
func TestUnservedRecipientsExpire(t *testing.T) {
	const conf = "*/*\n\texpiry=2h\nuucp/short\n\texpiry2=1h\nuucp/never\n\texpiry=0s\nsmtp/*\n\tcommand=\"ta $channel\"\n"
	tests := map[string]struct {
		line  string
		after time.Duration // since it came in; 0: never
	}{
		"no clause":                     {"uucp far x@h", 2 * time.Hour},
		"no clause, expiry2 is shorter": {"uucp short x@h", time.Hour},
		"no clause, never":              {"uucp never x@h", 0},
		"on hold":                       {"hold wait x@h", 2 * time.Hour},
		"served: only after an attempt": {"smtp h x@h", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := cutfs.New()
			b := newBoxConf(t, f, 0, conf)
			start := time.Now()
			b.now = start
			f.SetClock(func() time.Time { return b.now })
			file := b.queue("a@b", rcpt{line: tt.line}, rcpt{line: "smtp h other@h"})
			l := b.load(file)
			if tt.after == 0 {
				b.now = start.Add(300 * time.Hour)
				if s := b.settle(file); s.Expired != 0 || tags(b.parse(file)) != "  " {
					t.Errorf("%d expired, tags %q; want none", s.Expired, tags(b.parse(file)))
				}
				return
			}
			if got := l.Look.Sub(start); got < tt.after || got > tt.after+time.Second {
				t.Errorf("looked at again after %v, want %v", got, tt.after)
			}
			b.now = start.Add(tt.after - time.Minute)
			if s := b.settle(file); s.Expired != 0 {
				t.Errorf("expired too early: %+v", s)
			}
			b.now = start.Add(tt.after + time.Second)
			s := b.settle(file)
			if s.Expired != 1 || s.Finished || tags(b.parse(file)) != "- " {
				t.Fatalf("got %+v, tags %q; want one expired", s, tags(b.parse(file)))
			}
			b.wantLog("msg=expired", "rcpt=x@h", "status=5.4.7")
			b.now = b.now.Add(10 * time.Minute)
			b.settle(file)
			reports := b.reports()
			if len(reports) != 1 || !strings.Contains(reports[0], "5.4.7") || len(fields(reports[0], "Final-Recipient")) != 1 {
				t.Errorf("got %d reports: %q", len(reports), reports)
			}
		})
	}
}

// M27 in the running scheduler: a message of which nothing is served goes, with its
// report.
func TestRunningSchedulerExpiresWhatIsHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.Replace(scriptConf("", ""), "expiry=3d", "expiry=1s", 1), 0, quick)
	r.queue("a@b", rcpt{line: "uucp far x@h"}, rcpt{line: "hold w y@h"})
	r.queue("a@b", rcpt{line: "uucp far z@h"}, rcpt{line: "smtp h ok@h"})
	r.start()
	r.wait(3, "msg=expired", "status=5.4.7")
	r.drained()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	r.deliveredOnce("ok@h")
	if n := len(r.reports()); n != 2 {
		t.Errorf("%d reports, want one for each message", n)
	}
}

// A scheduler.conf without its clause for an hour does not end what is old: the time
// counts from when the trouble was told.
func TestOldMessageThatIsHeldNowIsGivenTime(t *testing.T) {
	f := cutfs.New()
	b := newBoxConf(t, f, 0, "*/*\n\texpiry=2h\nsmtp/*\n\tcommand=\"ta $channel\"\n")
	start := time.Now()
	b.now = start
	f.SetClock(func() time.Time { return b.now })
	file := b.queue("a@b", rcpt{line: "uucp far x@h", notary: "NOTIFY=FAILURE"})
	b.now = start.Add(100 * time.Hour)
	if l := b.load(file); l.Held != 1 || !l.Look.Equal(b.now.Add(2*time.Hour)) {
		t.Errorf("held %d, looked at again %v from now, want 2h", l.Held, l.Look.Sub(b.now))
	}
}
