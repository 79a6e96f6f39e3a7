package workspec

import (
	"bytes"
	"fmt"
)

// groupState is how far a Writer has got with a group.
type groupState int

const (
	noGroup    groupState = iota // none is begun, or its header block is written
	emptyGroup                   // begun, without a recipient
	openGroup                    // with recipients, without a header block
)

// Group writes the s line, then each recipient's r, N, R, n lines, then the m block
// with the given header bytes; see Begin, Recipient and Header.
func (w *Writer) Group(s Sender, rcpts []Recipient, header []byte) {
	w.Begin(&s)
	for i := range rcpts {
		w.Recipient(&rcpts[i])
	}
	w.Header(header)
}

// Begin writes the s line of a group; its recipients follow, each by Recipient. Groups
// that are begun before a Header share the block that it writes.
func (w *Writer) Begin(s *Sender) {
	if w.open == emptyGroup {
		w.fail(errNoRecipients)
	}
	w.sender(s)
	w.open = emptyGroup
}

var errNoRecipients = fmt.Errorf("%w: a group without recipients", ErrValue)

// ErrorTo adds an e line between two groups, or before the first.
func (w *Writer) ErrorTo(address string) { w.value('e', address) }

// Recipient writes one recipient of the group begun last: its r, N, R, n lines. A zero
// Tag is written as TagToDo; offsets are not looked at.
func (w *Writer) Recipient(r *Recipient) {
	if w.open == noGroup {
		w.fail(fmt.Errorf("%w: recipient %q without a group", ErrValue, r.Address))
	}
	w.open = openGroup
	w.recipient(r)
}

// Header ends the groups begun since the last one with the m block: whole lines, no
// empty line among them; a missing last newline is added and the closing empty line
// written.
func (w *Writer) Header(header []byte) {
	if w.open != openGroup {
		w.fail(errNoRecipients)
	}
	w.header(header)
	if n := len(header); n > 0 && header[n-1] != '\n' {
		w.buf = append(w.buf, '\n')
	}
	w.buf = append(w.buf, '\n')
	w.groups++
	w.open = noGroup
	w.flush(flushSize)
}

// Err is the first error so far: what is written behind it is dropped.
func (w *Writer) Err() error { return w.err }

func (w *Writer) sender(s *Sender) {
	w.buf = append(w.buf, 's', ' ')
	w.address(s.Channel, s.Host, s.Address, s.Privilege)
	w.optional('V', s.VERP)
}

func (w *Writer) recipient(r *Recipient) {
	tag := r.Tag
	switch tag {
	case 0:
		tag = TagToDo
	case TagToDo, TagLocked, TagOK, TagFailed:
	default:
		w.fail(fmt.Errorf("%w: tag %q", ErrValue, byte(tag)))
	}
	w.buf = append(w.buf, 'r')
	w.sumUp()
	w.buf = append(w.buf, byte(tag))
	if r.Owner < 0 || r.Owner > maxOwner || len(r.Delay) > delayWidth {
		w.fail(fmt.Errorf("%w: owner %d or delay %q is too long", ErrValue, r.Owner, r.Delay))
	}
	if w.format&FormatPID != 0 {
		w.buf = appendOwner(w.buf, r.Owner)
	}
	if w.format&FormatDelay != 0 {
		w.check(r.Delay, "")
		for range delayWidth - min(delayWidth, len(r.Delay)) {
			w.buf = append(w.buf, ' ')
		}
		w.buf = append(w.buf, r.Delay...)
	}
	w.summed = len(w.buf)
	w.address(r.Channel, r.Host, r.Address, r.Privilege)
	w.optional('N', r.Notary)
	w.optional('R', r.Ret)
	w.optional('n', r.EnvID)
	w.flush(flushSize)
}

// header writes "m NL" and the block.
func (w *Writer) header(b []byte) {
	if bytes.HasPrefix(b, []byte("\n")) || bytes.Contains(b, []byte("\n\n")) {
		w.fail(fmt.Errorf("%w: an empty line within the headers", ErrValue))
	}
	w.buf = append(w.buf, "m\n"...)
	if len(b) < flushSize {
		w.buf = append(w.buf, b...)
		return
	}
	w.flush(0)
	w.direct(b)
}
