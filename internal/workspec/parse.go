package workspec

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/run/human"
)

// Parse reads a whole specification. It returns ErrUnknownFormat or a
// *SyntaxError; a torn last line or a missing z is no error, see Spec, nor is a line
// that cannot be read behind zeros where a block never reached the disk: the file is
// not Complete. Strings do not alias b.
func Parse(b []byte) (*Spec, error) { return parse(b, nil) }

// ParseOnly is Parse for who has to do with some of very many recipients: only those that
// want chooses are in the Spec, and of diagnostics and of events about one recipient's
// attempts only theirs. All else is as Parse has it.
func ParseOnly(b []byte, want func(offset int64, channel, host []byte) bool) (*Spec, error) {
	return parse(b, want)
}

func parse(b []byte, want func(offset int64, channel, host []byte) bool) (*Spec, error) {
	p := parser{b: b, s: &Spec{Size: int64(len(b))}, want: want, zeros: lost(b)}
	for p.pos < len(b) {
		n := bytes.IndexByte(b[p.pos:], '\n')
		if n < 0 {
			// Crash: a write(2) got this far. Nothing was promised for it.
			p.s.Torn = true
			break
		}
		p.line = b[p.pos : p.pos+n]
		next := p.pos + n + 1
		if reason, err := p.read(&next); err != nil {
			return nil, err
		} else if reason != "" && p.s.ZOffset == 0 && lost(b[:next]) {
			return p.s, nil
		} else if reason != "" {
			return nil, &SyntaxError{Offset: int64(p.pos), Line: string(p.line), Reason: reason}
		}
		p.pos = next
	}
	p.s.attribute()
	p.s.Complete = p.closed() && (p.s.ZOffset > 0 || !p.s.HasZ && !lost(b))
	return p.s, nil
}

// Complete reports whether b is a whole specification of a writer that closes its
// files: one that parses and whose z line is right. It is what recovery asks of a
// dead router's work file; of others, which may know no z line, see Spec.Complete.
func Complete(b []byte) bool {
	s, err := Parse(b)
	return err == nil && s.Complete && s.HasZ
}

// parser is the state of one pass over a file.
type parser struct {
	b    []byte
	s    *Spec
	pos  int    // offset of the line at hand
	line []byte // without its newline

	group    *Group     // the last s line's
	rcpt     *Recipient // the last r line's
	cut      bool       // the file ends inside a header block
	zeros    bool       // there are some: the checksum is to be asked
	sum      sum        // of the bytes before summed
	summed   int
	appended bool   // past the z line
	seen     uint32 // bits of the letters of preamble lines that may occur once

	want   func(offset int64, channel, host []byte) bool // nil: all
	chosen []int64                                       // offsets of those that it chose
	other  Recipient                                     // scratch: one that it did not
	gap    bool                                          // the last one was such

	texts strings.Builder // where strings are put, many in one allocation
}

// read reads one line. A header block's end is put into next. reason says what is
// wrong with a line that cannot be ignored.
func (p *parser) read(next *int) (reason string, err error) {
	if len(p.line) == 0 {
		p.s.Ignored++ // two writers ended one torn line
		return "", nil
	}
	if p.line[len(p.line)-1] == canceled && (p.line[0] == 'd' || p.line[0] == 'h') {
		p.s.Ignored++ // torn, and ended by the next writer
		return "", nil
	}
	switch p.line[0] {
	case '@':
		return p.format()
	case 's', 'r', 'N', 'R', 'n', 'm':
		if p.appended {
			return "line of a group behind the z line", nil
		}
		return p.groupLine(next), nil
	case 'i', 'o', 'v', 'l', 'u', 'c', 'e', 'x', 'T':
		return p.preamble(), nil
	case 'M':
		if p.s.Format&FormatM != 0 && len(p.line) == 1 {
			p.mimeBlock(next)
			return "", nil
		}
	case 'V':
		if !p.appended && p.verp() {
			return "", nil
		}
	case 'z':
		p.closing()
		return "", nil
	case 'd':
		if d, ok := p.diagnostic(); ok {
			if p.others(d.Recipient) {
				return "", nil
			}
			p.s.Diagnostics = append(p.s.Diagnostics, d)
			return "", nil
		}
	case 'h':
		if p.othersEvent() {
			return "", nil
		}
		if e, ok := p.event(); ok {
			p.s.History = append(p.s.History, e)
			return "", nil
		}
	}
	p.s.Ignored++
	return "", nil
}

// format reads the @ line.
func (p *parser) format() (reason string, err error) {
	bits, ok := hexOrDecimal(p.value())
	if !ok {
		return "bad number in @ line", nil
	}
	if bits&^FormatOurs != 0 {
		return "", fmt.Errorf("%w: %#08x", ErrUnknownFormat, bits)
	}
	if p.pos != 0 {
		return "@ line is not the first", nil
	}
	p.s.Format = bits
	return "", nil
}

// preamble reads a line that has one value, at any place.
func (p *parser) preamble() (reason string) {
	id := p.line[0]
	if len(p.line) > 1 && p.line[1] != ' ' {
		if id == 'i' || id == 'o' {
			return "no blank after the letter"
		}
		p.s.Ignored++
		return ""
	}
	s, v := p.s, p.value()
	switch id {
	case 'e':
		s.ErrorTo = append(s.ErrorTo, p.text(v))
	case 'x':
		s.Obsoletes = append(s.Obsoletes, p.text(v))
	case 'T':
		s.Start = append(s.Start, p.text(v))
	case 'c':
		p.origin(v)
	default:
		bit := uint32(1) << (id - 'a')
		if p.seen&bit != 0 {
			return "second line of its kind"
		}
		p.seen |= bit
		return p.single(id, v)
	}
	return ""
}

// single reads a line that may occur once.
func (p *parser) single(id byte, v []byte) (reason string) {
	switch s := p.s; id {
	case 'i':
		if len(v) == 0 {
			return "no name in i line"
		}
		s.Message, s.NameOffset = p.text(v), int64(p.pos)+2
	case 'o':
		n, ok := decimal(v)
		if !ok {
			return "bad number in o line"
		}
		s.BodyOffset = n
	case 'v':
		s.Verbose = p.text(v)
	case 'l':
		s.Ident = p.text(v)
	case 'u':
		s.Own = string(v) == own
	}
	return ""
}

// origin reads a c line. Nothing depends on it, so a second one is passed over.
func (p *parser) origin(v []byte) {
	s := p.s
	if s.Client != "" || s.ClientName != "" || s.User != "" {
		s.Ignored++
		return
	}
	for _, to := range [...]*string{&s.Client, &s.ClientName, &s.User} {
		word, rest, _ := bytes.Cut(v, []byte{' '})
		if v = rest; string(word) != none {
			*to = p.text(word)
		}
	}
}

// closing reads a z line. The first one that is not the promise decides.
func (p *parser) closing() {
	p.s.HasZ = true
	if p.appended || string(p.line) == promise {
		p.s.Ignored++
		return
	}
	digits, check, _ := bytes.Cut(p.value(), []byte{' '})
	n, ok := decimal(digits)
	p.appended = true
	p.sumUp(p.pos, p.pos)
	if !ok || p.line[1] != ' ' || n != int64(p.pos) || !p.closed() || p.zeros && !p.sum.right(check) && lost(p.b[:p.pos]) {
		p.s.Ignored++
		return
	}
	p.s.ZOffset = n
}

// closed reports whether every group so far ends with its header block.
func (p *parser) closed() bool {
	groups := p.s.Groups
	return len(groups) > 0 && groups[len(groups)-1].HeaderOffset > 0 && !p.cut
}

// value returns what follows the letter and the byte behind it.
func (p *parser) value() []byte { return p.line[min(2, len(p.line)):] }

// text copies v into a string that shares its memory with its neighbours in the
// file but not with b.
func (p *parser) text(v []byte) string {
	if len(v) == 0 {
		return ""
	}
	start := p.room(len(v))
	p.texts.Write(v)
	return p.texts.String()[start:]
}

// room makes room for n bytes in texts and says where they will start.
func (p *parser) room(n int) int {
	if p.texts.Cap()-p.texts.Len() < n {
		// A grown Builder would copy what is there; a new one leaves it in place.
		size := min(max(512, 2*p.texts.Cap()), 16<<10, len(p.b)-p.pos)
		p.texts.Reset()
		p.texts.Grow(max(size, n))
	}
	return p.texts.Len()
}

// textLike is text(v), or last if it says the same: neighbouring lines repeat much.
func (p *parser) textLike(v []byte, last string) string {
	if string(v) == last {
		return last
	}
	return p.text(v)
}

// diagnostic reads a d line. ok is false for one that was torn and then ended by
// the next writer.
func (p *parser) diagnostic() (d Diagnostic, ok bool) {
	if len(p.line) < 2 {
		return d, false
	}
	head, rest, tab := bytes.Cut(p.line[2:], []byte{'\t'})
	if !tab {
		return d, false
	}
	var n [5]int64
	for i := range n {
		field, more, colon := bytes.Cut(head, []byte{':'})
		if colon == (i == len(n)-1) {
			return d, false
		}
		head = more
		if i == 3 {
			continue // always empty
		}
		if n[i], ok = number(field); !ok {
			return d, false
		}
	}
	notary, text, _ := bytes.Cut(rest, []byte{'\t'})
	return Diagnostic{
		LineOffset:   int64(p.pos),
		Reported:     Tag(p.line[1]) == TagOK,
		Recipient:    n[0],
		HeaderOffset: n[1],
		NotaryOffset: n[2],
		Time:         time.Unix(max(n[4], 0), 0),
		Notary:       ParseNotary(p.text(notary)),
		Text:         p.lines(text),
	}, true
}

// event reads an h line; ok as for diagnostic.
func (p *parser) event() (e Event, ok bool) {
	if len(p.line) < 2 || p.line[1] != ' ' {
		return e, false
	}
	stamp, rest, _ := bytes.Cut(p.line[2:], []byte{' '})
	offset, rest, _ := bytes.Cut(rest, []byte{' '})
	word, rest, _ := bytes.Cut(rest, []byte{' '})
	ms, ok1 := decimal(stamp)
	off, ok2 := decimal(offset)
	if !ok1 || !ok2 || len(word) == 0 || hasControl(word) {
		return e, false
	}
	e = Event{LineOffset: int64(p.pos), Time: time.UnixMilli(ms), Recipient: off, Event: p.text(word)}
	for len(rest) > 0 {
		word, more, _ := bytes.Cut(rest, []byte{' '})
		eq := bytes.IndexByte(word, '=')
		if eq <= 0 {
			if len(word) == 0 {
				rest = rest[1:] // the second blank that sets text off
			}
			e.Text = p.lines(rest)
			break
		}
		if hasControl(word) {
			return e, false
		}
		if e.Attrs == nil {
			e.Attrs = make([]Attr, 0, 4)
		}
		e.Attrs = append(e.Attrs, Attr{p.text(word[:eq]), p.text(word[eq+1:])})
		rest = more
	}
	return e, true
}

// lines is text with its newlines, which are CR in the file.
func (p *parser) lines(v []byte) string {
	if len(v) == 0 {
		return ""
	}
	start := p.room(len(v))
	for {
		line, rest, cr := bytes.Cut(v, []byte{'\r'})
		p.texts.Write(line)
		if !cr {
			return p.texts.String()[start:]
		}
		p.texts.WriteByte('\n')
		v = rest
	}
}

func hasControl(v []byte) bool {
	for _, c := range v {
		if human.IsControl(c) {
			return true
		}
	}
	return false
}

// number is decimal for a field in which ZMailer writes -1 for none: its agents do so for
// the offset of an N line that a recipient does not have.
func number(v []byte) (n int64, ok bool) {
	if string(v) == "-1" {
		return None, true
	}
	return decimal(v)
}

// decimal reads up to 18 digits, nothing else.
func decimal(v []byte) (n int64, ok bool) {
	if len(v) == 0 || len(v) > 18 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// hexOrDecimal reads the @ line's number as C's %i does.
func hexOrDecimal(v []byte) (uint32, bool) {
	n, err := strconv.ParseUint(string(v), 0, 32)
	return uint32(n), err == nil && bytes.IndexByte(v, '_') < 0
}

// groupLine reads a line of a group: s, r, N, R, n, or m with its header block.
func (p *parser) groupLine(next *int) (reason string) {
	switch p.line[0] {
	case 's':
		return p.sender()
	case 'r':
		return p.recipient()
	case 'm':
		return p.headers(next)
	}
	if p.rcpt == nil {
		return "no recipient before it"
	}
	if len(p.line) > 1 && p.line[1] != ' ' {
		return "no blank after the letter"
	}
	field := &p.rcpt.Notary
	switch p.line[0] {
	case 'N':
		if p.rcpt.NotaryOffset != 0 {
			return "second line of its kind"
		}
		p.rcpt.NotaryOffset = int64(p.pos)
	case 'R':
		field = &p.rcpt.Ret
	case 'n':
		field = &p.rcpt.EnvID
	}
	if *field != "" {
		return "second line of its kind"
	}
	if p.rcpt == &p.other {
		if len(p.value()) > 0 {
			*field = "-"
		}
		return ""
	}
	*field = p.text(p.value())
	return ""
}

// sender begins a group.
func (p *parser) sender() (reason string) {
	f, reason := splitAddress(p.value())
	if reason != "" {
		return reason
	}
	if p.line[1] != ' ' {
		return "no blank after the letter"
	}
	groups := append(p.s.Groups, Group{})
	p.s.Groups = groups
	p.group = &groups[len(groups)-1]
	p.rcpt = nil
	p.group.Sender = Sender{Offset: int64(p.pos), Channel: p.text(f.channel)}
	s := &p.group.Sender
	s.Host = p.text(f.host)
	s.Address = p.textLike(f.address, s.Host)
	s.Privilege = p.text(f.privilege)
	return ""
}

// verp reads a V line, which is between an s line and its first r line. It reports
// whether it is one.
func (p *parser) verp() bool {
	if p.group == nil || p.rcpt != nil || p.group.HeaderOffset > 0 || p.group.Sender.VERP != "" || len(p.line) < 3 || p.line[1] != ' ' {
		return false
	}
	p.group.Sender.VERP = p.text(p.value())
	return true
}

// recipient reads an r line: tag, owner and delay have fixed places.
func (p *parser) recipient() (reason string) {
	if p.group == nil {
		return "recipient without a sender before it"
	}
	if p.group.HeaderOffset > 0 {
		return "recipient behind its group's header block"
	}
	at := 2
	r := Recipient{Offset: int64(p.pos)}
	if p.s.Format&FormatPID != 0 {
		at += ownerWidth
	}
	delay := at
	if p.s.Format&FormatDelay != 0 {
		at += delayWidth
	}
	if len(p.line) < at {
		return "recipient line is too short"
	}
	switch r.Tag = Tag(p.line[1]); r.Tag {
	case TagToDo, TagLocked, TagOK, TagFailed:
	default:
		return "unknown tag"
	}
	f, reason := splitAddress(p.line[at:])
	if reason != "" {
		return reason
	}
	p.sumUp(p.pos+1, p.pos+at)
	if p.want != nil && !p.want(r.Offset, f.channel, f.host) {
		p.other = r
		p.rcpt = &p.other
		p.gap = true
		return ""
	}
	// Right-aligned: blanks behind the number are a lock that a crash has torn, whose
	// first digits are no one's number.
	if n, ok := decimal(bytes.TrimLeft(p.line[2:delay], " ")); ok {
		r.Owner = int(n)
	}
	r.Delay = p.text(bytes.Trim(p.line[delay:at], " "))
	p.take(&r, &f)
	return ""
}

// take adds a recipient to the group.
func (p *parser) take(r *Recipient, f *addressFields) {
	last := &Recipient{}
	if p.rcpt != nil {
		last = p.rcpt
	}
	r.Channel = p.textLike(f.channel, last.Channel)
	r.Host = p.textLike(f.host, last.Host)
	r.Address = p.text(f.address)
	r.Privilege = p.textLike(f.privilege, last.Privilege)
	list := p.group.Recipients
	if n := len(list); n == cap(list) && n >= 256 {
		// append alone would add a quarter at a time
		list = slices.Grow(list, min(p.likely(list), 7*n))
	}
	if p.want != nil {
		p.chosen = append(p.chosen, r.Offset)
		if p.gap {
			p.s.Apart, p.gap = append(p.s.Apart, r.Offset), false
		}
	}
	p.group.Recipients = append(list, *r)
	p.rcpt = &p.group.Recipients[len(list)]
}

// likely returns how many recipients follow, if all that follows is recipients like those in
// the list and all are wanted.
func (p *parser) likely(list []Recipient) int {
	size := (p.pos - int(list[0].Offset)) / len(list)
	return (len(p.b)-p.pos)/max(size, 1) + 16
}

// others recognizes an offset of a recipient that is not wanted.
func (p *parser) others(recipient int64) bool {
	if p.want == nil || recipient == 0 {
		return false
	}
	_, chosen := slices.BinarySearch(p.chosen, recipient)
	return !chosen
}

// othersEvent recognizes an h line about an attempt for one recipient that is not wanted,
// without reading all of it. Orders and decisions are always read: they may say something
// of the whole message.
func (p *parser) othersEvent() bool {
	if p.want == nil || len(p.line) < 2 {
		return false
	}
	_, rest, _ := bytes.Cut(p.line[2:], []byte{' '})
	field, rest, _ := bytes.Cut(rest, []byte{' '})
	word, _, _ := bytes.Cut(rest, []byte{' '})
	switch string(word) {
	case EventSent, EventDeferred, EventInDoubt, EventUnlocked:
		n, ok := decimal(field)
		return ok && p.others(n)
	}
	return false
}

// headers finds the end of a header block, whose lines may begin with anything, and
// gives it to every group that still has none.
func (p *parser) headers(next *int) (reason string) {
	if p.group == nil {
		return "header block without a sender before it"
	}
	if p.group.HeaderOffset > 0 {
		return "second header block of a group"
	}
	if len(p.line) != 1 {
		return "m is not alone on its line"
	}
	start := *next
	end, after := p.block(start)
	for i := len(p.s.Groups) - 1; i >= 0 && p.s.Groups[i].HeaderOffset == 0; i-- {
		p.s.Groups[i].HeaderOffset, p.s.Groups[i].HeaderEnd = int64(start), int64(end)
	}
	p.rcpt = nil
	p.cut = after == end
	*next = after
	return ""
}

// mimeBlock passes over an M block, which is made like an m block.
func (p *parser) mimeBlock(next *int) {
	_, *next = p.block(*next)
	p.s.Ignored++
}

// block finds the empty line that closes the block at start, and what is after it.
// Without one, both are the end of the last whole line.
func (p *parser) block(start int) (end, after int) {
	rest := p.b[start:]
	if len(rest) > 0 && rest[0] == '\n' {
		return start, start + 1
	}
	if i := bytes.Index(rest, []byte("\n\n")); i >= 0 {
		return start + i + 1, start + i + 2
	}
	end = start + bytes.LastIndexByte(rest, '\n') + 1
	p.s.Torn = end < len(p.b)
	return end, end
}

// addressFields are those of an s or r line.
type addressFields struct{ channel, host, address, privilege []byte }

// splitAddress parts "CHANNEL HOST ADDRESS PRIVILEGE". The address may hold blanks,
// the others not, so it is what is left between both ends.
func splitAddress(v []byte) (f addressFields, reason string) {
	channel, rest, _ := bytes.Cut(v, []byte{' '})
	host, rest, _ := bytes.Cut(rest, []byte{' '})
	last := bytes.LastIndexByte(rest, ' ')
	switch {
	case len(channel) == 0:
		return f, "no channel"
	case len(host) == 0:
		return f, "no host"
	case last < 0 || last == len(rest)-1:
		return f, "no privilege"
	}
	return addressFields{channel, host, rest[:last], rest[last+1:]}, ""
}

// attribute finds out which recipient each diagnostic counts for: the one at its offset.
// Transport agents that are not ours may name a wrong one. Where there is no recipient, or
// one with another address, the diagnostic counts for the first recipient with its address
// that has none so far. Every reader has to decide this alike, so it is decided here.
func (s *Spec) attribute() {
	var strays []*Diagnostic
	for i := range s.Diagnostics {
		d := &s.Diagnostics[i]
		d.Of = 0
		if r := s.find(d.Recipient); r != nil && (d.Notary.Address == "" || d.Notary.Address == r.Address) {
			d.Of = r.Offset
		} else {
			strays = append(strays, d)
		}
	}
	if len(strays) == 0 {
		return
	}
	byAddress := map[string][]int64{}
	for gi := range s.Groups {
		for ri := range s.Groups[gi].Recipients {
			r := &s.Groups[gi].Recipients[ri]
			byAddress[r.Address] = append(byAddress[r.Address], r.Offset)
		}
	}
	has := map[int64]bool{}
	for i := range s.Diagnostics {
		has[s.Diagnostics[i].Of] = true
	}
	for _, d := range strays {
		list := byAddress[d.Notary.Address]
		if i := slices.IndexFunc(list, func(off int64) bool { return !has[off] }); i >= 0 {
			d.Of = list[i]
		} else if len(list) > 0 {
			d.Of = list[len(list)-1]
		} else if r := s.find(d.Recipient); r != nil {
			d.Of = r.Offset // whose address the agent has rewritten
		}
		has[d.Of] = true
	}
}

// Failed reports whether the diagnostic says that the recipient has failed: its action
// (RFC 3464 section 2.3.3) is no other one that there is.
func (d *Diagnostic) Failed() bool {
	switch strings.ToLower(d.Notary.Action) {
	case "delivered", "relayed", "expanded", "delayed":
		return false
	}
	return true
}
