package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// M16
func TestLoadGivesOpenRecipientsByThread(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp B.example x@b.example"}, storetest.Rcpt{Line: "smtp a.example x@a.example"},
		storetest.Rcpt{Line: "smtp b.example y@b.example"}, storetest.Rcpt{Line: "local joe joe@here"}, storetest.Rcpt{Line: "smtp a.example done@a.example"})
	b.Mark(name, 4, "", workspec.TagOK)
	l := b.load(name)
	var got []string
	for _, w := range l.Open {
		got = append(got, w.Channel+" "+w.Host+" "+w.Address)
	}
	want := "local joe joe@here, smtp a.example x@a.example, smtp B.example x@b.example, smtp b.example y@b.example"
	assert.Equal(t, strings.Join(got, ", "), want)
	info, err := os.Stat(b.PO.FS().(*durable.OS).Dir() + "/queue/" + name)
	if err != nil || l.ID.Time() != info.ModTime() || l.Number != l.ID.Ino {
		t.Errorf("got %v %d, want the message's time %v (%v)", l.ID, l.Number, info.ModTime(), err)
	}
	if want := l.ID.Time().Add(4 * time.Hour); !l.Look.Equal(want) {
		t.Errorf("looks again at %v, want the report time %v", l.Look, want)
	}
}

// M16: recorded specifications of ZMailer are taken over in mid-way.
func TestRecordedSpecificationsLoad(t *testing.T) {
	tests := map[string]int{"01-single": 1, "02-multi": 4, "04-dsn": 2, "05-fail": 2, "06-defer": 2}
	for sample, want := range tests {
		t.Run(sample, func(t *testing.T) {
			b, dir := diskBox(t)
			spec, err := os.ReadFile(filepath.Join("../../..", "workspec", "testdata", "samples", sample, "transport-before"))
			assert.Must(t, err)
			name := storetest.Plant(t, dir, "", spec)
			l := b.load(name)
			if len(l.Open) != want || l.Name != name {
				t.Errorf("got %d open of %s, want %d", len(l.Open), l.Name, want)
			}
		})
	}
}

// M17
func TestUnknownFormatIsLeftAlone(t *testing.T) {
	b, dir := diskBox(t)
	text := "@ 0x00000083\ni 4711\no 10\ns local a a 1\nr           smtp h u 1\nm\nA: b\n\n"
	name := storetest.Plant(t, dir, "", []byte(text))
	if _, err := b.spool.Load(name); !errors.Is(err, workspec.ErrUnknownFormat) {
		t.Errorf("got %v, want ErrUnknownFormat", err)
	}
	assert.Equal(t, b.Read("transport/"+name), text, "the file")
}

func TestCorruptSpecificationIsLeftAlone(t *testing.T) {
	b, dir := diskBox(t)
	text := "@ 0x00000003\ni 4711\no 10\nsnonsense\n"
	name := storetest.Plant(t, dir, "", []byte(text))
	var bad *workspec.SyntaxError
	if _, err := b.spool.Load(name); !errors.As(err, &bad) {
		t.Errorf("got %v, want a *workspec.SyntaxError", err)
	}
	assert.Equal(t, b.Read("transport/"+name), text, "the file")
}

func TestIncompleteSpecificationIsRoutedAgain(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	path := filepath.Join(dir, "transport", name)
	text := b.Read("transport/" + name)
	assert.Must(t, os.WriteFile(path, []byte(text[:len(text)/2]), 0o600))
	if l := b.load(name); !l.Gone {
		t.Errorf("got %+v", l)
	}
	storetest.Gone(t, b.FS, name)
	if len(b.List("router")) != 1 {
		t.Errorf("router/ holds %v", b.List("router"))
	}
	b.WantLog("recovered", "rerouted", "not complete")
}

func TestSpecificationWithoutMessageIsFinished(t *testing.T) {
	for _, open := range []bool{true, false} {
		b, dir := diskBox(t)
		name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h lost@h"})
		if !open {
			b.Mark(name, 0, "", workspec.TagOK)
		}
		assert.Must(t, os.Remove(filepath.Join(dir, "queue", name)))
		l, err := b.spool.Load(name)
		switch {
		case !open && (err != nil || !l.Gone):
			t.Errorf("got %+v, %v", l, err)
		case open && !errors.Is(err, ErrMessageGone):
			t.Errorf("got %+v, %v; want ErrMessageGone", l, err)
		case open:
			b.Read("transport/" + name) // it waits
			assert.NoError(t, b.spool.Abandon(name))
			if got := b.List("quarantine"); len(got) != 1 || got[0] != "transport."+name+".message-gone" {
				t.Errorf("quarantine/ holds %q", got)
			}
		}
		storetest.Gone(t, b.FS, name)
		if got := strings.Contains(b.Log.String(), "message-lost"); got != open {
			t.Errorf("open %v: logged %s", open, b.Log)
		}
	}
}

// M18
func TestLocksOfDeadOwnersAreReleased(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h dead@h"}, storetest.Rcpt{Line: "smtp h alive@h"}, storetest.Rcpt{Line: "smtp h free@h"})
	alive := b.agent()
	dead, err := b.PO.Owners.Take("test-agent")
	assert.Must(t, err)
	b.Lock(name, 0, dead.Number())
	b.Lock(name, 1, alive)
	// What a kill leaves: the file without its lock.
	assert.Must(t, dead.Release())
	assert.Must(t, os.WriteFile(filepath.Join(b.FS.(*durable.OS).Dir(), "owners", "1"), nil, 0o644))
	l := b.load(name)
	got := map[string]bool{}
	for _, w := range l.Open {
		got[w.Address] = w.Locked
	}
	if len(got) != 3 || got["dead@h"] || !got["alive@h"] || got["free@h"] {
		t.Errorf("locked: %v, want alive@h alone", got)
	}
	s := b.Parse(name)
	if storetest.Tags(s) != " ~ " || len(s.History) != 1 || s.History[0].Event != workspec.EventUnlocked ||
		s.History[0].Recipient != storetest.OffsetOf(s, 0) || s.History[0].Get("owner") == "" {
		t.Errorf("tags %q, history %+v", storetest.Tags(s), s.History)
	}
	b.WantLog("recovered", "unlocked", "dead@h")
}

// M49: channels that no agent serves.
func TestChannelsWithoutAgent(t *testing.T) {
	tests := map[string]struct {
		line, notary string
		tag          string
		code         string // of the diagnostic; "" if there is none
		held         int
		log          []string
	}{
		"no such user":         {"error nouser x@h", "", "-", "5.1.1", 0, []string{"failed", "status=5.1.1"}},
		"bad address":          {"error badaddress x@h", "", "-", "5.1.3", 0, []string{"failed", "status=5.1.3"}},
		"routing loop":         {"error loop x@h", "", "-", "5.4.6", 0, []string{"failed", "status=5.4.6"}},
		"loop with its chain":  {"error loop:a+20->+20b+20->+20a x@h", "", "-", "5.4.6", 0, []string{"failed", "status=5.4.6", "itself: a -> b -> a"}},
		"refused with a code":  {"error 5.7.1:not+20you x@h", "", "-", "5.7.1", 0, []string{"failed", "status=5.7.1", `reply="not you"`}},
		"code that is no end":  {"error 4.2.2 x@h", "", "-", "5.2.2", 0, []string{"failed", "status=5.2.2"}},
		"text that is broken":  {"error closed:+2 x@h", "", "-", "5.0.0", 0, []string{"failed", "cannot be delivered: closed: +2"}},
		"no relay":             {"error norelay x@h", "", "-", "5.7.1", 0, []string{"failed", "status=5.7.1"}},
		"other error":          {"error strange x@h", "", "-", "5.0.0", 0, []string{"failed", "strange"}},
		"bitbucket":            {"bitbucket - /dev/null", "", "+", "", 0, []string{"delivered", "bitbucket"}},
		"bitbucket, told":      {"bitbucket - /dev/null", "NOTIFY=SUCCESS", "+", "2.0.0", 0, []string{"delivered"}},
		"hold":                 {"hold timeout:1 x@h", "", " ", "", 1, nil},
		"unknown channel (Z8)": {"uucp far x@h", "", " ", "", 1, []string{"level=ERROR", "unknown-channel", "x@h"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.Queue("a@b", storetest.Rcpt{Line: tt.line, Notary: tt.notary}, storetest.Rcpt{Line: "smtp h other@h"})
			l := b.load(file)
			if l.Held != tt.held || len(l.Open) != 1 {
				t.Errorf("held %d, open %d", l.Held, len(l.Open))
			}
			s := b.Parse(file)
			assert.Equal(t, storetest.Tags(s), tt.tag+" ", "tags")
			code := ""
			if len(s.Diagnostics) > 0 {
				code = s.Diagnostics[0].Notary.Status
			}
			assert.Equal(t, code, tt.code, "diagnostics %+v", s.Diagnostics)
			if tt.log != nil {
				b.WantLog(tt.log...)
			}
			// A second look finds nothing more to decide.
			before := b.Read("transport/" + file)
			b.load(file)
			if after := b.Read("transport/" + file); after != before {
				t.Errorf("loaded again, the file changed:\n%s", after[len(before):])
			}
		})
	}
}

// M21
func TestRehashWhenLoading(t *testing.T) {
	f, _ := storetest.Disk(t)
	old := newBoxConf(t, f, 2, storetest.Conf)
	free := old.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	held := old.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	if strings.Count(free, "/") != 2 {
		t.Fatalf("queued as %s", free)
	}
	old.Lock(held, 0, old.agent())
	for levels, slashes := range map[int]int{0: 0, 1: 1} {
		b := openBox(t, f, levels, storetest.Conf)
		l := b.load(free)
		if strings.Count(l.Name, "/") != slashes {
			t.Errorf("%d levels: moved to %s", levels, l.Name)
		}
		free = l.Name
		b.Read("queue/" + l.Name)
		b.Read("transport/" + l.Name)
		if l := b.load(held); l.Name != held {
			t.Errorf("%s was moved to %s while an agent works on it", held, l.Name)
		}
	}
}

// A5: what a deferral decided is read back.
func TestDeferralSurvivesARestart(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
	s := b.Parse(name)
	next := b.Now.Add(7 * time.Minute)
	err := b.record(name, []Outcome{
		{Offset: storetest.OffsetOf(s, 0), Result: thread.Deferred, Attempt: 3, Next: next, Text: "\n<<- RCPT TO:<x@h>\n->> 450 4.2.1 later",
			Notary: workspec.Notary{Status: "4.2.1 (comment)"}},
		{Offset: storetest.OffsetOf(s, 1), Result: thread.HostDeferred, Attempt: 1, Next: next, HostTries: 2, Text: "connection refused"}})
	assert.Must(t, err)
	l := b.load(name)
	x, y := l.Open[0], l.Open[1]
	if x.Attempts != 3 || !x.Next.Equal(next) || x.HostTries != 0 {
		t.Errorf("got %+v", x)
	}
	if y.Attempts != 1 || !y.Next.Equal(next) || y.HostTries != 2 || y.HostText != "connection refused" {
		t.Errorf("got %+v", y)
	}
	if e := b.Parse(name).History[0]; e.Get("status") != "4.2.1" || e.Text != "450 4.2.1 later" {
		t.Errorf("got event %+v", e)
	}
}

// Words ok and error leave diagnostics to the scheduler.
func TestOutcomeThatTheAgentDidNotWriteDown(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h failed@h"}, storetest.Rcpt{Line: "smtp h told@h", Notary: "NOTIFY=SUCCESS"},
		storetest.Rcpt{Line: "smtp h untold@h"}, storetest.Rcpt{Line: "smtp h marked@h"})
	b.Mark(name, 3, "failed", workspec.TagFailed)
	s := b.Parse(name)
	list := []Outcome{
		{Offset: storetest.OffsetOf(s, 0), Result: thread.Failed, Text: "550 no", Notary: workspec.Notary{Status: "5.1.1", Remote: "dns; h"}},
		{Offset: storetest.OffsetOf(s, 1), Result: thread.Delivered, Text: "250 ok", Notary: workspec.Notary{Action: "relayed", Status: "2.1.5"}},
		{Offset: storetest.OffsetOf(s, 2), Result: thread.Delivered, Text: "250 ok"},
		{Offset: storetest.OffsetOf(s, 3), Result: thread.Failed, Text: "550 no"},
	}
	assert.Must(t, b.record(name, list))
	s = b.Parse(name)
	assert.Equal(t, storetest.Tags(s), "-++-", "tags")
	var got []string
	for _, d := range s.Diagnostics {
		got = append(got, d.Notary.Address+" "+d.Notary.Action+" "+d.Notary.Status)
	}
	if want := "marked@h failed 5.1.1,failed@h failed 5.1.1,told@h relayed 2.1.5"; strings.Join(got, ",") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if err := b.record(name, list); err != nil || len(b.Parse(name).Diagnostics) != 3 {
		t.Errorf("recorded again: %v, %d diagnostics", err, len(b.Parse(name).Diagnostics))
	}
}

// M27, S6: expiry fails a recipient with its last answer.
func TestExpiredRecipientFailsWithItsLastAnswer(t *testing.T) {
	tests := map[string]struct {
		deferred bool
		said     string
		code     string // in the log
		reported string // RFC 3464 Status
		text     string
	}{
		"tried":              {true, "", "4.4.7", "4.2.1", "450 4.2.1 later"},
		"its host was tried": {false, "connection refused", "4.4.7", "4.4.7", "connection refused"},
		"its host has said":  {false, "421 4.7.0 busy", "4.4.7", "4.7.0", "smtp; 421 4.7.0 busy"},
		"never tried":        {false, "", "5.4.7", "5.4.7", "not delivered in"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBox(t)
			file := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
			off := storetest.OffsetOf(b.Parse(file), 0)
			if tt.deferred {
				assert.Must(t, b.record(file, []Outcome{{Offset: off, Result: thread.Deferred, Attempt: 1, Next: b.Now, Text: "450 4.2.1 later"}}))
			}
			b.Now = b.Now.Add(73 * time.Hour)
			held, err := b.expire(file, []int64{off}, tt.said)
			if err != nil || len(held) > 0 {
				t.Fatal(held, err)
			}
			s := b.Parse(file)
			d := s.Diagnostics[len(s.Diagnostics)-1]
			if storetest.Tags(s) != "-" || d.Notary.Status != tt.reported || d.Notary.Action != "failed" || !strings.Contains(d.Notary.Diagnostic, tt.text) || !strings.Contains(d.Text, strings.TrimPrefix(tt.text, "smtp; ")) {
				t.Errorf("tags %q, diagnostic %+v", storetest.Tags(s), d)
			}
			b.WantLog("expired", "x@h", "status="+tt.code)
			// Once: a second call finds it failed.
			if _, err := b.expire(file, []int64{off}, tt.said); err != nil || len(b.Parse(file).Diagnostics) != 1 {
				t.Errorf("expired again: %v, %d diagnostics", err, len(b.Parse(file).Diagnostics))
			}
		})
	}
}

func TestExpiryLeavesARecipientThatAnAgentHolds(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	b.Lock(name, 0, b.agent())
	held, err := b.expire(name, []int64{storetest.OffsetOf(b.Parse(name), 0)}, "")
	if err != nil || len(held) != 1 || storetest.Tags(b.Parse(name)) != "~" {
		t.Errorf("got %v, %v, tags %q", held, err, storetest.Tags(b.Parse(name)))
	}
}

// M14: a specification without recipients asks for a host to be tried.
func TestETRNFileIsTakenAndRemoved(t *testing.T) {
	b, dir := diskBox(t)
	path := filepath.Join(dir, "transport", "4711")
	assert.Must(t, os.WriteFile(path, []byte("@ 0x00000003\ni 4711\nT site.example\n"), 0o644))
	l := b.load("4711")
	if !l.Gone || len(l.Start) != 1 || l.Start[0] != "site.example" || len(b.List("transport")) != 0 {
		t.Errorf("got %+v, left %v", l, b.List("transport"))
	}
}

// K1: every step succeeds, or errs and can be done again, on both disks.
func TestEveryStepErrsOrSucceeds(t *testing.T) {
	steps := func(b *box, name string, off int64) []error {
		_, e1 := b.spool.Load(name)
		e2 := b.record(name, []Outcome{{Offset: off, Result: thread.Deferred, Attempt: 1, Next: b.Now}})
		_, e3 := b.expire(name, []int64{off}, "x")
		_, e4 := b.spool.Settle(name, nil)
		return []error{e1, e2, e3, e4}
	}
	disk, _ := diskBox(t)
	name := disk.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	assert.Must(t, errors.Join(steps(disk, name, storetest.OffsetOf(disk.Parse(name), 0))...))
	storetest.Gone(t, disk.FS, name)
	for cut := 0; ; cut++ {
		f := cutfs.New()
		b := newBox(t, f)
		name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
		off := storetest.OffsetOf(b.Parse(name), 0)
		f.CutAfter(cut)
		err := errors.Join(steps(b, name, off)...)
		if !f.Dead() {
			assert.Must(t, err)
			break
		}
		if !errors.Is(err, cutfs.ErrCut) {
			t.Fatalf("cut after %d: got %v, want the disk's error", cut, err)
		}
	}
}

// K10
func TestVanishedFilesAreErrGone(t *testing.T) {
	b, _ := diskBox(t)
	_, e1 := b.spool.Load("999")
	e2 := b.record("999", []Outcome{{Offset: 1}})
	_, e3 := b.expire("999", []int64{1}, "")
	_, e4 := b.spool.Settle("999", nil)
	for i, err := range []error{e1, e2, e3, e4} {
		if !errors.Is(err, postoffice.ErrGone) {
			t.Errorf("call %d: got %v, want ErrGone", i, err)
		}
	}
}

func TestLastLineOfADialogue(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"one line":       {"550 no", "550 no"},
		"dialogue":       {"\n<<- RCPT\n->> 550 5.1.1 no", "550 5.1.1 no"},
		"trailing blank": {"250 ok\n\n", "250 ok"},
		"nothing":        {"\n\n", ""},
		"empty":          {"", ""},
	}
	for name, tt := range tests {
		assert.Equal(t, thread.LastLine(tt.text), tt.want, name)
	}
}

// An agent that could not mark what it has delivered leaves its lock and says so: the
// scheduler sets the tag, over the lock of an owner that lives.
func TestDeliveryThatItsAgentCouldNotMarkIsMarked(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h one@h"})
	b.Lock(name, 0, os.Getpid())
	off := storetest.OffsetOf(b.Parse(name), 0)
	for range 2 { // again, as after a change that failed in the middle
		assert.Must(t, b.record(name, []Outcome{{Offset: off, Result: thread.Delivered, Text: "250 2.0.0 Ok"}}))
		if got := b.Parse(name).Groups[0].Recipients[0]; got.Tag != workspec.TagOK || got.Owner != 0 {
			t.Errorf("got tag %q of owner %d, want it delivered", got.Tag, got.Owner)
		}
	}
}

// K4 K9: the number of a dead agent is given back when its locks are, and not before.
func TestNumberOfADeadAgentIsGivenBackAfterItsLocks(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	b.Lock(name, 0, 4711)
	number := filepath.Join(dir, "owners", "4711")
	assert.Must(t, os.WriteFile(number, nil, 0o644))
	looks := func(wantThere bool) {
		t.Helper()
		for range 2 {
			b.spool.Sweep()
		}
		if _, err := os.Stat(number); (err == nil) != wantThere {
			t.Errorf("owners/4711: got %v, want it there: %v", err, wantThere)
		}
	}
	looks(true)
	if _, err := b.spool.Load(name); err != nil {
		t.Fatal(err)
	}
	b.WantLog("action=unlocked", "owner=4711")
	looks(false)
	b.WantLog("action=swept", "name=owners/4711")
}

// Z8: a recipient that no clause serves is logged at every start. Its history has that once,
// and once that a clause serves it again.
func TestUnservedRecipientIsHeldUntilAClauseServesIt(t *testing.T) {
	b, _ := diskBox(t)
	file := b.Queue("a@b", storetest.Rcpt{Line: "uucp far x@h"}, storetest.Rcpt{Line: "smtp h other@h"})
	reopen := func(conf string) {
		b = openBox(t, b.FS, 0, conf)
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
		assert.Equal(t, e.Recipient, storetest.OffsetOf(s, 0), "bytes of an event: %+v", e)
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

func TestNextAttemptIsNeverFurtherAwayThanWasDecided(t *testing.T) {
	at := time.UnixMilli(2e12)
	tests := map[string]struct{ wait, passed, want time.Duration }{
		"while it waits":        {time.Hour, 20 * time.Minute, 40 * time.Minute},
		"over":                  {time.Hour, 2 * time.Hour, -time.Hour},
		"clock set back a day":  {time.Hour, -24 * time.Hour, time.Hour},
		"clock set back a bit":  {time.Hour, -time.Second, time.Hour},
		"clock set forward":     {time.Hour, 24 * time.Hour, -23 * time.Hour},
		"asked for by the host": {9 * time.Hour, -24 * time.Hour, 9 * time.Hour},
	}
	for name, tt := range tests {
		line := workspec.AppendEvent(nil, &workspec.Event{Time: at, Recipient: 1, Event: workspec.EventDeferred,
			Attrs: []workspec.Attr{{Key: "next", Value: fmt.Sprint(at.Add(tt.wait).UnixMilli())}}})
		spec, err := workspec.Parse(append([]byte("i 7-1\n"), line...))
		if err != nil || len(spec.History) != 1 {
			t.Fatalf("%s: %v, %d lines", name, err, len(spec.History))
		}
		now := at.Add(tt.passed)
		assert.Equal(t, nextOf(&spec.History[0], now).Sub(now), tt.want, name)
	}
}

// M36: failures that were gathered before the clock was set back are reported, not kept
// for a day.
func TestReportIntervalEndsWhenTheClockIsSetBack(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"}, storetest.Rcpt{Line: "smtp h y@h"})
	err := b.record(name, []Outcome{{Offset: storetest.OffsetOf(b.Parse(name), 0), Result: thread.Failed, Text: "550 5.1.1 no"}})
	assert.Must(t, err)
	settle := func(want int) {
		t.Helper()
		if _, err := b.spool.Settle(name, nil); err != nil {
			t.Fatal(err)
		}
		assert.Equal(t, len(b.List("router")), want, "router/ reports")
	}
	b.spool.Conf.ReportInterval = time.Hour
	settle(0)
	b.Now = b.Now.Add(-24 * time.Hour)
	settle(1)
}

// K4: a report that a specification names stays; others are of a scheduler that died
// before it had named them. While a specification cannot be read, all stay.
func TestReportsThatNobodyNamesAreSwept(t *testing.T) {
	disk, dir := storetest.Disk(t)
	faulty := faultfs.New(disk)
	b := newBox(t, faulty)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	event := workspec.Event{Time: time.Now(), Event: workspec.EventReport,
		Attrs: []workspec.Attr{{Key: "file", Value: "report.1.named"}, {Key: "kind", Value: report.Failed}}}
	assert.Must(t, b.opened(name).Append(workspec.AppendEvent(nil, &event)))
	public := func(name string, mode os.FileMode) {
		t.Helper()
		assert.Must(t, os.WriteFile(filepath.Join(dir, "public", name), nil, mode))
	}
	public("report.1.named", 0o600)
	public("report.1.name", 0o600)
	public("report.1.submitted", 0o700)
	public("smtp.1.other", 0o600)
	recovered := func(want int) {
		t.Helper()
		assert.Must(t, b.spool.Recover())
		if got := b.List("public"); len(got) != want {
			t.Errorf("public/ holds %q, want %d files", got, want)
		}
	}
	rule := faulty.Fail(faultfs.Open, "transport/*", unix.EIO, 1)
	recovered(4)
	b.WantLog("level=ERROR", "recovered", "unreadable")
	assert.Equal(t, rule.Hits(), 1, "times that the specification was read")
	recovered(3)
	b.WantLog("recovered", "swept", "report.1.name")
	if _, err := os.Stat(filepath.Join(dir, "public/report.1.named")); err != nil {
		t.Error(err)
	}
}

// Own mail is what a local user has submitted or one who logged in; what has no sender is
// a report, whoever submitted it.
func TestAtk3WhoseMailItIs(t *testing.T) {
	null := workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "65534"}
	outside := workspec.Sender{Channel: "local", Address: "x@far.example", Privilege: "65534"}
	local := workspec.Sender{Channel: "local", Address: "bob@mta.example", Privilege: "1000"}
	for name, c := range map[string]struct {
		own  bool
		from workspec.Sender
		want thread.Origin
	}{
		"from outside":             {false, outside, thread.Relayed},
		"from a local user":        {false, local, thread.Own},
		"from one who logged in":   {true, outside, thread.Own},
		"a report":                 {false, null, thread.Report},
		"a report of one's own":    {true, null, thread.Report},
		"of a program like sample": {false, workspec.Sender{Channel: "smtp", Address: "x@far.example"}, thread.Relayed},
	} {
		spec := &workspec.Spec{Own: c.own, Groups: []workspec.Group{{Sender: c.from}}}
		assert.Equal(t, whoseMail(spec), c.want, name)
	}
	one := &work{spec: &workspec.Spec{Groups: []workspec.Group{{Sender: outside}}}}
	other := &work{spec: &workspec.Spec{Own: true, Groups: []workspec.Group{{Sender: outside}}}}
	a, b := &thread.Message{Sender: senderKey(one.spec)}, &thread.Message{Sender: senderKey(other.spec)}
	if !a.SameSender(b) || a.Origin() == b.Origin() {
		t.Errorf("origins %v and %v of one sender", a.Origin(), b.Origin())
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
			done := []Outcome{{Offset: list[0].Offset, Result: thread.Delivered}}
			if tt.finished {
				done = append(done, Outcome{Offset: list[1].Offset, Result: thread.Delivered})
			}
			if _, err := b.spool.Record(name, done); err != nil {
				t.Fatal(err)
			}
			if tt.known {
				b.spool.Ledger.Done(id, tt.want)
			}
			assert.Must(t, os.Remove(filepath.Join(dir, "queue", name)))
			// The number is given to the next message.
			younger := postoffice.SpoolID{Ino: id.Ino, MTime: b.Now.Add(time.Hour).UnixNano()}
			b.spool.Ledger.Routed(younger, 1, false)
			assert.Must(t, b.spool.Abandon(name))
			if got := b.LedgerRecord(id); got.End != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got := b.LedgerRecord(younger); !got.Open() {
				t.Errorf("the message that has the number now: got %+v", got)
			}
		})
	}
}
