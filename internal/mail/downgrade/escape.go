package downgrade

// escape takes a byte of a part that is quoted-printable already. What its encoding allows
// stays, besides soft line breaks, which are added where a line is too long. A byte that it
// does not allow is escaped. So is a = before such a byte, or it would escape what becomes
// of it; any other = that escapes nothing stays, as readers disagree about it.
//
// What may be an escape sequence, a soft line break, or white space at the end of a line is
// held until it is known. The inspector has looked how long that can be.
func (c *converter) escape(ch byte) {
	if ch == '\n' {
		c.endHeld()
		c.out = append(c.out, '\n')
		c.line, c.broken, c.glued = 0, false, false
		return
	}
	if n := len(c.held); n > 0 {
		if c.held[n-1] == '\r' { // it ends no line
			c.held = c.held[:n-1]
			c.release(true)
			c.code('\r')
		} else if c.held[0] == '=' {
			if c.continues(ch) {
				return
			}
			c.release(class[ch]&isHigh != 0 && ch != '=')
		}
	}
	switch {
	case ch == ' ' || ch == '\t' || ch == '\r':
		c.held = append(c.held, ch)
	case ch == '=':
		c.release(false)
		c.held = append(c.held, ch)
	case ch > ' ' && ch < 0x7f:
		c.release(false)
		c.plain(ch)
	default:
		c.release(true)
		c.code(ch)
	}
}

// continues takes a byte behind a held =, and reports whether it belongs to it.
func (c *converter) continues(ch byte) bool {
	n := len(c.held)
	digit := n > 1 && isHex(c.held[1])
	switch {
	case digit && isHex(ch):
		c.room(3)
		c.out = append(c.out, '=', c.held[1], ch)
		c.held = c.held[:0]
		return true
	case n == 1 && isHex(ch), !digit && (ch == ' ' || ch == '\t' || ch == '\r'):
		c.held = append(c.held, ch)
		return true
	}
	return false
}

// release writes the held bytes: more of the line follows, and a = among them escapes nothing.
// coded: the next byte will be escaped.
func (c *converter) release(coded bool) {
	held := c.held
	c.held = c.held[:0]
	if len(held) > 0 && held[0] == '=' {
		if coded && (len(held) == 1 || isHex(held[1])) {
			c.code('=')
		} else {
			c.room(1)
			c.out = append(c.out, '=')
			c.glued = true // a line break would give it a meaning
		}
		held = held[1:]
	}
	for _, ch := range held {
		if ch == ' ' || ch == '\t' {
			c.out = append(c.out, ch) // no line break: it could become the end of a line
			c.line++
			c.glued = false
			continue
		}
		c.plain(ch)
	}
}

// endHeld writes the held bytes at the end of a line, or of the part: white space, or a soft
// line break, with a CR.
func (c *converter) endHeld() {
	var end []byte
	if n := len(c.held); n > 0 && c.held[n-1] == '\r' {
		c.held, end = c.held[:n-1], c.held[n-1:]
	}
	c.out = append(append(c.out, c.held...), end...)
	c.held = c.held[:0]
}

func isHex(ch byte) bool {
	return '0' <= ch && ch <= '9' || 'A' <= ch && ch <= 'F' || 'a' <= ch && ch <= 'f'
}

// wrap breaks the lines of base64, where line ends mean nothing (RFC 2045 §6.8).
func (c *converter) wrap(b []byte) {
	const most = 76
	for _, ch := range b {
		switch {
		case ch == '\n':
			c.line = 0
		case c.line == most && ch != '\r':
			c.out = append(c.out, '\n')
			c.line = 1
		default:
			c.line++
		}
		c.out = append(c.out, ch)
	}
}
