package logging

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// piped returns a logger that writes into a pipe.
func piped(t *testing.T) (log *slog.Logger, read *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	assert.Must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	log, err = New(w, "text", "debug", "p")
	assert.Must(t, err)
	return log, r
}

// A process that has nothing to do has written what it said.
func TestLinesComeWithoutFlush(t *testing.T) {
	log, r := piped(t)
	lines := bufio.NewScanner(r)
	for n := range 3 {
		log.With("k", n).WithGroup("g").Info("said", "n", n)
		if !lines.Scan() || !strings.Contains(lines.Text(), fmt.Sprintf("msg=said program=p k=%d g.n=%d", n, n)) {
			t.Fatalf("got %q, %v", lines.Text(), lines.Err())
		}
	}
}

// available returns what is in a pipe now.
func available(t *testing.T, r *os.File) string {
	t.Helper()
	b := make([]byte, 1<<16)
	assert.Must(t, unix.SetNonblock(int(r.Fd()), true))
	n, err := unix.Read(int(r.Fd()), b)
	if err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return string(b[:max(n, 0)])
}

// What an operator is to see is out before the step behind it, whatever kills the process
// there, and with it what was said before.
func TestWarningsAreOutAtOnce(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelWarn, slog.LevelError} {
		log, r := piped(t)
		log.Info("before")
		log.Log(t.Context(), level, "trouble")
		if got := available(t, r); strings.Count(got, "\n") != 2 || strings.Index(got, "before") > strings.Index(got, "trouble") {
			t.Errorf("%v: got %q", level, got)
		}
	}
	log, r := piped(t)
	log.Info("last")
	Flush(log)
	assert.Contains(t, available(t, r), "last", "flushed")
}

// record notes what is written.
type record struct {
	mu     sync.Mutex
	writes []string
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, string(p))
	return len(p), nil
}

func TestWhatIsWrittenAtOnceIsWholeLinesInOrder(t *testing.T) {
	var r record
	b := newBatch(&r)
	const lines = 2000
	for n := range lines {
		size := n % 300
		if n%500 == 499 {
			size = 5 * most // more than is written at once goes alone
		}
		fmt.Fprintf(b, "%d %s\n", n, strings.Repeat("x", size))
	}
	b.flush()
	n := 0
	for _, w := range r.writes {
		if len(w) > most && strings.Count(w, "\n") > 1 || !strings.HasSuffix(w, "\n") {
			t.Errorf("%d bytes at once: %.40q", len(w), w)
		}
		for line := range strings.Lines(w) {
			if !strings.HasPrefix(line, fmt.Sprint(n, " ")) {
				t.Fatalf("got %.40q, want line %d", line, n)
			}
			n++
		}
	}
	if n != lines || len(r.writes) >= lines {
		t.Errorf("got %d lines of %d, in %d writes", n, lines, len(r.writes))
	}
}

// M19: sessions that log at the same time lose nothing, and each one's lines stay in order.
func TestManyGoroutinesKeepTheirOrder(t *testing.T) {
	var r record
	b := newBatch(&r)
	var wg sync.WaitGroup
	const writers, each = 8, 500
	for w := range writers {
		wg.Go(func() {
			for n := range each {
				fmt.Fprintf(b, "%d %d\n", w, n)
			}
		})
	}
	wg.Wait()
	b.flush()
	next := [writers]int{}
	for line := range strings.Lines(strings.Join(r.writes, "")) {
		var w, n int
		if _, err := fmt.Sscan(line, &w, &n); err != nil || next[w] != n {
			t.Fatalf("got %q (%v), want %d of %d", line, err, next[w], w)
		}
		next[w]++
	}
	for w, n := range next {
		assert.Equal(t, n, each, "lines of writer %d", w)
	}
}
