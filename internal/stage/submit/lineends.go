package submit

import (
	"bytes"
	"io"
)

// lineEnds reads text whose lines end in CRLF as text whose lines end in LF: programs
// that write mail in its network form do this. The first line decides; text in which it has
// another end is not changed.
type lineEnds struct {
	r     io.Reader
	known bool   // the first line has ended
	crlf  bool   // in CRLF
	cr    bool   // a CR was read and what follows it was not
	buf   []byte // of r
	left  []byte // of buf, to be given
	err   error
}

func (l *lineEnds) Read(p []byte) (int, error) {
	if l.known && !l.crlf && len(l.left) == 0 && l.err == nil {
		return l.r.Read(p)
	}
	for len(l.left) == 0 && l.err == nil {
		l.fill()
	}
	if len(l.left) == 0 {
		return 0, l.err
	}
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}

// fill reads on. A CR at the end is kept back.
func (l *lineEnds) fill() {
	if l.buf == nil {
		l.buf = make([]byte, copyBuffer)
	}
	at := 0
	if l.cr {
		l.buf[0], at = '\r', 1
	}
	n, err := l.r.Read(l.buf[at:])
	b := l.buf[:at+n]
	l.cr, l.err = false, err
	if i := bytes.IndexByte(b, '\n'); !l.known && i >= 0 {
		l.known, l.crlf = true, i > 0 && b[i-1] == '\r'
	}
	if l.known && !l.crlf {
		l.left = b
		return
	}
	if err == nil && len(b) > 0 && b[len(b)-1] == '\r' {
		l.cr = true
		b = b[:len(b)-1]
	}
	if l.crlf {
		b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	}
	l.left = b
}
