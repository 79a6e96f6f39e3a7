package text

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Output is passed on at once, and then when there is much of it or some time has passed.
func TestStreamPassesOnTheFirstLine(t *testing.T) {
	var out bytes.Buffer
	s := NewStream(&out)
	fmt.Fprintln(s, "one")
	if err := s.Tick(); err != nil || out.String() != "one\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	fmt.Fprintln(s, "two")
	if err := s.Flush(); err != nil || out.String() != "one\ntwo\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// Where there is no terminal, progress is a line every few seconds.
func TestProgressWithoutATerminalIsALine(t *testing.T) {
	p := &Progress{What: "resubmit", Of: "messages", Total: 1000, Out: &bytes.Buffer{}, Now: time.Now}
	at := time.Unix(0, 0)
	p.Now = func() time.Time { return at }
	p.Told = at
	for range 1000 {
		at = at.Add(10 * time.Millisecond)
		p.Step()
	}
	p.End()
	assert.Equal(t, p.Out.(*bytes.Buffer).String(), "resubmit: 500 of 1000\n", "without a terminal")
}

// On a terminal a line of the log is short, and what could move the cursor is shown as its code.
func TestLogLinesForPeopleMoveNoCursor(t *testing.T) {
	var out strings.Builder
	p := &LogPrinter{W: &out, Short: true}
	line := `time=2026-11-22T12:00:00Z level=WARN msg=failed program=scheduler reply="\x1b[2J"`
	assert.Must(t, p.Line([]byte(line)), p.Line([]byte("panic: \x1b[2J")), p.End())
	if got := out.String(); strings.Contains(got, "\x1b") || strings.Contains(got, "msg=") || !strings.Contains(got, "failed") {
		t.Errorf("got %q", got)
	}
}
