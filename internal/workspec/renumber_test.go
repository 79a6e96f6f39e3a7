package workspec

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// lived returns a specification with every kind of line that holds an offset. Long
// headers bring the offsets near 1000, where they grow a digit.
func lived(t testing.TB, message string, pad int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: message, BodyOffset: 405, Ident: "x", ErrorTo: []string{"bob@mta.example"}})
	rcpt := func(a string) Recipient {
		return Recipient{Tag: TagToDo, Channel: "smtp", Host: "far.example", Address: a, Privilege: "1", Notary: "NOTIFY=FAILURE"}
	}
	s := Sender{Channel: "local", Host: "-", Address: "bob@mta.example", Privilege: "1"}
	w.Group(s, []Recipient{rcpt("a@far.example"), rcpt("b@far.example")}, []byte("Subject: "+strings.Repeat("x", pad)+"\n"))
	w.Group(s, []Recipient{rcpt("c@far.example")}, []byte("Subject: i 12\n"))
	assert.Must(t, w.Close())
	spec := assert.Get(Parse(b.Bytes()))(t)
	file := b.Bytes()
	var all []string
	for _, g := range spec.Groups {
		for _, r := range g.Recipients {
			all = append(all, fmt.Sprint(r.Offset))
			file = AppendEvent(file, &Event{Time: time.UnixMilli(1795231539688), Recipient: r.Offset, Event: EventDeferred,
				Attrs: []Attr{{"attempt", "3"}, {"next", "1795231539999"}}, Text: "rcpts=1,2 451 later"})
			file = AppendDiagnostic(file, &Diagnostic{Recipient: r.Offset, HeaderOffset: g.HeaderOffset, NotaryOffset: r.NotaryOffset,
				Time: time.Unix(1795231539, 0), Notary: Notary{Address: r.Address, Action: "failed", Status: "5.1.1"}, Text: "1:2:3"})
		}
	}
	return AppendEvent(file, &Event{Time: time.UnixMilli(1795231539692), Event: EventReport,
		Attrs: []Attr{{"file", "report.1"}, {"kind", "failed"}, {"rcpts", strings.Join(all, ",")}}})
}

// A message's file may get another inode number; every recipient, diagnostic and
// event must still be about the same recipient, whatever the length of the number.
func TestRenumberedSpecificationSaysTheSame(t *testing.T) {
	names := []string{"9", "10-5", "123456789-999999", "18446744073709551615-7"}
	for _, from := range names {
		for _, to := range names {
			for _, pad := range []int{10, 640, 660, 676, 690, 9640} {
				file := lived(t, from, pad)
				got, err := Renumber(file, to)
				if err != nil {
					t.Fatalf("%s to %s: %v", from, to, err)
				}
				if want := lived(t, to, pad); !bytes.Equal(got, want) {
					t.Fatalf("%s to %s, pad %d: got\n%s\nwant\n%s", from, to, pad, got, want)
				}
			}
		}
	}
}

func TestRenumberKeepsMarksAndWhatItDoesNotKnow(t *testing.T) {
	file := lived(t, "10-5", 30)
	spec := assert.Get(Parse(file))(t)
	copy(file[TagOffset(spec.Groups[0].Recipients[0].Offset):], TagBytes(FormatOurs, TagOK))
	copy(file[TagOffset(spec.Groups[0].Recipients[1].Offset):], LockBytes(77))
	file = append(file, "y unknown 123\n"...)
	got := assert.Get(Renumber(append(bytes.Clone(file), "h 17952315"...), "1000000-5"))(t)
	back, err := Renumber(got, "10-5")
	if err != nil || !bytes.Equal(back, file) {
		t.Errorf("there and back: %v\ngot\n%s\nwant\n%s", err, back, file)
	}
	now := assert.Get(Parse(got))(t)
	if r := now.Groups[0].Recipients; r[0].Tag != TagOK || r[1].Tag != TagLocked || r[1].Owner != 77 || now.Torn {
		t.Errorf("got %+v, torn %v", r, now.Torn)
	}
}

func TestRenumberRefusesWhatIsNotWhole(t *testing.T) {
	file := lived(t, "10-5", 30)
	cut := bytes.Index(file, []byte("\nz ")) - 3
	if _, err := Renumber(file[:cut], "11-5"); !errors.Is(err, ErrIncomplete) {
		t.Errorf("cut off: got %v, want ErrIncomplete", err)
	}
	for _, name := range []string{"", "1 2", "1\n"} {
		if _, err := Renumber(file, name); !errors.Is(err, ErrValue) {
			t.Errorf("name %q: got %v, want ErrValue", name, err)
		}
	}
	if _, err := Renumber(bytes.Replace(file, []byte("i 10-5\n"), nil, 1), "11-5"); err == nil {
		t.Error("without an i line: got no error")
	}
}

// FuzzRenumber: what is renumbered reads as before, and the way back gives the same
// bytes.
func FuzzRenumber(f *testing.F) {
	for _, b := range samples(f) {
		f.Add(b, "10117782-999999")
	}
	f.Add(lived(f, "10-5", 640), "123456-5")
	f.Add([]byte("h 1 12 sent rcpts=12,40\nd 12:30:0::4\t\t\ni 9\ns local - a 1\nr smtp h b 1\nm\n\n"), "123456789")
	f.Fuzz(func(t *testing.T, file []byte, name string) {
		out, err := Renumber(file, name)
		if err != nil {
			return
		}
		spec, err := Parse(out)
		if err != nil || spec.Message != name || !spec.Complete {
			t.Fatalf("%v, %+v from %q", err, spec, out)
		}
		old, _ := Parse(file)
		back, err := Renumber(out, old.Message)
		if err != nil {
			return // the old name has bytes that no name has
		}
		again, err := Renumber(back, name)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("%v: there and back and there: got %q, want %q", err, again, out)
		}
	})
}

// A list with 10,000 recipients is renumbered in the blink of an eye.
func TestRenumberOfALongListIsQuick(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	w.Preamble(&Spec{Message: "999-5", BodyOffset: 405})
	var list []Recipient
	for i := range 10000 {
		list = append(list, Recipient{Tag: TagToDo, Channel: "smtp", Host: "far.example", Address: fmt.Sprintf("n%d@far.example", i), Privilege: "1"})
	}
	w.Group(Sender{Channel: "local", Host: "-", Address: "bob@mta.example", Privilege: "1"}, list, []byte("Subject: x\n"))
	assert.Must(t, w.Close())
	spec := assert.Get(Parse(b.Bytes()))(t)
	file := b.Bytes()
	for _, r := range spec.Groups[0].Recipients {
		file = AppendEvent(file, &Event{Time: time.UnixMilli(1), Recipient: r.Offset, Event: EventDeferred})
	}
	begin := processor(t)
	assert.Get(Renumber(file, "1000-5"))(t)
	if took := processor(t) - begin; took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// processor returns what this process has had of the processors: the clock goes on while
// others have them.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	assert.Must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
