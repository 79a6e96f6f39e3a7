package workspec

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is read of one host's recipients is what a whole reading has of them.
func TestReadingSomeRecipientsSaysTheSameOfThem(t *testing.T) {
	whole := largeFile(t, 700, 300)
	s := mustParse(t, string(whole))
	all := s.Groups[0].Recipients
	var b []byte
	for i := range 20 {
		r := &all[i]
		b = AppendEvent(b, &Event{Recipient: r.Offset, Event: EventDeferred, Attrs: []Attr{{"attempt", "1"}}, Text: "450 later"})
		b = AppendEvent(b, &Event{Recipient: r.Offset, Event: EventHold, Attrs: []Attr{{"id", "x"}}})
		b = AppendDiagnostic(b, &Diagnostic{Recipient: r.Offset, NotaryOffset: r.NotaryOffset, Text: "550 no"})
	}
	b = AppendEvent(b, &Event{Event: EventSent, Attrs: []Attr{{"owner", "7"}}})
	file := append(bytes.Clone(whole), b...)
	s = mustParse(t, string(file))
	const host = "h3.example"
	got, err := ParseOnly(file, func(_ int64, channel, h []byte) bool { return string(channel) == "smtp" && string(h) == host })
	if err != nil {
		t.Fatal(err)
	}
	want := *s
	want.Groups = []Group{s.Groups[0]}
	want.Groups[0].Recipients = nil
	kept := map[int64]bool{}
	for _, r := range s.Groups[0].Recipients {
		if r.Host == host {
			want.Groups[0].Recipients = append(want.Groups[0].Recipients, r)
			kept[r.Offset] = true
		}
	}
	want.Diagnostics, want.History = nil, nil
	for _, d := range s.Diagnostics {
		if kept[d.Recipient] {
			want.Diagnostics = append(want.Diagnostics, d)
		}
	}
	for _, e := range s.History {
		if kept[e.Recipient] || e.Event != EventDeferred {
			want.History = append(want.History, e)
		}
	}
	if len(kept) != 100 || len(want.Diagnostics) != 3 || len(want.History) != 24 {
		t.Fatalf("the file is not what the test needs: %d recipients, %d diagnostics, %d events", len(kept), len(want.Diagnostics), len(want.History))
	}
	want.Apart = got.Apart
	if diff := cmp.Diff(got, &want); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
	// What is wrong with another's lines is wrong with the file.
	bad := strings.Replace(string(file), "user8@h1.example 65534\n", "user8@h1.example 65534\nN x\n", 1)
	if _, err := ParseOnly([]byte(bad), func(int64, []byte, []byte) bool { return false }); err == nil {
		t.Error("a second N line of a recipient that is not wanted was taken")
	}
	if s, err := ParseOnly(whole[:len(whole)/2], func(int64, []byte, []byte) bool { return false }); err != nil || s.Complete {
		t.Errorf("half a file: %v, complete %v", err, s.Complete)
	}
}
