package taproto

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"zmailer/internal/run/assert"
	"zmailer/internal/wire/taproto/taprototest"
)

// lines reads all that an agent said.
func lines(t *testing.T, r io.Reader) []Line {
	t.Helper()
	var got []Line
	in := NewReader(r)
	for {
		l, err := in.Line()
		if errors.Is(err, io.EOF) {
			return got
		}
		assert.Must(t, err)
		got = append(got, l)
	}
}

// M32
func TestPartialLastLineIsDiscarded(t *testing.T) {
	said := "#hungry\n# text\n12/34\t\tok3 2"
	want := []Line{{Kind: LineHungry}, {Text: "text"}}
	assert.Same(t, lines(t, strings.NewReader(said)), want)
	if got := lines(t, strings.NewReader("#hungr")); got != nil {
		t.Errorf("got %+v", got)
	}
	long := strings.Repeat("x", 50000)
	if got := lines(t, strings.NewReader(long)); got != nil {
		t.Errorf("a long partial line was read: %d", len(got))
	}
	c := NewReader(strings.NewReader("17\thost\n18\tho"))
	if got, err := c.Command(); err != nil || got.Job.Name != "17" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := c.Command(); !errors.Is(err, io.EOF) {
		t.Errorf("got %+v, %v; want EOF", got, err)
	}
}

// M32
func TestRecordedConversationReadsTheSameInPieces(t *testing.T) {
	for _, name := range transcripts(t) {
		var said bytes.Buffer
		for _, s := range taprototest.Transcript(t, name) {
			if s.Agent {
				said.WriteString(s.Said)
			}
		}
		var got []byte
		for _, l := range lines(t, iotest.OneByteReader(bytes.NewReader(said.Bytes()))) {
			got = AppendLine(got, &l)
		}
		assert.Same(t, got, said.Bytes(), name)
	}
}

func TestLineOfAnyLengthUpToTheLimitIsRead(t *testing.T) {
	const head = "1/2\t\tok3 "
	for name, c := range map[string]struct {
		length int
		kind   LineKind
	}{
		"short":         {100, LineAnswer},
		"buffer's size": {8 << 10, LineAnswer},
		"one more":      {8<<10 + 1, LineAnswer},
		"many buffers":  {200 << 10, LineAnswer},
		"the limit":     {MaxLine, LineAnswer},
		"above":         {MaxLine + 1, LineComment},
		"far above":     {5 * MaxLine, LineComment},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Repeat("y", c.length-len(head))
			got := lines(t, strings.NewReader(head+text+"\n#hungry\n"))
			if len(got) != 2 || got[0].Kind != c.kind || got[1].Kind != LineHungry {
				t.Fatalf("got %d lines, first of kind %d", len(got), got[0].Kind)
			}
			if c.kind == LineAnswer && got[0].Answer.Text != text {
				t.Errorf("got %d bytes of text, want %d", len(got[0].Answer.Text), len(text))
			}
			if n := len(got[0].Text); c.kind == LineComment && (n == 0 || n > keptOfLong) {
				t.Errorf("kept %d bytes of it", n)
			}
		})
	}
}

func TestReaderGoesOnAfterABadCommand(t *testing.T) {
	r := NewReader(strings.NewReader("#what\n" + strings.Repeat("z", MaxLine+5) + "\n17\n"))
	for range 2 {
		if _, err := r.Command(); !errors.Is(err, ErrCommand) {
			t.Errorf("got %v, want ErrCommand", err)
		}
	}
	if got, err := r.Command(); err != nil || got.Job.Name != "17" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestBrokenConnectionIsReported(t *testing.T) {
	broken := errors.New("broken")
	r := NewReader(io.MultiReader(strings.NewReader("#hungry\n#hun"), iotest.ErrReader(broken)))
	if _, err := r.Line(); err != nil {
		t.Fatal(err)
	}
	if l, err := r.Line(); !errors.Is(err, broken) {
		t.Errorf("got %+v, %v", l, err)
	}
}

func TestReadyCountsWholeLines(t *testing.T) {
	r := NewReader(strings.NewReader("17\n18\n1"))
	for _, want := range []bool{true, false} {
		if _, err := r.Command(); err != nil {
			t.Fatal(err)
		}
		assert.Equal(t, r.Ready(), want, "ready")
	}
}
