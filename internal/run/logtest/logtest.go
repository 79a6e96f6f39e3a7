// Package logtest lets tests read the log of a program while it runs, and wait for what has no
// event:
//
//	log := &logtest.Buffer{}
//	run(log.Logger())
//	log.Await(t, "msg=delivered", "rcpt=a@example.org")
//
// It owns nothing. Diagnostics: a wait that takes longer than Patience ends the test.
package logtest

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Patience is how long a test waits.
const Patience = 30 * time.Second

// Buffer is a log. The zero value is empty.
type Buffer struct {
	mu     sync.Mutex
	b      bytes.Buffer
	change chan struct{} // closed by the next Write; nil: no test waits
}

// Logger returns a logger that writes lines of text: msg=EVENT key=value.
func (l *Buffer) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write appends to the log.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.change != nil {
		close(l.change)
		l.change = nil
	}
	return l.b.Write(p)
}

// String returns the log so far.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Count returns how many lines contain all the words.
func (l *Buffer) Count(words ...string) (n int) {
	for line := range strings.Lines(l.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// Expect reports an error unless exactly so many lines contain all the words.
func (l *Buffer) Expect(t testing.TB, times int, words ...string) {
	t.Helper()
	assert.Equal(t, l.Count(words...), times, "log lines with %q in: %s", words, l)
}

// Await waits for a line that contains all the words.
func (l *Buffer) Await(t testing.TB, words ...string) {
	t.Helper()
	l.AwaitCount(t, 1, words...)
}

// AwaitCount waits until so many lines contain all the words.
func (l *Buffer) AwaitCount(t testing.TB, times int, words ...string) {
	t.Helper()
	l.Until(t, fmt.Sprintf("%d lines with %q", times, words), func() bool { return l.Count(words...) >= times })
}

// Written returns a channel that the next write closes.
func (l *Buffer) Written() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.change == nil {
		l.change = make(chan struct{})
	}
	return l.change
}

// Until waits for a condition that holds when a line has been written, or sooner.
func (l *Buffer) Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(Patience)
	for {
		written := l.Written()
		if ok() {
			return
		}
		select {
		case <-written:
		case <-late:
			t.Fatalf("not in time: %s\n%s", what, l)
		}
	}
}

// Eventually waits until a condition holds that has no event to wait for.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(Patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("not in time: ", what)
		}
	}
}
