package workspec

import (
	"bytes"
	"strings"
	"testing"
)

// The mark of a user's own message is written, read, and printed as it was; what other
// programs write there is no such mark.
func TestAtk3OwnMailIsMarked(t *testing.T) {
	for _, own := range []bool{false, true} {
		var b bytes.Buffer
		w := NewWriter(&b)
		w.Preamble(&Spec{Message: "1-2", BodyOffset: 9, Ident: "<a@b>", Own: own, ErrorTo: []string{"a@b"}})
		w.Group(Sender{Channel: "local", Host: "a@b", Address: "a@b", Privilege: "65534"},
			[]Recipient{{Channel: "smtp", Host: "h", Address: "x@h", Privilege: "65534"}}, []byte("Subject: x\n"))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := Parse(b.Bytes())
		if err != nil || s.Own != own || !s.Complete {
			t.Fatalf("own %v: got %v, complete %v, %v\n%s", own, s.Own, s.Complete, err, &b)
		}
		var again bytes.Buffer
		if err := Print(&again, s, b.Bytes()); err != nil || !bytes.Equal(again.Bytes(), b.Bytes()) {
			t.Errorf("printed as\n%s%v\nwant\n%s", &again, err, &b)
		}
		other, err := Parse([]byte(strings.Replace(b.String(), "u own", "u owx", 1)))
		if err != nil || other.Own {
			t.Errorf("another word: got %v, %v", other.Own, err)
		}
	}
}
