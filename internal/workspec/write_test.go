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

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// written is what Writer makes of two groups.
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
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// largeFile is a specification of one group.
func largeFile(t testing.TB, recipients, header int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "4711-12", BodyOffset: 98, Ident: "<id@example.org>", ErrorTo: []string{"a@example.org"}})
	w.Group(Sender{Channel: "local", Host: "a@example.org", Address: "a@example.org", Privilege: "1"},
		manyRecipients(recipients), []byte("Subject: "+strings.Repeat("x", header)+"\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
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

// M16
func TestWriterWritesTheGoldenFile(t *testing.T) {
	const golden = "testdata/written.golden"
	got := written(t)
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
	s := mustParse(t, string(got))
	var printed bytes.Buffer
	if err := Print(&printed, s, got); err != nil || !bytes.Equal(printed.Bytes(), got) {
		t.Errorf("printed %q, %v", printed.Bytes(), err)
	}
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
			if got := Complete([]byte(head + c.tail)); got != c.complete {
				t.Errorf("Complete = %v, want %v", got, c.complete)
			}
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
	if err := write(&Spec{Message: "1"}, sender, rcpt, header); err != nil {
		t.Fatal(err)
	}
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

// M2's side of the router: a full disk is told, not passed over.
func TestWriteErrorComesOutOfClose(t *testing.T) {
	for from := 1; from <= 3; from++ {
		f := &failing{from: from}
		w := NewWriter(f)
		w.Preamble(&Spec{Message: "1"})
		w.Group(Sender{Channel: "local", Host: "-", Address: "a", Privilege: "1"}, manyRecipients(10), bytes.Repeat([]byte("X: y\n"), 50000))
		if err := w.Close(); !errors.Is(err, errDisk) {
			t.Errorf("write %d fails: got %v", from, err)
		}
		if f.writes != from {
			t.Errorf("write %d fails: %d writes", from, f.writes)
		}
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
	if err := one(); err != nil {
		t.Fatal(err)
	}
	w.Reset(&b)
	if err := one(); err != nil || a.String() != b.String() || !Complete(b.Bytes()) {
		t.Errorf("%v: got %q, want %q", err, b.String(), a.String())
	}
}

func TestHandMadeSpecificationPrintsInWritersOrder(t *testing.T) {
	want := written(t)
	s := mustParse(t, string(want))
	s.Lines = nil
	var got bytes.Buffer
	if err := Print(&got, s, want); err != nil || got.String() != string(want) {
		t.Errorf("%v\ngot  %q\nwant %q", err, got.String(), want)
	}
	s.Groups[0].HeaderEnd = int64(len(want)) + 1
	if err := Print(io.Discard, s, want); err == nil {
		t.Error("header offsets outside the file were accepted")
	}
}

func TestPrintPutsAdditionsLast(t *testing.T) {
	file := written(t)
	s := mustParse(t, string(file))
	s.Diagnostics = append(s.Diagnostics, Diagnostic{Recipient: 5, Text: "x"})
	s.History = append(s.History, Event{Event: EventExpired})
	s.Groups[0].Recipients[0].Tag = TagFailed
	var got bytes.Buffer
	if err := Print(&got, s, file); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(string(file), "\nr ", "\nr-", 1) + "d 5:0:0::0\t\tx\nh 0 0 expired\n"
	if diff := cmp.Diff(got.String(), want); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
}
