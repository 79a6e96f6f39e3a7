package workspec

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/human"
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
	*w = Writer{W: to, buf: w.buf[:0]}
	w.buf = fmt.Appendf(w.buf, "@ 0x%08x\n%s\n", FormatOurs, promise)
}

// Preamble writes v, i, o, l, u, c, e, x, T lines of s (those that are set).
func (w *Writer) Preamble(s *Spec) {
	w.optional('v', s.Verbose)
	w.optional('i', s.Message)
	w.number('o', s.BodyOffset)
	w.optional('l', s.Ident)
	if s.Own {
		w.value('u', own)
	}
	w.origin(s)
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

// origin writes the c line. It is for operators: a value that does not fit is left out, and
// the message goes on.
func (w *Writer) origin(s *Spec) {
	if s.Client == "" && s.User == "" {
		return
	}
	w.buf = append(w.buf, "c"...)
	for _, word := range [...]string{s.Client, s.ClientName, s.User} {
		if word == "" || strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			word = none
		}
		w.buf = append(append(w.buf, ' '), word...)
	}
	w.buf = append(w.buf, '\n')
}

// Close writes the z line with its checksum, and what is still in the buffer.
func (w *Writer) Close() error {
	if w.groups == 0 || w.open != noGroup {
		w.fail(fmt.Errorf("%w: no recipients, or no header block behind them", ErrValue))
	}
	w.sumUp()
	w.buf = append(strconv.AppendInt(append(w.buf, "z "...), w.offset(), 10), w.sum.appendSum(nil)...)
	w.buf = append(w.buf, '\n')
	w.flush(0)
	if w.err != nil {
		return fmt.Errorf("write work specification: %w", w.err)
	}
	return nil
}

// offset returns the offset of the next byte.
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
		switch c := v[i]; {
		case c > ' ':
		case c == '\n', c == '\r', c == 0, strings.IndexByte(more, c) >= 0:
			w.fail(fmt.Errorf("%w: %q", ErrValue, v))
			return
		}
	}
}

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
	w.buf = append(w.buf, 's', ' ')
	w.address(s.Channel, s.Host, s.Address, s.Privilege)
	w.optional('V', s.VERP)
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
	w.buf = append(w.buf, 'r')
	w.sumUp()
	w.tag(r)
	w.summed = len(w.buf)
	w.address(r.Channel, r.Host, r.Address, r.Privilege)
	w.optional('N', r.Notary)
	w.optional('R', r.Ret)
	w.optional('n', r.EnvID)
	w.flush(flushSize)
}

// tag writes what may change in place: tag, owner and delay.
func (w *Writer) tag(r *Recipient) {
	tag := cmp.Or(r.Tag, TagToDo)
	switch tag {
	case TagToDo, TagLocked, TagOK, TagFailed:
	default:
		w.fail(fmt.Errorf("%w: tag %q", ErrValue, byte(tag)))
	}
	if r.Owner < 0 || r.Owner > maxOwner || len(r.Delay) > delayWidth {
		w.fail(fmt.Errorf("%w: owner %d or delay %q is too long", ErrValue, r.Owner, r.Delay))
	}
	w.check(r.Delay, "")
	w.buf = appendOwner(append(w.buf, byte(tag)), r.Owner)
	for range delayWidth - min(delayWidth, len(r.Delay)) {
		w.buf = append(w.buf, ' ')
	}
	w.buf = append(w.buf, r.Delay...)
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

// AppendDiagnostic appends d's line to b. A line end in Text is written as CR, one
// in a Notary value as a blank.
func AppendDiagnostic(b []byte, d *Diagnostic) []byte {
	tag := byte(' ')
	if d.Reported {
		tag = byte(TagOK)
	}
	b = append(b, 'd', tag)
	for _, n := range [...]int64{d.Recipient, d.HeaderOffset, d.NotaryOffset} {
		b = append(strconv.AppendInt(b, max(n, None), 10), ':')
	}
	b = append(b, ':')
	b = strconv.AppendInt(b, unix(d.Time, time.Time.Unix), 10)
	b = append(b, '\t')
	n := d.Notary
	n.Way = "" // it is for the log alone
	b = appendNotary(b, &n)
	b = append(b, '\t')
	b = appendText(b, d.Text)
	return append(b, '\n')
}

// AppendEvent appends e's line to b. A line end in Text is written as CR; blanks and
// control characters in Event and in attributes become "_". Text that would read
// as an attribute, or starts with a blank, is set off by a second blank.
func AppendEvent(b []byte, e *Event) []byte {
	b = append(b, "h "...)
	b = strconv.AppendInt(b, unix(e.Time, time.Time.UnixMilli), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, max(e.Recipient, 0), 10)
	b = append(b, ' ')
	b = appendWord(b, e.Event, false)
	for _, a := range e.Attrs {
		b = append(b, ' ')
		b = appendWord(b, a.Key, true)
		b = append(b, '=')
		if a.Value != "" {
			b = appendWord(b, a.Value, false)
		}
	}
	if e.Text != "" {
		b = append(b, ' ')
		if startsLikeAttr(e.Text) {
			b = append(b, ' ')
		}
		b = appendText(b, e.Text)
	}
	return append(b, '\n')
}

// unix is t in the given unit, never negative: the zero time is 0.
func unix(t time.Time, in func(time.Time) int64) int64 { return max(in(t), 0) }

// canceled, CAN, ends a d or h line that was torn: the next writer puts it there
// (postoffice.Spec.Append).
const canceled = 0x18

// appendText appends text, the end of a line, with CR for each newline.
func appendText(b []byte, text string) []byte {
	start := len(b)
	b = append(b, text...)
	for i := start; i < len(b); i++ {
		if b[i] == '\n' {
			b[i] = '\r'
		}
	}
	if len(b) > start && b[len(b)-1] == canceled {
		b[len(b)-1] = '?'
	}
	return b
}

// appendWord appends s as one word, "-" if it is empty.
func appendWord(b []byte, s string, key bool) []byte {
	if s == "" {
		return append(b, '-')
	}
	start := len(b)
	b = append(b, s...)
	for i := start; i < len(b); i++ {
		if b[i] == ' ' || human.IsControl(b[i]) || key && b[i] == '=' {
			b[i] = '_'
		}
	}
	return b
}

// startsLikeAttr recognizes text that a reader would take for another attribute.
func startsLikeAttr(text string) bool {
	word, _, _ := strings.Cut(text, " ")
	return word == "" || strings.IndexByte(word, '=') > 0
}

// sum is the checksum of what the router wrote, which the z line carries: CRC-32C of
// every byte before it but the tags, owners and delays of recipients, which are
// changed in place. A power loss may keep a file's length and leave
// zeros in its middle; the length alone would not show it. The sum is asked where there are
// zeros; a file that an operator has edited is read as it is.
type sum uint32

func (s sum) add(b []byte) sum {
	return sum(crc32.Update(uint32(s), crc32.MakeTable(crc32.Castagnoli), b))
}

// sumUp brings the parser's checksum up to the byte at to; it goes on at from. Without
// zeros no one asks for it.
func (p *parser) sumUp(to, from int) {
	if p.zeros {
		p.sum, p.summed = p.sum.add(p.b[p.summed:to]), from
	}
}

// fixedWidth returns how many bytes behind the r change in place in a format.
func fixedWidth(format uint32) int {
	n := 1
	if format&FormatPID != 0 {
		n += ownerWidth
	}
	if format&FormatDelay != 0 {
		n += delayWidth
	}
	return n
}

// appendSum appends the checksum as it is in a z line, behind a blank.
func (s sum) appendSum(b []byte) []byte { return fmt.Appendf(b, " %08x", uint32(s)) }

// right reports whether the text is this checksum. Writers of before had none.
func (s sum) right(text []byte) bool {
	if len(text) == 0 {
		return true
	}
	n, err := strconv.ParseUint(string(text), 16, 32)
	return err == nil && len(text) == 8 && uint32(n) == uint32(s)
}

// hasSum reports whether the z line at an offset of a file carries a checksum.
func hasSum(file []byte, z int64) bool {
	if z <= 0 || z >= int64(len(file)) {
		return false
	}
	line, _, _ := bytes.Cut(file[z:], []byte{'\n'})
	return bytes.Count(line, []byte{' '}) == 2
}

// lost reports whether bytes hold zeros where a block of the disk was never written: more of
// them than anybody writes by hand, or nothing else. A header may hold so many, too, as
// its sender wrote them; then the checksum is right.
func lost(b []byte) bool {
	const least = 16
	return bytes.Contains(b, make([]byte, least)) || len(b) > 0 && len(bytes.Trim(b, "\x00")) == 0
}

// For returns the address that a recipient gets the message from: the sender's, or with VERP
// one that names the recipient, so that whatever comes back names whom it is about:
// owner-list+user=host.example@our.example. The recipient's domain is written in A-labels.
// A sender without a domain, or a recipient that is no address with one, has no such form.
func (s *Sender) For(recipient string) string {
	if s.VERP == "" {
		return s.Address
	}
	from, err := address.Parse(s.Address)
	if err != nil || from.Domain == "" {
		return s.Address
	}
	to, err := address.Parse(recipient)
	if err != nil || to.Domain == "" {
		return s.Address
	}
	domain, err := to.ASCIIDomain()
	if err != nil {
		return s.Address
	}
	// A literal's brackets would need quotes, which few bring back unharmed.
	domain = strings.Trim(domain, "[]")
	from.Local += s.VERP + to.Local + "=" + domain
	return from.String()
}
