package logread

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Pick chooses lines of a chunk of whole lines, in their order, and gives each to take. It
// may be called by several goroutines at once.
type Pick func(chunk []byte, take func(line []byte))

// chunkSize is how many bytes are given to a Pick at once; a longer line is cut there.
const chunkSize = longest

// Scan gives fn the lines that pick chooses, in the order of the log: pick runs on all
// processors, fn in this goroutine. It is Each for a look at a large log.
func (l *Source) Scan(ctx context.Context, since time.Time, pick Pick, fn func(line []byte) error) error {
	var files []string
	if l.In == nil && l.File != "" {
		old, err := Rotated(l.File, since)
		if err != nil {
			return err
		}
		files = append(old, l.File)
	}
	if len(files) == 0 { // a stream, which comes slower than it is read
		return l.Each(ctx, since, func(line []byte) (err error) {
			pick(line, func(line []byte) { err = fn(line) })
			return err
		})
	}
	return ScanFiles(ctx, files, len(files)-1, pick, fn)
}

// ScanFiles is Source.Scan for files, compressed or not. The first may files may be missing:
// they may be rotated away meanwhile.
func ScanFiles(ctx context.Context, files []string, may int, pick Pick, fn func(line []byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		lines [][]byte
		err   error
	}
	type work struct {
		chunk *[]byte
		n     int
		to    chan result
	}
	workers := runtime.GOMAXPROCS(0)
	todo := make(chan work)
	order := make(chan chan result, 2*workers) // bounds what is read ahead
	buffers := sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for w := range todo {
				var r result
				pick((*w.chunk)[:w.n], func(line []byte) { r.lines = append(r.lines, bytes.Clone(line)) })
				buffers.Put(w.chunk)
				w.to <- r
			}
		})
	}
	go func() {
		defer close(order)
		defer close(todo)
		for i, name := range files {
			err := eachChunk(name, &buffers, func(b *[]byte, n int) error {
				to := make(chan result, 1)
				select {
				case order <- to:
				case <-ctx.Done():
					return ctx.Err()
				}
				todo <- work{b, n, to}
				return nil
			})
			if err != nil && !(i < may && errors.Is(err, os.ErrNotExist)) {
				to := make(chan result, 1)
				to <- result{err: err}
				select {
				case order <- to:
				case <-ctx.Done():
				}
				return
			}
		}
	}()
	var err error
	for to := range order {
		r := <-to
		if err != nil {
			continue
		}
		if err = r.err; err == nil {
			for _, line := range r.lines {
				if err = fn(line); err != nil {
					break
				}
			}
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			cancel()
		}
	}
	all.Wait()
	return err
}

// eachChunk reads a file in chunks of whole lines.
func eachChunk(name string, buffers *sync.Pool, fn func(b *[]byte, n int) error) error {
	r, err := openLog(name)
	if err != nil {
		return err
	}
	defer r.Close()
	var rest []byte
	for {
		b := buffers.Get().(*[]byte)
		kept := copy(*b, rest)
		n, err := io.ReadFull(r, (*b)[kept:])
		n += kept
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) // one that is being compressed ends early
		if err != nil && !ended {
			return fmt.Errorf("read the log %s: %w", name, err)
		}
		end := n
		if !ended {
			if i := bytes.LastIndexByte((*b)[:n], '\n'); i >= 0 {
				end = i + 1
			}
		}
		rest = append(rest[:0], (*b)[end:n]...)
		if end > 0 {
			if err := fn(b, end); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}

// Containing returns a Pick of the lines that hold a text, whatever the case of its letters
// A to Z.
func Containing(text string) Pick {
	needle := []byte(strings.ToLower(text))
	return func(chunk []byte, take func(line []byte)) {
		folded := scratch.Get().(*[]byte)
		defer scratch.Put(folded)
		*folded = lower((*folded)[:0], chunk)
		for at := 0; ; {
			i := bytes.Index((*folded)[at:], needle)
			if i < 0 {
				return
			}
			i += at
			begin := bytes.LastIndexByte(chunk[:i], '\n') + 1
			end := len(chunk)
			if n := bytes.IndexByte(chunk[i:], '\n'); n >= 0 {
				end = i + n
			}
			take(bytes.TrimRight(chunk[begin:end], "\r\n"))
			if at = end + 1; at >= len(chunk) {
				return
			}
		}
	}
}

var scratch = sync.Pool{New: func() any { b := make([]byte, 0, chunkSize); return &b }}

// About returns a Pick of the lines that name one of some spool IDs as the value of a key.
func About(ids []string) Pick {
	wanted := make(map[string]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	return func(chunk []byte, take func(line []byte)) {
		for at := 0; at < len(chunk); {
			i := bytes.IndexByte(chunk[at:], 'S')
			if i < 0 {
				return
			}
			i += at
			end := i + 1
			for end < len(chunk) && isIDByte(chunk[end]) {
				end++
			}
			at = end
			// A key's value begins behind =, a JSON string behind a quote, Postfix's behind a blank.
			if i > 0 && isIDByte(chunk[i-1]) || end-i < 4 || !wanted[string(chunk[i:end])] {
				continue
			}
			begin := bytes.LastIndexByte(chunk[:i], '\n') + 1
			last := len(chunk)
			if n := bytes.IndexByte(chunk[i:], '\n'); n >= 0 {
				last = i + n
			}
			take(bytes.TrimRight(chunk[begin:last], "\r\n"))
			at = last
		}
	}
}

func isIDByte(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// lower appends b with the letters A to Z in lower case, eight bytes at a time.
func lower(to, b []byte) []byte {
	n := len(to)
	if cap(to)-n < len(b) {
		to = append(make([]byte, 0, n+len(b)), to...)
	}
	to = to[:n+len(b)]
	out := to[n:]
	const ones, high = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		seven := w &^ high
		// In each byte the high bit: it is at least A, and above Z.
		upper := (seven + (0x80-'A')*ones) &^ (seven + (0x80-'Z'-1)*ones) & high &^ w
		binary.LittleEndian.PutUint64(out[i:], w|upper>>2)
	}
	for ; i < len(b); i++ {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		out[i] = c
	}
	return to
}
