package store

import (
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// Z8: a recipient that no clause serves is told at every start; that it is held
// stands in its history once, and so does that a clause serves it again.
func TestUnservedRecipientIsHeldUntilAClauseServesIt(t *testing.T) {
	b, dir := diskBox(t)
	file := b.Queue("a@b", storetest.Rcpt{Line: "uucp far x@h"}, storetest.Rcpt{Line: "smtp h other@h"})
	reopen := func(conf string) {
		f, err := durable.NewOS(dir)
		assert.Must(t, err)
		t.Cleanup(func() { _ = f.Close() })
		b = openBox(t, f, 0, conf)
	}
	for range 2 {
		if l := b.load(file); l.Held != 1 || len(l.Open) != 1 {
			t.Errorf("held %d, open %d, want 1 and 1", l.Held, len(l.Open))
		}
		b.WantLog("level=ERROR", "unknown-channel", "x@h")
		reopen(storetest.Conf)
	}
	mended := strings.Replace(storetest.Conf, "smtp/*\n", "smtp/*\nuucp/*\n", 1)
	for range 2 {
		reopen(mended)
		if l := b.load(file); l.Held != 0 || len(l.Open) != 2 {
			t.Errorf("held %d, open %d, want 0 and 2", l.Held, len(l.Open))
		}
	}
	s := b.Parse(file)
	var got []string
	for _, e := range s.History {
		if e.Recipient != storetest.OffsetOf(s, 0) {
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
			b.Now = start
			f.SetClock(func() time.Time { return b.Now })
			file := b.Queue("a@b", storetest.Rcpt{Line: tt.line}, storetest.Rcpt{Line: "smtp h other@h"})
			l := b.load(file)
			if tt.after == 0 {
				b.Now = start.Add(300 * time.Hour)
				if s := b.settle(file); s.Expired != 0 || storetest.Tags(b.Parse(file)) != "  " {
					t.Errorf("%d expired, tags %q; want none", s.Expired, storetest.Tags(b.Parse(file)))
				}
				return
			}
			if got := l.Look.Sub(start); got < tt.after || got > tt.after+time.Second {
				t.Errorf("looked at again after %v, want %v", got, tt.after)
			}
			b.Now = start.Add(tt.after - time.Minute)
			if s := b.settle(file); s.Expired != 0 {
				t.Errorf("expired too early: %+v", s)
			}
			b.Now = start.Add(tt.after + time.Second)
			s := b.settle(file)
			if s.Expired != 1 || s.Finished || storetest.Tags(b.Parse(file)) != "- " {
				t.Fatalf("got %+v, tags %q; want one expired", s, storetest.Tags(b.Parse(file)))
			}
			b.WantLog("msg=expired", "rcpt=x@h", "status=5.4.7")
			b.Now = b.Now.Add(10 * time.Minute)
			b.settle(file)
			reports := b.Reports()
			if len(reports) != 1 || !strings.Contains(reports[0], "5.4.7") || len(storetest.Fields(reports[0], "Final-Recipient")) != 1 {
				t.Errorf("got %d reports: %q", len(reports), reports)
			}
		})
	}
}

// A scheduler.conf without its clause for an hour does not end what is old: the time
// counts from when the trouble was told.
func TestOldMessageThatIsHeldNowIsGivenTime(t *testing.T) {
	f := cutfs.New()
	b := newBoxConf(t, f, 0, "*/*\n\texpiry=2h\nsmtp/*\n\tcommand=\"ta $channel\"\n")
	start := time.Now()
	b.Now = start
	f.SetClock(func() time.Time { return b.Now })
	file := b.Queue("a@b", storetest.Rcpt{Line: "uucp far x@h", Notary: "NOTIFY=FAILURE"})
	b.Now = start.Add(100 * time.Hour)
	if l := b.load(file); l.Held != 1 || !l.Look.Equal(b.Now.Add(2*time.Hour)) {
		t.Errorf("held %d, looked at again %v from now, want 2h", l.Held, l.Look.Sub(b.Now))
	}
}
