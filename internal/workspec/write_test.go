package workspec

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// written returns what Writer makes of two groups.
func written(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "4711-12", BodyOffset: 98, Verbose: "/tmp/log", Ident: "<id@example.org>",
		ErrorTo: []string{"a@example.org", "owner@example.org"}, Obsoletes: []string{"<old@example.org>"}, Start: []string{"h.example"}})
	w.Group(Sender{Channel: "local", Host: "a@example.org", Address: "a@example.org", Privilege: "1"}, []Recipient{
		{Channel: "smtp", Host: "h.example", Address: "b@h.example", Privilege: "65534",
			Notary: "NOTIFY=SUCCESS ORCPT=rfc822;b@h.example", Ret: "HDRS", EnvID: "QQ+2B1"},
		{Channel: "file", Host: "file.0", Address: "/var/spool/a file", Privilege: "0"},
	}, []byte("Received: x\n\tby y\nSubject: \x00\xff"))
	w.Group(Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "65534"}, []Recipient{
		{Channel: "local", Host: "c@example.org", Address: "c@example.org", Privilege: "1000"},
	}, nil)
	assert.Must(t, w.Close())
	return b.Bytes()
}

// largeFile returns a specification of one group.
func largeFile(t testing.TB, recipients, header int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "4711-12", BodyOffset: 98, Ident: "<id@example.org>", ErrorTo: []string{"a@example.org"}})
	w.Group(Sender{Channel: "local", Host: "a@example.org", Address: "a@example.org", Privilege: "1"},
		manyRecipients(recipients), []byte("Subject: "+strings.Repeat("x", header)+"\n"))
	assert.Must(t, w.Close())
	return b.Bytes()
}

func manyRecipients(n int) []Recipient {
	rcpts := make([]Recipient, n)
	for i := range rcpts {
		address := fmt.Sprintf("user%d@h%d.example", i, i%7)
		rcpts[i] = Recipient{Channel: "smtp", Host: fmt.Sprintf("h%d.example", i%7), Address: address, Privilege: "65534",
			Notary: "NOTIFY=FAILURE,DELAY ORCPT=rfc822;" + address}
	}
	return rcpts
}

// checkGolden compares bytes with a file, which -update rewrites.
func checkGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		assert.Must(t, os.WriteFile(name, got, 0o644))
	}
	want := assert.Get(os.ReadFile(name))(t)
	assert.Same(t, string(got), string(want))
}

// M16
func TestWriterWritesTheGoldenFile(t *testing.T) {
	got := written(t)
	checkGolden(t, "testdata/written.golden", got)
	s := mustParse(t, string(got))
	if !s.Complete || !Complete(got) || s.ZOffset == 0 || got[s.ZOffset] != 'z' {
		t.Errorf("complete %v, z at %d", s.Complete, s.ZOffset)
	}
}

// M7: a work file of a dead router is handed over only if its z line is there.
func TestEveryPrefixParsesAndOnlyTheWholeIsComplete(t *testing.T) {
	whole := written(t)
	for n := range len(whole) {
		s, err := Parse(whole[:n])
		if err != nil {
			t.Fatalf("first %d bytes: %v", n, err)
		}
		if s.Complete || Complete(whole[:n]) {
			t.Errorf("the first %d of %d bytes are complete: %q", n, len(whole), whole[max(0, n-40):n])
		}
		if torn := n > 0 && whole[n-1] != '\n'; s.Torn != torn || s.Size != int64(n) {
			t.Errorf("first %d bytes: torn %v, size %d; want %v", n, s.Torn, s.Size, torn)
		}
	}
}

func TestWrongZLineIsNotComplete(t *testing.T) {
	head := "@ 0x00000007\n" + group
	for name, c := range map[string]struct {
		tail     string
		complete bool
	}{
		"right":               {fmt.Sprintf("z %d\n", len(head)), true},
		"right, then history": {fmt.Sprintf("z %d\nh 1 0 sent\n", len(head)), true},
		"right, then another": {fmt.Sprintf("z %d\nz 4\n", len(head)), true},
		"one less":            {fmt.Sprintf("z %d\n", len(head)-1), false},
		"a hole before it":    {fmt.Sprintf("\nz %d\n", len(head)), false},
		"empty":               {"z \n", false},
		"promised only":       {"z -\n", false},
		"promised and right":  {fmt.Sprintf("z -\nz %d\n", len(head)+4), true},
		"bare":                {"z\n", false},
		"torn":                {fmt.Sprintf("z -\nz %d", len(head)+4), false},
		"wrong, then right":   {fmt.Sprintf("z 1\nz %d\n", len(head)+4), false},
		"group still open":    {fmt.Sprintf("s l - a 1\nz %d\n", len(head)+10), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustParse(t, head+c.tail)
			if s.Complete != c.complete || !s.HasZ {
				t.Errorf("complete %v, has z %v; want %v, true", s.Complete, s.HasZ, c.complete)
			}
			assert.Equal(t, Complete([]byte(head+c.tail)), c.complete, "Complete")
		})
	}
	if s := mustParse(t, head); !s.Complete || Complete([]byte(head)) {
		t.Errorf("without any z: Spec.Complete %v, Complete(b) %v; want true, false", s.Complete, !s.Complete)
	}
}

func TestValueThatWouldInjectALineIsRefused(t *testing.T) {
	sender := Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}
	rcpt := Recipient{Channel: "smtp", Host: "h", Address: "b", Privilege: "1"}
	header := []byte("Subject: x\n")
	poisons := []string{"x\nr           file file.0 /etc/passwd 0", "x\ry", "x\x00y"}
	write := func(p *Spec, s Sender, r Recipient, h []byte) error {
		w := NewWriter(io.Discard)
		w.Preamble(p)
		w.Group(s, []Recipient{r}, h)
		return w.Close()
	}
	assert.Must(t, write(&Spec{Message: "1"}, sender, rcpt, header))
	type field struct {
		name string
		at   func(p *Spec, s *Sender, r *Recipient) *string
		word bool // blanks are refused too
	}
	one := func(list *[]string) *string { *list = []string{""}; return &(*list)[0] }
	for _, f := range []field{
		{"i", func(p *Spec, _ *Sender, _ *Recipient) *string { return &p.Message }, false},
		{"l", func(p *Spec, _ *Sender, _ *Recipient) *string { return &p.Ident }, false},
		{"v", func(p *Spec, _ *Sender, _ *Recipient) *string { return &p.Verbose }, false},
		{"e", func(p *Spec, _ *Sender, _ *Recipient) *string { return one(&p.ErrorTo) }, false},
		{"x", func(p *Spec, _ *Sender, _ *Recipient) *string { return one(&p.Obsoletes) }, false},
		{"T", func(p *Spec, _ *Sender, _ *Recipient) *string { return one(&p.Start) }, false},
		{"s channel", func(_ *Spec, s *Sender, _ *Recipient) *string { return &s.Channel }, true},
		{"s host", func(_ *Spec, s *Sender, _ *Recipient) *string { return &s.Host }, true},
		{"s address", func(_ *Spec, s *Sender, _ *Recipient) *string { return &s.Address }, false},
		{"s privilege", func(_ *Spec, s *Sender, _ *Recipient) *string { return &s.Privilege }, true},
		{"r channel", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.Channel }, true},
		{"r host", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.Host }, true},
		{"r address", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.Address }, false},
		{"r privilege", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.Privilege }, true},
		{"r delay", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.Delay }, false},
		{"N", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.Notary }, false},
		{"R", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.Ret }, false},
		{"n", func(_ *Spec, _ *Sender, r *Recipient) *string { return &r.EnvID }, false},
	} {
		bad := poisons
		if f.word {
			bad = append(bad[:len(bad):len(bad)], "", "x y", " x")
		}
		for _, poison := range bad {
			p, s, r := &Spec{Message: "1"}, sender, rcpt
			*f.at(p, &s, &r) = poison
			if err := write(p, s, r, header); !errors.Is(err, ErrValue) {
				t.Errorf("%s %q: got %v, want ErrValue", f.name, poison, err)
			}
		}
	}
	for name, h := range map[string]string{"empty line": "A: b\n\nr x\n", "leading empty line": "\nA: b\n", "two newlines at the end": "A: b\n\n"} {
		if err := write(&Spec{Message: "1"}, sender, rcpt, []byte(h)); !errors.Is(err, ErrValue) {
			t.Errorf("%s: got %v, want ErrValue", name, err)
		}
	}
}

func TestWriterRefusesAGroupWithoutRecipients(t *testing.T) {
	w := NewWriter(io.Discard)
	w.Group(Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}, nil, nil)
	if err := w.Close(); !errors.Is(err, ErrValue) {
		t.Errorf("got %v, want ErrValue", err)
	}
	if err := NewWriter(io.Discard).Close(); !errors.Is(err, ErrValue) {
		t.Errorf("no group at all: got %v, want ErrValue", err)
	}
}

// failing fails every write from the given one on.
type failing struct{ writes, from int }

var errDisk = errors.New("no space left on device")

func (f *failing) Write(b []byte) (int, error) {
	f.writes++
	if f.writes >= f.from {
		return 0, errDisk
	}
	return len(b), nil
}

// M2's side of the router: a full disk is an error of Close.
func TestWriteErrorComesOutOfClose(t *testing.T) {
	for from := 1; from <= 3; from++ {
		f := &failing{from: from}
		w := NewWriter(f)
		w.Preamble(&Spec{Message: "1"})
		w.Group(Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}, manyRecipients(10), bytes.Repeat([]byte("X: y\n"), 50000))
		if err := w.Close(); !errors.Is(err, errDisk) {
			t.Errorf("write %d fails: got %v", from, err)
		}
		assert.Equal(t, f.writes, from, "writes")
	}
}

func TestSmallSpecificationIsOneWrite(t *testing.T) {
	f := &failing{from: 100}
	w := NewWriter(f)
	w.Preamble(&Spec{Message: "1"})
	w.Group(Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}, manyRecipients(50), []byte("X: y\n"))
	if err := w.Close(); err != nil || f.writes != 1 {
		t.Errorf("%d writes, %v", f.writes, err)
	}
}

func TestResetWriterWritesAFreshFile(t *testing.T) {
	var a, b bytes.Buffer
	w := NewWriter(&a)
	one := func() error {
		w.Preamble(&Spec{Message: "1"})
		w.Group(Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}, manyRecipients(3), []byte("X: y\n"))
		return w.Close()
	}
	assert.Must(t, one())
	w.Reset(&b)
	if err := one(); err != nil || a.String() != b.String() || !Complete(b.Bytes()) {
		t.Errorf("%v: got %q, want %q", err, b.String(), a.String())
	}
}

// M19: what a torn append leaves behind hurts no one, before and after the next
// writer has ended it.
func TestTornAppendIsIgnored(t *testing.T) {
	head := written(t)
	lines := map[string][]byte{
		"diagnostic": AppendDiagnostic(nil, &Diagnostic{Recipient: 1234, HeaderOffset: 56, NotaryOffset: 78, Time: time.Unix(1795220010, 0),
			Notary: Notary{Address: "a@b", Action: "failed", Status: "5.1.1"}, Text: "550 no\nsuch user"}),
		"event": AppendEvent(nil, &Event{Time: time.UnixMilli(1795220010123), Recipient: 1234, Event: EventDeferred,
			Attrs: []Attr{{"attempt", "2"}}, Text: "450 later"}),
	}
	next := "h 5 0 unlocked owner=7\n"
	for name, line := range lines {
		t.Run(name, func(t *testing.T) {
			for n := 1; n < len(line); n++ {
				file := string(head) + string(line[:n])
				s := mustParse(t, file)
				if !s.Torn || !s.Complete || len(s.Diagnostics)+len(s.History) != 0 {
					t.Fatalf("%q: torn %v, complete %v, %d lines read", line[:n], s.Torn, s.Complete, len(s.Diagnostics)+len(s.History))
				}
				s = mustParse(t, file+"\x18\n"+next)
				if s.Torn || !s.Complete || len(s.Diagnostics) != 0 || len(s.History) != 1 || s.History[0].Event != EventUnlocked {
					t.Fatalf("%q ended by us: %+v %+v", line[:n], s.Diagnostics, s.History)
				}
				// By a program that adds its newline alone.
				s = mustParse(t, file+"\n"+next)
				if s.Torn || !s.Complete || len(s.History) == 0 || s.History[len(s.History)-1].Event != EventUnlocked {
					t.Fatalf("%q ended by the next writer: %+v", line[:n], s.History)
				}
			}
		})
	}
}

// M19
func TestTwoWritersMayBothEndATornLine(t *testing.T) {
	file := string(written(t)) + "h 1 0 se" + "\x18\nh 2 0 sent\n" + "\x18\nh 3 0 sent\n" + "\nh 4 0 sent\n"
	s := mustParse(t, file)
	if len(s.History) != 3 || s.History[0].Event != "sent" {
		t.Errorf("got %+v", s.History)
	}
}

func TestAppendedLinesReadBack(t *testing.T) {
	at := time.UnixMilli(1795220010123)
	events := map[string]struct {
		event Event
		line  string
	}{
		"deferred": {DeferredEvent(at, 181, 2, at.Add(time.Minute), status.MailboxFull, "452 full\ntry later"),
			"h 1795220010123 181 deferred attempt=2 next=1795220070123 status=4.2.2 452 full\rtry later\n"},
		"no text":                   {Event{Time: at, Event: "sent", Attrs: []Attr{{"owner", "12"}}}, "h 1795220010123 0 sent owner=12\n"},
		"nothing":                   {Event{Time: at, Event: "expired"}, "h 1795220010123 0 expired\n"},
		"empty value":               {Event{Time: at, Event: "x", Attrs: []Attr{{"a", ""}, {"b", "c=d"}}}, "h 1795220010123 0 x a= b=c=d\n"},
		"text like an attribute":    {Event{Time: at, Event: "x", Text: "size=5 is too much"}, "h 1795220010123 0 x  size=5 is too much\n"},
		"text with a blank first":   {Event{Time: at, Event: "x", Attrs: []Attr{{"a", "b"}}, Text: " y"}, "h 1795220010123 0 x a=b   y\n"},
		"text with a newline first": {Event{Time: at, Event: "x", Text: "\n<<- MAIL\n->> 250"}, "h 1795220010123 0 x \r<<- MAIL\r->> 250\n"},
		"text with = at the front":  {Event{Time: at, Event: "x", Text: "=y"}, "h 1795220010123 0 x =y\n"},
	}
	for name, c := range events {
		t.Run(name, func(t *testing.T) {
			line := AppendEvent(nil, &c.event)
			if string(line) != c.line {
				t.Errorf("got  %q\nwant %q", line, c.line)
			}
			s := mustParse(t, string(line))
			assert.Same(t, s.History, []Event{c.event}, "read back")
		})
	}
	if got := DeferredEvent(at, 1, 2, at, status.MailboxFull, ""); got.Get("attempt") != "2" || got.Get("none") != "" {
		t.Errorf("Get: %+v", got)
	}
	d := Diagnostic{Reported: true, Recipient: 181, HeaderOffset: 548, NotaryOffset: 238, Time: time.Unix(1795220010, 0),
		Notary: Notary{Address: "a b", Agent: "smtp[7]"}, Text: "a\tb\nc"}
	line := AppendDiagnostic(nil, &d)
	if want := "d+181:548:238::1795220010\ta b\x01\x01\x01\x01\x01smtp[7]\ta\tb\rc\n"; string(line) != want {
		t.Errorf("got  %q\nwant %q", line, want)
	}
	assert.Same(t, mustParse(t, string(line)).Diagnostics, []Diagnostic{d}, "read back")
}

func TestAppendedLineIsOneLineWhateverItHolds(t *testing.T) {
	evil := "a\nr           file file.0 /etc/passwd 0\r\x00\x01\t b=c"
	lines := AppendDiagnostic(nil, &Diagnostic{Recipient: -4, Notary: Notary{evil, evil, evil, evil, evil, evil, evil}, Text: evil})
	lines = AppendEvent(lines, &Event{Event: evil, Attrs: []Attr{{evil, evil}, {"", ""}}, Text: evil})
	lines = AppendEvent(lines, &Event{})
	if got := bytes.Count(lines, []byte("\n")); got != 3 {
		t.Fatalf("got %d lines: %q", got, lines)
	}
	s := mustParse(t, string(lines))
	if len(s.Diagnostics) != 1 || len(s.History) != 2 {
		t.Fatalf("got %d diagnostics, %d events", len(s.Diagnostics), len(s.History))
	}
	d := s.Diagnostics[0]
	if d.Notary.Agent != d.Notary.Address || strings.ContainsAny(d.Notary.Agent, "\n\r\t\x00\x01") {
		t.Errorf("notary %+v", d.Notary)
	}
	if got := s.History[0]; len(got.Attrs) != 2 || !strings.HasPrefix(got.Text, "a\nr ") {
		t.Errorf("event %+v", got)
	}
}

func TestNotaryReadsBack(t *testing.T) {
	for name, c := range map[string]struct {
		field string
		want  Notary
		back  string
	}{
		"all six":       {"a\x01failed\x015.1.1\x01smtp; 550\x01dns; mx\x01smtp[1]", Notary{"a", "failed", "5.1.1", "smtp; 550", "dns; mx", "smtp[1]", ""}, ""},
		"empty":         {"", Notary{}, ""},
		"only five":     {"deferred\x01delayed\x014.4.3 (Temporary)\x01x-local; 466\x01", Notary{"deferred", "delayed", "4.4.3 (Temporary)", "x-local; 466", "", "", ""}, "deferred\x01delayed\x014.4.3 (Temporary)\x01x-local; 466\x01\x01"},
		"the way":       {"1\x012\x013\x014\x015\x016\x017", Notary{"1", "2", "3", "4", "5", "6", "7"}, ""},
		"eighth":        {"1\x012\x013\x014\x015\x016\x017\x018", Notary{"1", "2", "3", "4", "5", "6", "7"}, "1\x012\x013\x014\x015\x016\x017"},
		"only controls": {"a\r\nBcc: x\x01", Notary{Address: "a  Bcc: x"}, "a  Bcc: x\x01\x01\x01\x01\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ParseNotary(c.field)
			assert.Same(t, got, c.want)
			if c.back == "" {
				c.back = c.field
			}
			assert.Equal(t, got.String(), c.back)
		})
	}
}

// M18
func TestTagsAreChangedInPlace(t *testing.T) {
	file := written(t)
	s := mustParse(t, string(file))
	r := s.Groups[0].Recipients[1]
	set := func(b []byte) Recipient {
		copy(file[TagOffset(r.Offset):], b)
		s := mustParse(t, string(file))
		if !s.Complete {
			t.Fatal("not complete any more")
		}
		return s.Groups[0].Recipients[1]
	}
	for _, owner := range []int{1, 4711, 999999} {
		b := LockBytes(owner)
		want := r
		want.Tag, want.Owner = TagLocked, owner
		if diff := cmp.Diff(set(b), want); diff != "" || len(b) != 7 {
			t.Errorf("lock of %d is %q, got - want +\n%s", owner, b, diff)
		}
	}
	for _, tag := range []Tag{TagFailed, TagToDo, TagOK} {
		b := TagBytes(s.Format, tag)
		want := r
		want.Tag = tag
		if diff := cmp.Diff(set(b), want); diff != "" || len(b) != 7 {
			t.Errorf("tag is %q, got - want +\n%s", b, diff)
		}
	}
	if got := TagBytes(0, TagOK); string(got) != "+" {
		t.Errorf("without an owner field: %q", got)
	}
	line := AppendDiagnostic(nil, &Diagnostic{Recipient: 1})
	line[DiagnosticTagOffset(0)] = byte(TagOK)
	if !mustParse(t, string(line)).Diagnostics[0].Reported {
		t.Error("a diagnostic's tag is not where DiagnosticTagOffset says")
	}
}

func TestOwnerThatDoesNotFitIsNeverWritten(t *testing.T) {
	for _, owner := range []int{0, -1, 1000000} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("LockBytes(%d) did not panic", owner)
				}
			}()
			LockBytes(owner)
		}()
	}
}

// M7: zeros where a block never reached the disk, at any place, are found: by the z
// line's checksum if all else is whole.
func TestZeroedBlockIsFound(t *testing.T) {
	whole := written(t)
	for _, block := range []int{32, 64, 128, 512} {
		for at := 0; at < len(whole); at += block {
			file := bytes.Clone(whole)
			clear(file[at:min(at+block, len(file))])
			for _, tail := range []string{"", "h 1 0 sent\n"} {
				s, err := Parse(append(bytes.Clone(file), tail...))
				if err != nil || s.Complete {
					t.Errorf("%d bytes from %d zeroed, then %q: got %+v, %v, want it incomplete", block, at, tail, s, err)
				}
			}
		}
	}
}

// Zeros that the sender wrote into a header are no damage, nor is what an operator edits.
func TestZerosOfASenderAndEditsAreNoDamage(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "4711-12"})
	w.Group(Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}, manyRecipients(2), []byte("X: "+strings.Repeat("\x00", 600)+"\n"))
	assert.Must(t, w.Close())
	if !Complete(b.Bytes()) {
		t.Errorf("zeros in a header: not complete: %q", b.Bytes())
	}
	edited := bytes.Replace(written(t), []byte("smtp h.example b@"), []byte("smtp i.example b@"), 1)
	if !Complete(edited) {
		t.Errorf("edited: not complete: %q", edited)
	}
	bad := bytes.Replace(edited, []byte("\no "), []byte("\no x"), 1)
	if _, err := Parse(bad); err == nil {
		t.Error("a line that cannot be read, with no zeros anywhere, was read")
	}
}

// Tags, locks and lines that are added later do not make a file incomplete.
func TestChecksumLeavesOutWhatChanges(t *testing.T) {
	for name, change := range map[string]func(file []byte, r *Recipient) []byte{
		"locked": func(file []byte, r *Recipient) []byte {
			copy(file[TagOffset(r.Offset):], LockBytes(999999))
			return file
		},
		"delivered": func(file []byte, r *Recipient) []byte {
			copy(file[TagOffset(r.Offset):], TagBytes(FormatOurs, TagOK))
			return file
		},
		"delay":    func(file []byte, r *Recipient) []byte { copy(file[r.Offset+8:], "1234"); return file },
		"appended": func(file []byte, _ *Recipient) []byte { return append(file, "h 1 0 sent\nx\n\x00\x00\x00\n"...) },
		"torn":     func(file []byte, _ *Recipient) []byte { return append(file, "h 1 0 se\x00\x00"...) },
	} {
		file := written(t)
		spec := mustParse(t, string(file))
		for gi := range spec.Groups {
			for ri := range spec.Groups[gi].Recipients {
				file = change(file, &spec.Groups[gi].Recipients[ri])
			}
		}
		if !Complete(file) {
			t.Errorf("%s: not complete: %q", name, file)
		}
	}
}

// A file of before, or another writer's, whose z line has no checksum is whole by its
// length.
func TestClosingLineWithoutChecksumIsRead(t *testing.T) {
	head := "@ 0x00000007\nz -\n" + group
	for tail, want := range map[string]bool{"": true, " ": true, " 00000000": true, "1": false} {
		file := fmt.Sprintf("%sz %d%s\n", head, len(head), tail)
		assert.Equal(t, Complete([]byte(file)), want, tail)
	}
	zeros := strings.Replace(head, "Subject: x", "Subject: x"+strings.Repeat("\x00", 30), 1)
	for tail, want := range map[string]bool{"": true, " 0000000": false, " 00000000": false, " zzzzzzzz": false} {
		file := fmt.Sprintf("%sz %d%s\n", zeros, len(zeros), tail)
		assert.Equal(t, Complete([]byte(file)), want, "with zeros, %q", tail)
	}
}

func TestVERPSenderNamesTheRecipient(t *testing.T) {
	list := Sender{Channel: "local", Host: "owner-news@lists.example", Address: "owner-news@lists.example", Privilege: "65534", VERP: "+"}
	for recipient, want := range map[string]string{
		"ann@far.example":       "owner-news+ann=far.example@lists.example",
		"Ann.Lee@FAR.example":   "owner-news+Ann.Lee=far.example@lists.example",
		"ann+news@far.example":  "owner-news+ann+news=far.example@lists.example",
		"a=b@far.example":       "owner-news+a=b=far.example@lists.example",
		`"ann lee"@far.example`: `"owner-news+ann lee=far.example"@lists.example`,
		"ann@bücher.example":    "owner-news+ann=xn--bcher-kva.example@lists.example",
		"zoë@bücher.example":    "owner-news+zoë=xn--bcher-kva.example@lists.example",
		"ann@[192.0.2.1]":       "owner-news+ann=192.0.2.1@lists.example",
		"ann":                   "owner-news@lists.example",
		"|/bin/program x@y":     "owner-news@lists.example",
		"":                      "owner-news@lists.example",
	} {
		assert.Equal(t, list.For(recipient), want, recipient)
	}
	plain := list
	plain.VERP = ""
	for _, s := range []Sender{plain, {Address: "<>", VERP: "+"}, {Address: "owner-news", VERP: "+"}} {
		assert.Equal(t, s.For("ann@far.example"), s.Address, "sender %+v", s)
	}
}

// A V line belongs to the s line before it; anywhere else it is a line that no one knows.
func TestVLineIsRead(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "1"})
	w.Begin(&Sender{Channel: "local", Host: "a", Address: "a@b", Privilege: "1", VERP: "+"})
	w.Recipient(&Recipient{Channel: "smtp", Host: "h", Address: "c@h", Privilege: "1"})
	w.ErrorTo("d@b")
	w.Begin(&Sender{Channel: "local", Host: "d", Address: "d@b", Privilege: "1"})
	w.Recipient(&Recipient{Channel: "smtp", Host: "h", Address: "e@h", Privilege: "1"})
	w.Header([]byte("Subject: x\n"))
	assert.Must(t, w.Close())
	s := mustParse(t, b.String())
	if !s.Complete || len(s.Groups) != 2 {
		t.Fatalf("complete %v, %d groups", s.Complete, len(s.Groups))
	}
	one, two := &s.Groups[0], &s.Groups[1]
	if one.Sender.VERP != "+" || two.Sender.VERP != "" {
		t.Errorf("VERP %q and %q", one.Sender.VERP, two.Sender.VERP)
	}
	if one.HeaderOffset != two.HeaderOffset || one.HeaderOffset == 0 {
		t.Errorf("header blocks at %d and %d, want one", one.HeaderOffset, two.HeaderOffset)
	}
	if diff := cmp.Diff(s.ErrorTo, []string{"d@b"}); diff != "" {
		t.Error(diff)
	}
	for name, text := range map[string]string{
		"before any sender":      "V +\ns l - a 1\nr           x h b 1\nm\n\n",
		"behind a recipient":     "s l - a 1\nr           x h b 1\nV +\nm\n\n",
		"without a value":        "s l - a 1\nV\nr           x h b 1\nm\n\n",
		"behind the header":      "s l - a 1\nr           x h b 1\nm\n\nV +\n",
		"with a tag for a blank": "s l - a 1\nV++\nr           x h b 1\nm\n\n",
	} {
		file := "@ 0x00000003\n" + text
		s := mustParse(t, file)
		if s.Groups[0].Sender.VERP != "" || !s.Complete {
			t.Errorf("%s: VERP %q, complete %v", name, s.Groups[0].Sender.VERP, s.Complete)
		}
	}
}

func TestGroupsThatAreNotEndedAreRefused(t *testing.T) {
	from, to := &Sender{Channel: "l", Host: "-", Address: "a", Privilege: "1"}, &Recipient{Channel: "x", Host: "h", Address: "b", Privilege: "1"}
	for name, write := range map[string]func(w *Writer){
		"no recipient":                 func(w *Writer) { w.Begin(from); w.Header(nil) },
		"no recipient in the first":    func(w *Writer) { w.Begin(from); w.Begin(from); w.Recipient(to); w.Header(nil) },
		"no recipient in the last":     func(w *Writer) { w.Begin(from); w.Recipient(to); w.Begin(from); w.Header(nil) },
		"no header":                    func(w *Writer) { w.Begin(from); w.Recipient(to) },
		"no header behind the second":  func(w *Writer) { w.Group(*from, []Recipient{*to}, nil); w.Begin(from); w.Recipient(to) },
		"a recipient without a sender": func(w *Writer) { w.Recipient(to); w.Header(nil) },
		"a header without a sender":    func(w *Writer) { w.Group(*from, []Recipient{*to}, nil); w.Header(nil) },
	} {
		w := NewWriter(&bytes.Buffer{})
		w.Preamble(&Spec{Message: "1"})
		write(w)
		if err := w.Close(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
