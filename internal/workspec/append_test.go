package workspec

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/status"
)

// M19: what a torn append leaves behind hurts nobody, before and after the next
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
				var got bytes.Buffer
				if err := Print(&got, s, []byte(file)); err != nil || got.String() != string(head) {
					t.Fatalf("%q: printed with the torn line, %v", line[:n], err)
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
	var got bytes.Buffer
	if err := Print(&got, s, []byte(file)); err != nil || got.String() != file {
		t.Errorf("printed %q, %v", got.String(), err)
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
			if diff := cmp.Diff(s.History, []Event{c.event}); diff != "" {
				t.Errorf("read back, got - want +\n%s", diff)
			}
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
	if diff := cmp.Diff(mustParse(t, string(line)).Diagnostics, []Diagnostic{d}); diff != "" {
		t.Errorf("read back, got - want +\n%s", diff)
	}
}

func TestAppendedLineIsOneLineWhateverItHolds(t *testing.T) {
	evil := "a\nr           file file.0 /etc/passwd 0\r\x00\x01\t b=c"
	lines := AppendDiagnostic(nil, &Diagnostic{Recipient: -4, Notary: Notary{evil, evil, evil, evil, evil, evil}, Text: evil})
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
		"all six":       {"a\x01failed\x015.1.1\x01smtp; 550\x01dns; mx\x01smtp[1]", Notary{"a", "failed", "5.1.1", "smtp; 550", "dns; mx", "smtp[1]"}, ""},
		"empty":         {"", Notary{}, ""},
		"only five":     {"deferred\x01delayed\x014.4.3 (Temporary)\x01x-local; 466\x01", Notary{"deferred", "delayed", "4.4.3 (Temporary)", "x-local; 466", "", ""}, "deferred\x01delayed\x014.4.3 (Temporary)\x01x-local; 466\x01\x01"},
		"seventh":       {"1\x012\x013\x014\x015\x016\x017", Notary{"1", "2", "3", "4", "5", "6"}, "1\x012\x013\x014\x015\x016"},
		"only controls": {"a\r\nBcc: x\x01", Notary{Address: "a  Bcc: x"}, "a  Bcc: x\x01\x01\x01\x01\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ParseNotary(c.field)
			if diff := cmp.Diff(got, c.want); diff != "" {
				t.Errorf("got - want +\n%s", diff)
			}
			if c.back == "" {
				c.back = c.field
			}
			if got.String() != c.back {
				t.Errorf("got %q, want %q", got.String(), c.back)
			}
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
