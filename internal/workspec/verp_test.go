package workspec

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
		if got := list.For(recipient); got != want {
			t.Errorf("%s: got %s, want %s", recipient, got, want)
		}
	}
	plain := list
	plain.VERP = ""
	for _, s := range []Sender{plain, {Address: "<>", VERP: "+"}, {Address: "owner-news", VERP: "+"}} {
		if got := s.For("ann@far.example"); got != s.Address {
			t.Errorf("sender %+v: got %s", s, got)
		}
	}
}

// A V line belongs to the s line before it; anywhere else it is a line that nobody knows.
func TestVLineIsReadAndPrinted(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "1"})
	w.Begin(&Sender{Channel: "local", Host: "a", Address: "a@b", Privilege: "1", VERP: "+"})
	w.Recipient(&Recipient{Channel: "smtp", Host: "h", Address: "c@h", Privilege: "1"})
	w.ErrorTo("d@b")
	w.Begin(&Sender{Channel: "local", Host: "d", Address: "d@b", Privilege: "1"})
	w.Recipient(&Recipient{Channel: "smtp", Host: "h", Address: "e@h", Privilege: "1"})
	w.Header([]byte("Subject: x\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
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
	var printed bytes.Buffer
	if err := Print(&printed, s, b.Bytes()); err != nil || printed.String() != b.String() {
		t.Errorf("%v\ngot  %q\nwant %q", err, printed.String(), b.String())
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
		var got bytes.Buffer
		if err := Print(&got, s, []byte(file)); err != nil || got.String() != file {
			t.Errorf("%s: printed %q, %v", name, got.String(), err)
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
