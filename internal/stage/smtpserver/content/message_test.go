package content

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/milter"
)

// spooled makes a Message.
func spooled(t testing.TB, message string) *Message {
	t.Helper()
	h := NewSpool(func() (File, error) { t.Fatal("it is not that long"); return nil, nil })
	t.Cleanup(func() { _ = h.Close() }) // it is in memory
	assert.Get(io.WriteString(h, message))(t)
	return assert.Get(NewMessage(h))(t)
}

func (l *Message) text(t testing.TB) string {
	t.Helper()
	var b bytes.Buffer
	assert.Must(t, l.Write(&b))
	return b.String()
}

// Whatever came, it is written as it came, but for the two things that docs/filters.md
// names; a filter sees all of it; what it adds is one field, and changes nothing else.
func FuzzMessage(f *testing.F) {
	for _, m := range []string{"", "\n", "a", "a: b", "a: b\n", "a: b\n\nc", "a: b\n c\njunk\nd: e\n\nbody", " x\na: b\n\n", "From x\na: b\n\n", "From : x\n\n", "a\r\n\r\nb", "\x00:\n\n\n"} {
		f.Add(m, "X-N", "value\nBcc: x")
	}
	f.Fuzz(func(t *testing.T, message, name, value string) {
		if len(message) > 100<<10 {
			return
		}
		want := message
		switch {
		case message == "":
		case message[0] == ' ' || message[0] == '\t':
			want = "\n" + message
		case message[0] != '\n' && isMbox(envelope.Fields([]byte(message))[0]):
			want = mboxName + ": " + message
		}
		l := spooled(t, message)
		if got := l.text(t); got != want {
			t.Fatalf("%q is written as %q", message, got)
		}
		l.split()
		if got := l.text(t); got != want {
			t.Fatalf("%q, parted, is written as %q", message, got)
		}
		for _, f := range l.fields {
			if f.Name == "" {
				t.Fatalf("%q: a filter is not shown %q", message, f.Raw)
			}
		}
		n := len(l.fields)
		if err := l.change(milter.Change{Kind: milter.InsertField, Name: name, Value: value}); err != nil {
			return
		}
		got := l.text(t)
		if !strings.HasSuffix(got, want) {
			t.Fatalf("%q with a field on top is %q", message, got)
		}
		top := envelope.Fields([]byte(strings.TrimSuffix(got, want)))
		if len(top) != 1 || top[0].Name != name || len(l.fields) != n+1 {
			t.Fatalf("%q on top of %q: %q", value, message, got)
		}
	})
}
