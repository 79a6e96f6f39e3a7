package workspec

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// flushSize is how much a Writer gathers for one write(2). Bytes.
const flushSize = 64 << 10

// Writer writes a new specification, streaming. Errors stick and come out of Close.
type Writer struct {
	W io.Writer

	buf     []byte // not yet written to W
	written int64  // bytes written to W
	sum     sum    // of what was written, and of buf up to summed
	summed  int
	groups  int
	open    groupState
	format  uint32
	refused string // bytes that no value may hold
	err     error
}

// NewWriter starts a specification with the @ line and the promise of a z line.
func NewWriter(w io.Writer) *Writer {
	n := &Writer{}
	n.Reset(w)
	return n
}

// Reset starts a new specification on another writer and keeps the buffer.
func (w *Writer) Reset(to io.Writer) {
	*w = Writer{W: to, buf: w.buf[:0], format: FormatOurs, refused: "\n\r\x00"}
	w.formatLine(FormatOurs)
	w.buf = append(w.buf, promise+"\n"...)
}

// Preamble writes v, i, o, l, u, e, x, T lines of s (those that are set).
func (w *Writer) Preamble(s *Spec) {
	w.optional('v', s.Verbose)
	w.optional('i', s.Message)
	w.number('o', s.BodyOffset)
	w.optional('l', s.Ident)
	if s.Own {
		w.value('u', own)
	}
	for _, v := range s.ErrorTo {
		w.value('e', v)
	}
	for _, v := range s.Obsoletes {
		w.value('x', v)
	}
	for _, v := range s.Start {
		w.value('T', v)
	}
}

// Close writes the z line with its checksum, and what is still in the buffer.
func (w *Writer) Close() error {
	if w.groups == 0 || w.open != noGroup {
		w.fail(fmt.Errorf("%w: no recipients, or no header block behind them", ErrValue))
	}
	w.close()
	w.flush(0)
	if w.err != nil {
		return fmt.Errorf("write work specification: %w", w.err)
	}
	return nil
}

// offset is where the next byte will stand.
func (w *Writer) offset() int64 { return w.written + int64(len(w.buf)) }

// fail keeps the first error.
func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// flush writes the buffer if it holds that much. After an error nothing is written.
func (w *Writer) flush(atLeast int) {
	if len(w.buf) < atLeast {
		return
	}
	w.direct(w.buf)
	w.buf = w.buf[:0]
}

// close adds the z line.
func (w *Writer) close() {
	w.sumUp()
	w.buf = append(strconv.AppendInt(append(w.buf, "z "...), w.offset(), 10), w.sum.appendSum(nil)...)
	w.buf = append(w.buf, '\n')
}

// sumUp brings the checksum up to what is in the buffer.
func (w *Writer) sumUp() {
	w.sum, w.summed = w.sum.add(w.buf[w.summed:]), len(w.buf)
}

// direct writes b, the buffer or what follows an empty one.
func (w *Writer) direct(b []byte) {
	w.sum, w.summed = w.sum.add(b[w.summed:]), 0
	w.written += int64(len(b))
	if w.err != nil || len(b) == 0 {
		return
	}
	n, err := w.W.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		w.err = err
	}
}

func (w *Writer) formatLine(bits uint32) {
	w.buf = fmt.Appendf(w.buf, "@ 0x%08x\n", bits)
}

// optional writes a line if there is something to write.
func (w *Writer) optional(id byte, v string) {
	if v != "" {
		w.value(id, v)
	}
}

func (w *Writer) value(id byte, v string) {
	w.check(v, "")
	w.buf = append(w.buf, id, ' ')
	w.buf = append(w.buf, v...)
	w.buf = append(w.buf, '\n')
}

func (w *Writer) number(id byte, n int64) {
	if n < 0 {
		w.fail(fmt.Errorf("%w: negative offset in %c line", ErrValue, id))
	}
	w.buf = append(w.buf, id, ' ')
	w.buf = strconv.AppendInt(w.buf, n, 10)
	w.buf = append(w.buf, '\n')
}

func (w *Writer) address(channel, host, address, privilege string) {
	for _, word := range [...]string{channel, host, privilege} {
		if word == "" {
			w.fail(fmt.Errorf("%w: channel, host or privilege of %q is empty", ErrValue, address))
		}
		w.check(word, " ")
	}
	w.check(address, "")
	w.buf = append(append(w.buf, channel...), ' ')
	w.buf = append(append(w.buf, host...), ' ')
	w.buf = append(append(w.buf, address...), ' ')
	w.buf = append(append(w.buf, privilege...), '\n')
}

// check refuses a value that would end its line or, with more, shift its fields.
func (w *Writer) check(v, more string) {
	for i := 0; i < len(v); i++ {
		c := v[i]
		if c > ' ' {
			continue
		}
		for _, set := range [...]string{w.refused, more} {
			for j := 0; j < len(set); j++ {
				if c == set[j] {
					w.fail(fmt.Errorf("%w: %q", ErrValue, v))
					return
				}
			}
		}
	}
}

// errOffsets is Print's for a header block that is not in the file it was given.
var errOffsets = errors.New("header offsets point outside the file")
