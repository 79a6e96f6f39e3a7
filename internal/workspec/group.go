package workspec

import (
	"bytes"
	"slices"
)

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

// verp reads a V line, which stands between an s line and its first r line. It tells
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
	// first digits are nobody's number.
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

// likely is how many recipients follow, if all that follows is recipients like those in
// the list and all are wanted.
func (p *parser) likely(list []Recipient) int {
	size := (p.pos - int(list[0].Offset)) / len(list)
	return (len(p.b)-p.pos)/max(size, 1) + 16
}

// others tells an offset of a recipient that is not wanted.
func (p *parser) others(recipient int64) bool {
	if p.want == nil || recipient == 0 {
		return false
	}
	_, chosen := slices.BinarySearch(p.chosen, recipient)
	return !chosen
}

// othersEvent tells an h line about an attempt for one recipient that is not wanted,
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
	_, after := p.block(*next)
	p.ignore(p.b[p.pos:max(after-1, p.pos)])
	*next = after
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
