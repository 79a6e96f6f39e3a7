package logging

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"sync"
)

// most is how many bytes are written at once: a pipe keeps so many together, so that
// lines of processes that share it do not mix (pipe(7), PIPE_BUF).
const most = 4096

// batch writes lines that come close together in one call, in their order. What waits is
// written when the process would otherwise sleep: by a goroutine that lets all others run
// first.
type batch struct {
	w       io.Writer
	journal bool // its reader is the journal, which gets each line's priority
	wake    chan struct{}

	turn sync.Mutex // held from taking lines out until they are written
	out  []byte     // being written

	mu  sync.Mutex
	buf []byte // whole lines
}

func newBatch(w io.Writer) *batch {
	b := &batch{w: w, wake: make(chan struct{}, 1), buf: make([]byte, 0, most), out: make([]byte, 0, most)}
	go func() {
		for range b.wake {
			runtime.Gosched() // to behind whatever else is ready
			b.flush()
		}
	}()
	return b
}

// Write takes a line.
func (b *batch) Write(line []byte) (int, error) {
	prefix := ""
	if b.journal {
		prefix = priority(line)
	}
	b.mu.Lock()
	for len(b.buf) > 0 && len(b.buf)+len(prefix)+len(line) > most {
		b.mu.Unlock()
		b.flush()
		b.mu.Lock()
	}
	first := len(b.buf) == 0
	b.buf = append(append(b.buf, prefix...), line...)
	b.mu.Unlock()
	if first {
		select {
		case b.wake <- struct{}{}:
		default: // it is about to look
		}
	}
	return len(line), nil
}

// flush writes what waits.
func (b *batch) flush() {
	b.turn.Lock()
	defer b.turn.Unlock()
	b.mu.Lock()
	b.out, b.buf = b.buf, b.out[:0]
	b.mu.Unlock()
	if len(b.out) > 0 {
		_, _ = b.w.Write(b.out) // an error cannot be reported
	}
	if cap(b.out) > 4*most { // of one long line
		b.out = make([]byte, 0, most)
	}
}

// output gives lines to a batch, if there is one; those that matter are written before it
// returns, with all that were before them.
type output struct {
	slog.Handler
	b         *batch // nil: the handler writes each line at once
	threshold *slog.LevelVar
}

func (h *output) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	if h.b != nil && r.Level >= slog.LevelWarn {
		h.b.flush()
	}
	return err
}

func (h *output) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &output{h.Handler.WithAttrs(attrs), h.b, h.threshold}
}

func (h *output) WithGroup(name string) slog.Handler {
	return &output{h.Handler.WithGroup(name), h.b, h.threshold}
}

// Flush writes the lines of a Logger that New has made, before its program ends.
func Flush(log *slog.Logger) {
	if h, ok := log.Handler().(*output); ok && h.b != nil {
		h.b.flush()
	}
}
