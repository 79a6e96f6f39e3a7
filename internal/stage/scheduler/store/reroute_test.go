package store

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// copies returns the messages in router/ that are no reports.
func (b *box) copies() []*envelope.Message {
	b.T.Helper()
	var list []*envelope.Message
	for _, text := range b.Reports() {
		m, err := envelope.Read(strings.NewReader(text))
		assert.Must(b.T, err)
		if !m.ErrorMsg {
			list = append(list, m)
		}
	}
	return list
}

// M41: some recipients are routed again, in a copy that keeps what their sender wished and
// the message's age; the others stay.
func TestRerouteCopiesTheMessageForItsRecipients(t *testing.T) {
	b := clockBox(t, storetest.Conf)
	arrived := b.Now
	file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h", Notary: "NOTIFY=FAILURE,DELAY ORCPT=rfc822;was@h", Ret: "HDRS", EnvID: "QQ1"},
		storetest.Rcpt{Line: "smtp h y@h", Notary: "NOTIFY=NEVER", Ret: "HDRS", EnvID: "QQ1"}, storetest.Rcpt{Line: "smtp h z@h"}, storetest.Rcpt{Line: "local - |/bin/x"})
	b.Now = b.Now.Add(50 * time.Hour)
	res, err := operations.Reroute(b.Request(file, "x@h", "y@h", "|/bin/x"), file)
	b.Ordered(res, err)(2)
	if len(res.Left) != 1 || res.To == (postoffice.SpoolID{}) {
		t.Errorf("left %q, copy %v", res.Left, res.To)
	}
	if got := b.open(file); got != "|/bin/x, z@h" || storetest.Tags(b.Parse(file)) != "++  " {
		t.Errorf("open %q, tags %q", got, storetest.Tags(b.Parse(file)))
	}
	list := b.copies()
	if len(list) != 1 {
		t.Fatalf("%d copies", len(list))
	}
	m := list[0]
	want := []envelope.Recipient{{Address: "x@h", DSN: "NOTIFY=FAILURE,DELAY ORCPT=rfc822;was@h"}, {Address: "y@h", DSN: "NOTIFY=NEVER"}}
	if m.From != "a@b" || m.EnvID != "QQ1" || m.NotaryRet != "HDRS" || len(m.Recipients) != 2 || m.Recipients[0] != want[0] || m.Recipients[1] != want[1] {
		t.Errorf("its envelope: %+v", m.Envelope)
	}
	// S13: the router adds its Received once.
	assert.Equal(t, string(m.Header), "From: a@b\nSubject: test\n", "its header")
	if text := b.Reports()[0]; !strings.HasSuffix(text, "Subject: test\n\nBody of the message.\n") {
		t.Errorf("it is %q", text)
	}
	if age := b.Now.Sub(res.To.Time()); age < 50*time.Hour-time.Second || age > 50*time.Hour+time.Second || res.To.Time().Before(arrived) {
		t.Errorf("it is %v old, want 50h", age)
	}
	b.Mark(file, 2, "", workspec.TagOK)
	b.Mark(file, 3, "", workspec.TagOK)
	if !b.settle(file).Finished || len(b.Reports()) != 1 {
		t.Errorf("it is not finished, or reported")
	}
}

// A copy for the null sender has it, too; those of other senders go in another one.
func TestRerouteKeepsSendersApart(t *testing.T) {
	b := clockBox(t, storetest.Conf)
	file := b.Queue("<>", storetest.Rcpt{Line: "smtp h x@h", EnvID: "A"}, storetest.Rcpt{Line: "smtp h y@h", EnvID: "B"})
	b.Ordered(operations.Reroute(b.Request(file), file))(2)
	list := b.copies()
	if len(list) != 2 || list[0].From != "" || !list[0].HasFrom || list[0].EnvID == list[1].EnvID {
		t.Fatalf("got %d copies", len(list))
	}
	if !b.settle(file).Finished {
		t.Error("it is not finished")
	}
	if _, err := operations.Reroute(operations.Request{PostOffice: b.PO, Now: b.Now}, file); !errors.Is(err, operations.ErrMoved) {
		t.Errorf("got %v, want ErrMoved", err)
	}
}

const holdConf = "*/*\n\tinterval=1m expiry=3d\nsmtp/*\n\tcommand=\"ta $channel\"\n"

// M11, classes timeout and age: the recipient on hold, and no other, is routed again when
// the time has come.
func TestHoldChannelWaitsForATime(t *testing.T) {
	b := clockBox(t, holdConf)
	at := b.Now.Add(2 * time.Hour).Truncate(time.Second)
	for name, host := range map[string]string{"TIMEOUT": "TIMEOUT:" + strconv.FormatInt(at.Unix(), 10), "age": "age:2h", "AGE in seconds": "AGE:7200"} {
		t.Run(name, func(t *testing.T) {
			b := clockBox(t, holdConf)
			start := b.Now
			file := b.Queue("a@b", storetest.Rcpt{Line: "hold " + host + " x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
			l := b.load(file)
			if wait := l.Look.Sub(start); l.Held != 1 || wait > 2*time.Hour+time.Second || wait < 2*time.Hour-time.Second {
				t.Fatalf("held %d, looked at in %v, want 2h", l.Held, wait)
			}
			b.Now = start.Add(2*time.Hour - time.Minute)
			if s := b.settle(file); s.Expired != 0 || len(b.copies()) != 0 {
				t.Errorf("too early: %+v", s)
			}
			b.Now = start.Add(2*time.Hour + 2*time.Second)
			if s := b.settle(file); s.Expired != 1 || storetest.Tags(b.Parse(file)) != "+ " {
				t.Errorf("got %+v, tags %q", s, storetest.Tags(b.Parse(file)))
			}
			if list := b.copies(); len(list) != 1 || len(list[0].Recipients) != 1 || list[0].Recipients[0].Address != "x@h" {
				t.Errorf("copies: %+v", list)
			}
			b.WantLog("msg=rerouted", "rcpt=x@h", "channel=hold")
		})
	}
}

// A way that leads back to hold is taken once an interval, and ends with the message's
// time.
func TestHoldInACircleExpires(t *testing.T) {
	b := clockBox(t, holdConf)
	file := b.Queue("a@b", storetest.Rcpt{Line: "hold timeout:1 x@h"})
	if l := b.load(file); l.Look.Sub(b.Now).Round(time.Second) != time.Minute {
		t.Errorf("looked at in %v, want an interval", l.Look.Sub(b.Now))
	}
	b.Now = b.Now.Add(73 * time.Hour)
	if s := b.settle(file); s.Expired != 1 || len(b.copies()) != 0 {
		t.Errorf("got %+v and %d copies, want it expired", s, len(b.copies()))
	}
}

func TestConditionsThatCannotBeReadAreTold(t *testing.T) { // Z8
	for _, host := range []string{"wait", "timeout:soon", "age:long", "io:relative", "ns:", "ns:a..b/A", "ns:x/NOTYPE", "script:x"} {
		b := clockBox(t, holdConf)
		file := b.Queue("a@b", storetest.Rcpt{Line: "hold " + host + " x@h"})
		if l := b.load(file); l.Held != 1 {
			t.Errorf("%s: held %d", host, l.Held)
		}
		b.WantLog("level=ERROR", "unknown-channel", "rcpt=x@h")
	}
}

// settledWhen settles until a condition that is looked at beside it is known to hold.
func (b *box) settledWhen(file string) {
	b.T.Helper()
	for range 5 {
		b.Now = b.Now.Add(time.Second)
		if s := b.settle(file); s.Finished || s.Expired > 0 {
			return
		}
		b.spool.asked.asking.Wait()
	}
	b.T.Fatal("it is never routed again")
}

// M11, class io: the file can be read again.
func TestHoldChannelWaitsForAFile(t *testing.T) {
	b, dir := diskBox(t)
	b.spool.Conf = mustConf(t, holdConf)
	path := filepath.Join(dir, "Table")
	file := b.Queue("a@b", storetest.Rcpt{Line: "hold io:" + path + " x@h"})
	b.Now = b.Now.Add(2 * time.Minute)
	for range 3 {
		if s := b.settle(file); s.Expired != 0 || s.Look.IsZero() {
			t.Errorf("without the file: %+v", s)
		}
		b.spool.asked.asking.Wait()
	}
	assert.Must(t, os.WriteFile(path, []byte("x"), 0o644))
	b.Now = b.Now.Add(2 * time.Minute)
	b.settledWhen(file)
	assert.Equal(t, len(b.copies()), 1, "copies")
}

// An answer is used however short the interval is: what is asked beside everything else
// has come when it is looked at again, and is not asked for anew.
func TestHoldWithAShortIntervalEnds(t *testing.T) {
	b, dir := diskBox(t)
	b.spool.Conf = mustConf(t, strings.ReplaceAll(holdConf, "interval=1m", "interval=1s"))
	path := filepath.Join(dir, "flag")
	assert.Must(t, os.WriteFile(path, []byte("x"), 0o644))
	file := b.Queue("a@b", storetest.Rcpt{Line: "hold io:" + path + " x@h"})
	b.Now = b.Now.Add(2 * time.Second)
	s := b.settle(file)
	b.spool.asked.asking.Wait()
	b.Now = s.Look
	if s = b.settle(file); !s.Finished || len(b.copies()) != 1 {
		t.Errorf("got %+v and %d copies, want it routed again at the second look", s, len(b.copies()))
	}
}

// M11, class ns: a name server that says yes or no ends the wait, one that cannot say does
// not.
func TestHoldChannelWaitsForANameServer(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	assert.Must(t, err)
	rcode := make(chan int, 100)
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, <-rcode))
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	for name, answer := range map[string]int{"yes": dns.RcodeSuccess, "no": dns.RcodeNameError} {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			b.spool.Conf = mustConf(t, holdConf)
			b.spool.Resolver = conn.LocalAddr().String()
			file := b.Queue("a@b", storetest.Rcpt{Line: "hold NS:far.example/MX x@h"})
			b.Now = b.Now.Add(2 * time.Minute)
			rcode <- dns.RcodeServerFailure
			b.settle(file)
			b.spool.asked.asking.Wait()
			if s := b.settle(file); s.Expired != 0 {
				t.Errorf("SERVFAIL is an answer: %+v", s)
			}
			rcode <- answer
			b.Now = b.Now.Add(2 * time.Minute)
			b.settledWhen(file)
			assert.Equal(t, len(b.copies()), 1, "copies")
		})
	}
}

// Z22: notbefore names a header field with the time of the first attempt, minage says how
// old the message is then; that time does not count for its age.
func TestNotBeforeAGivenTime(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	date := func(after time.Duration) string { return now.Add(after).Format(time.RFC1123Z) }
	for name, tt := range map[string]struct {
		setting, header string
		wait            time.Duration
		log             string
	}{
		"neither":           {"", "Deferred-Delivery: " + date(time.Hour), 0, ""},
		"in an hour":        {"notbefore=Deferred-Delivery", "deferred-delivery: " + date(time.Hour), time.Hour, ""},
		"no such field":     {"notbefore=Deferred-Delivery", "X: y", 0, ""},
		"in the past":       {"notbefore=Deferred-Delivery", "Deferred-Delivery: " + date(-time.Hour), 0, ""},
		"no date":           {"notbefore=Deferred-Delivery", "Deferred-Delivery: tomorrow", 0, "date-ignored"},
		"in half a year":    {"notbefore=Deferred-Delivery", "Deferred-Delivery: " + date(4000*time.Hour), 0, "date-ignored"},
		"minage":            {"minage=10m", "X: y", 10 * time.Minute, ""},
		"the later of both": {"minage=2h notbefore=Deferred-Delivery", "Deferred-Delivery: " + date(time.Hour), 2 * time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := clockBox(t, "smtp/*\n\tinterval=1m expiry=3d "+tt.setting+"\n\tcommand=\"ta $channel\"\n")
			b.Now = now
			file, err := storetest.QueueWith(b.PO, "a@b", storetest.Header+tt.header+"\n", "x\n", []storetest.Rcpt{{Line: "smtp h x@h"}})
			assert.Must(t, err)
			w := b.load(file).Open[0]
			wait := time.Duration(0)
			if !w.Next.IsZero() {
				wait = w.Next.Sub(now)
			}
			// It came in within a second of now, and the header has whole seconds.
			near := func(d time.Duration) bool { return (d - tt.wait).Abs() < 3*time.Second }
			if !near(wait) || !near(w.Away) {
				t.Errorf("waits %v, of which %v do not count, want %v", wait, w.Away, tt.wait)
			}
			// A restart goes by what was written then, whatever the clause says now.
			b.spool.Conf = mustConf(t, "smtp/*\n\tinterval=1m expiry=3d\n\tcommand=\"ta $channel\"\n")
			if again := b.load(file).Open[0]; again.Next.Sub(w.Next).Abs() > time.Second || !near(again.Away) || again.Attempts != 0 {
				t.Errorf("after a restart: %+v, want %+v", again, w)
			}
			if tt.log != "" {
				b.WantLog(tt.log)
			} else if strings.Contains(b.Log.String(), "date-ignored") {
				t.Error(b.Log)
			}
		})
	}
}
