package scheduler

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// M16
func TestLoadGivesOpenRecipientsByThread(t *testing.T) {
	b, _ := diskBox(t)
	name := b.queue("a@b", rcpt{line: "smtp B.example x@b.example"}, rcpt{line: "smtp a.example x@a.example"},
		rcpt{line: "smtp b.example y@b.example"}, rcpt{line: "local joe joe@here"}, rcpt{line: "smtp a.example done@a.example"})
	b.agentMarks(name, 4, "", workspec.TagOK)
	l := b.load(name)
	var got []string
	for _, w := range l.Open {
		got = append(got, w.Channel+" "+w.Host+" "+w.Address)
	}
	want := "local joe joe@here, smtp a.example x@a.example, smtp B.example x@b.example, smtp b.example y@b.example"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("got %s\nwant %s", s, want)
	}
	info, err := os.Stat(b.po.FS().(*durable.OS).Dir() + "/queue/" + name)
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
			spec, err := os.ReadFile(filepath.Join("../..", "workspec", "testdata", "samples", sample, "transport-before"))
			if err != nil {
				t.Fatal(err)
			}
			name := plant(t, dir, "", spec)
			l := b.load(name)
			if len(l.Open) != want || l.Name != name {
				t.Errorf("got %d open of %s, want %d", len(l.Open), l.Name, want)
			}
		})
	}
}

// plant puts a specification and a message of that name into a postoffice.
func plant(t *testing.T, dir, sub string, spec []byte) string {
	t.Helper()
	s, err := workspec.Parse(spec)
	name := "4711"
	if err == nil && s.Message != "" {
		name = s.Message
	}
	for top, text := range map[string]string{"queue": strings.Repeat("x\n", 600), "transport": string(spec)} {
		if err := os.MkdirAll(filepath.Join(dir, top, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, top, sub, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(sub, name)
}

// M17
func TestUnknownFormatIsLeftAlone(t *testing.T) {
	b, dir := diskBox(t)
	text := "@ 0x00000083\ni 4711\no 10\ns local a a 1\nr           smtp h u 1\nm\nA: b\n\n"
	name := plant(t, dir, "", []byte(text))
	if _, err := b.spool.Load(name); !errors.Is(err, workspec.ErrUnknownFormat) {
		t.Errorf("got %v, want ErrUnknownFormat", err)
	}
	if got := b.read("transport/" + name); got != text {
		t.Errorf("the file was changed: %q", got)
	}
}

func TestCorruptSpecificationIsLeftAlone(t *testing.T) {
	b, dir := diskBox(t)
	text := "@ 0x00000003\ni 4711\no 10\nsnonsense\n"
	name := plant(t, dir, "", []byte(text))
	var bad *workspec.SyntaxError
	if _, err := b.spool.Load(name); !errors.As(err, &bad) {
		t.Errorf("got %v, want a *workspec.SyntaxError", err)
	}
	if got := b.read("transport/" + name); got != text {
		t.Errorf("the file was changed: %q", got)
	}
}

func TestIncompleteSpecificationIsRoutedAgain(t *testing.T) {
	b, dir := diskBox(t)
	name := b.queue("a@b", rcpt{line: "smtp h x@h"})
	path := filepath.Join(dir, "transport", name)
	text := b.read("transport/" + name)
	if err := os.WriteFile(path, []byte(text[:len(text)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	if l := b.load(name); !l.Gone {
		t.Errorf("got %+v", l)
	}
	gone(t, b.fs, name)
	if len(b.list("router")) != 1 {
		t.Errorf("router/ holds %v", b.list("router"))
	}
	b.wantLog("recovered", "rerouted", "not complete")
}

func TestSpecificationWithoutMessageIsFinished(t *testing.T) {
	for _, open := range []bool{true, false} {
		b, dir := diskBox(t)
		name := b.queue("a@b", rcpt{line: "smtp h lost@h"})
		if !open {
			b.agentMarks(name, 0, "", workspec.TagOK)
		}
		if err := os.Remove(filepath.Join(dir, "queue", name)); err != nil {
			t.Fatal(err)
		}
		l, err := b.spool.Load(name)
		switch {
		case !open && (err != nil || !l.Gone):
			t.Errorf("got %+v, %v", l, err)
		case open && !errors.Is(err, ErrMessageGone):
			t.Errorf("got %+v, %v; want ErrMessageGone", l, err)
		case open:
			b.read("transport/" + name) // it waits
			if err := b.spool.Abandon(name); err != nil {
				t.Error(err)
			}
			if got := b.list("quarantine"); len(got) != 1 || got[0] != "transport."+name+".message-gone" {
				t.Errorf("quarantine/ holds %q", got)
			}
		}
		gone(t, b.fs, name)
		if got := strings.Contains(b.log.String(), "message-lost"); got != open {
			t.Errorf("open %v: logged %s", open, b.log)
		}
	}
}

// M18
func TestLocksOfDeadOwnersAreReleased(t *testing.T) {
	b, _ := diskBox(t)
	name := b.queue("a@b", rcpt{line: "smtp h dead@h"}, rcpt{line: "smtp h alive@h"}, rcpt{line: "smtp h free@h"})
	alive, err := b.po.NewOwner("test-agent")
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Release()
	dead, err := b.po.NewOwner("test-agent")
	if err != nil {
		t.Fatal(err)
	}
	b.lock(name, 0, dead.Number())
	b.lock(name, 1, alive.Number())
	// What a kill leaves: the file without its lock.
	if err := dead.Release(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.fs.(*durable.OS).Dir(), "owners", "1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l := b.load(name)
	got := map[string]bool{}
	for _, w := range l.Open {
		got[w.Address] = w.Locked
	}
	if len(got) != 3 || got["dead@h"] || !got["alive@h"] || got["free@h"] {
		t.Errorf("locked: %v, want alive@h alone", got)
	}
	s := b.parse(name)
	if tags(s) != " ~ " || len(s.History) != 1 || s.History[0].Event != workspec.EventUnlocked ||
		s.History[0].Recipient != offsetOf(s, 0) || s.History[0].Get("owner") == "" {
		t.Errorf("tags %q, history %+v", tags(s), s.History)
	}
	b.wantLog("recovered", "unlocked", "dead@h")
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
			file := b.queue("a@b", rcpt{line: tt.line, notary: tt.notary}, rcpt{line: "smtp h other@h"})
			l := b.load(file)
			if l.Held != tt.held || len(l.Open) != 1 {
				t.Errorf("held %d, open %d", l.Held, len(l.Open))
			}
			s := b.parse(file)
			if got := tags(s); got != tt.tag+" " {
				t.Errorf("tags %q, want %q", got, tt.tag+" ")
			}
			code := ""
			if len(s.Diagnostics) > 0 {
				code = s.Diagnostics[0].Notary.Status
			}
			if code != tt.code {
				t.Errorf("diagnostics %+v, want status %q", s.Diagnostics, tt.code)
			}
			if tt.log != nil {
				b.wantLog(tt.log...)
			}
			// A second look finds nothing more to decide.
			before := b.read("transport/" + file)
			b.load(file)
			if after := b.read("transport/" + file); after != before {
				t.Errorf("loaded again, the file changed:\n%s", after[len(before):])
			}
		})
	}
}

// M21
func TestRehashWhenLoading(t *testing.T) {
	f, err := durable.NewOS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old := newBoxConf(t, f, 2, testConf)
	free := old.queue("a@b", rcpt{line: "smtp h x@h"})
	held := old.queue("a@b", rcpt{line: "smtp h x@h"})
	if strings.Count(free, "/") != 2 {
		t.Fatalf("queued as %s", free)
	}
	alive, err := old.po.NewOwner("test-agent")
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Release()
	old.lock(held, 0, alive.Number())
	for levels, slashes := range map[int]int{0: 0, 1: 1} {
		b := openBox(t, f, levels, testConf)
		l := b.load(free)
		if strings.Count(l.Name, "/") != slashes {
			t.Errorf("%d levels: moved to %s", levels, l.Name)
		}
		free = l.Name
		b.read("queue/" + l.Name)
		b.read("transport/" + l.Name)
		if l := b.load(held); l.Name != held {
			t.Errorf("%s was moved to %s while an agent works on it", held, l.Name)
		}
	}
}

// A5: what a deferral decided is read back.
func TestDeferralSurvivesARestart(t *testing.T) {
	b, _ := diskBox(t)
	name := b.queue("a@b", rcpt{line: "smtp h x@h"}, rcpt{line: "smtp h y@h"})
	s := b.parse(name)
	next := b.now.Add(7 * time.Minute)
	err := b.spool.Record(name, []Outcome{
		{Offset: offsetOf(s, 0), Result: thread.Deferred, Attempt: 3, Next: next, Text: "\n<<- RCPT TO:<x@h>\n->> 450 4.2.1 later",
			Notary: workspec.Notary{Status: "4.2.1 (comment)"}},
		{Offset: offsetOf(s, 1), Result: thread.HostDeferred, Attempt: 1, Next: next, HostTries: 2, Text: "connection refused"}})
	if err != nil {
		t.Fatal(err)
	}
	l := b.load(name)
	x, y := l.Open[0], l.Open[1]
	if x.Attempts != 3 || !x.Next.Equal(next) || x.HostTries != 0 {
		t.Errorf("got %+v", x)
	}
	if y.Attempts != 1 || !y.Next.Equal(next) || y.HostTries != 2 || y.HostText != "connection refused" {
		t.Errorf("got %+v", y)
	}
	if e := b.parse(name).History[0]; e.Get("status") != "4.2.1" || e.Text != "450 4.2.1 later" {
		t.Errorf("got event %+v", e)
	}
}

// Words ok and error leave diagnostics to the scheduler.
func TestOutcomeThatTheAgentDidNotWriteDown(t *testing.T) {
	b, _ := diskBox(t)
	name := b.queue("a@b", rcpt{line: "smtp h failed@h"}, rcpt{line: "smtp h told@h", notary: "NOTIFY=SUCCESS"},
		rcpt{line: "smtp h untold@h"}, rcpt{line: "smtp h marked@h"})
	b.agentMarks(name, 3, "failed", workspec.TagFailed)
	s := b.parse(name)
	list := []Outcome{
		{Offset: offsetOf(s, 0), Result: thread.Failed, Text: "550 no", Notary: workspec.Notary{Status: "5.1.1", Remote: "dns; h"}},
		{Offset: offsetOf(s, 1), Result: thread.Delivered, Text: "250 ok", Notary: workspec.Notary{Action: "relayed", Status: "2.1.5"}},
		{Offset: offsetOf(s, 2), Result: thread.Delivered, Text: "250 ok"},
		{Offset: offsetOf(s, 3), Result: thread.Failed, Text: "550 no"},
	}
	if err := b.spool.Record(name, list); err != nil {
		t.Fatal(err)
	}
	s = b.parse(name)
	if got := tags(s); got != "-++-" {
		t.Errorf("tags %q", got)
	}
	var got []string
	for _, d := range s.Diagnostics {
		got = append(got, d.Notary.Address+" "+d.Notary.Action+" "+d.Notary.Status)
	}
	if want := "marked@h failed 5.1.1,failed@h failed 5.1.1,told@h relayed 2.1.5"; strings.Join(got, ",") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if err := b.spool.Record(name, list); err != nil || len(b.parse(name).Diagnostics) != 3 {
		t.Errorf("recorded again: %v, %d diagnostics", err, len(b.parse(name).Diagnostics))
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
			file := b.queue("a@b", rcpt{line: "smtp h x@h"})
			off := offsetOf(b.parse(file), 0)
			if tt.deferred {
				if err := b.spool.Record(file, []Outcome{{Offset: off, Result: thread.Deferred, Attempt: 1, Next: b.now, Text: "450 4.2.1 later"}}); err != nil {
					t.Fatal(err)
				}
			}
			b.now = b.now.Add(73 * time.Hour)
			held, err := b.spool.Expire(file, []int64{off}, tt.said)
			if err != nil || len(held) > 0 {
				t.Fatal(held, err)
			}
			s := b.parse(file)
			d := s.Diagnostics[len(s.Diagnostics)-1]
			if tags(s) != "-" || d.Notary.Status != tt.reported || d.Notary.Action != "failed" || !strings.Contains(d.Notary.Diagnostic, tt.text) || !strings.Contains(d.Text, strings.TrimPrefix(tt.text, "smtp; ")) {
				t.Errorf("tags %q, diagnostic %+v", tags(s), d)
			}
			b.wantLog("expired", "x@h", "status="+tt.code)
			// Once: a second call finds it failed.
			if _, err := b.spool.Expire(file, []int64{off}, tt.said); err != nil || len(b.parse(file).Diagnostics) != 1 {
				t.Errorf("expired again: %v, %d diagnostics", err, len(b.parse(file).Diagnostics))
			}
		})
	}
}

func TestExpiryLeavesARecipientThatAnAgentHolds(t *testing.T) {
	b, _ := diskBox(t)
	name := b.queue("a@b", rcpt{line: "smtp h x@h"})
	alive, err := b.po.NewOwner("test-agent")
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Release()
	b.lock(name, 0, alive.Number())
	held, err := b.spool.Expire(name, []int64{offsetOf(b.parse(name), 0)}, "")
	if err != nil || len(held) != 1 || tags(b.parse(name)) != "~" {
		t.Errorf("got %v, %v, tags %q", held, err, tags(b.parse(name)))
	}
}

// M14: a specification without recipients asks for a host to be tried.
func TestETRNFileIsTakenAndRemoved(t *testing.T) {
	b, dir := diskBox(t)
	path := filepath.Join(dir, "transport", "4711")
	if err := os.WriteFile(path, []byte("@ 0x00000003\ni 4711\nT site.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := b.load("4711")
	if !l.Gone || len(l.Start) != 1 || l.Start[0] != "site.example" || len(b.list("transport")) != 0 {
		t.Errorf("got %+v, left %v", l, b.list("transport"))
	}
}

// K1: every step succeeds, or errs and can be done again, on both disks.
func TestEveryStepErrsOrSucceeds(t *testing.T) {
	steps := func(b *box, name string) []error {
		_, e1 := b.spool.Load(name)
		s, err := workspecOf(b.po, name)
		if err != nil {
			return []error{e1, err}
		}
		e2 := b.spool.Record(name, []Outcome{{Offset: offsetOf(s, 0), Result: thread.Deferred, Attempt: 1, Next: b.now}})
		_, e3 := b.spool.Expire(name, []int64{offsetOf(s, 0)}, "x")
		_, e4 := b.spool.Settle(name, nil)
		return []error{e1, e2, e3, e4}
	}
	disk, _ := diskBox(t)
	name := disk.queue("a@b", rcpt{line: "smtp h x@h"})
	if err := errors.Join(steps(disk, name)...); err != nil {
		t.Fatal(err)
	}
	gone(t, disk.fs, name)
	for cut := 0; ; cut++ {
		f := cutfs.New()
		b := newBox(t, f)
		name := b.queue("a@b", rcpt{line: "smtp h x@h"})
		f.CutAfter(cut)
		err := errors.Join(steps(b, name)...)
		if !f.Dead() {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		if !errors.Is(err, cutfs.ErrCut) {
			t.Fatalf("cut after %d: got %v, want the disk's error", cut, err)
		}
	}
}

func workspecOf(po *postoffice.PostOffice, name string) (*workspec.Spec, error) {
	f, err := po.OpenSpec(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		return nil, err
	}
	return workspec.Parse(raw)
}

// K10
func TestVanishedFilesAreErrGone(t *testing.T) {
	b, _ := diskBox(t)
	_, e1 := b.spool.Load("999")
	e2 := b.spool.Record("999", []Outcome{{Offset: 1}})
	_, e3 := b.spool.Expire("999", []int64{1}, "")
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
		if got := lastLine(tt.text); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
