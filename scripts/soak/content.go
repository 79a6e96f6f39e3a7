package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
)

// mark is the first line of each message's own header. What the system adds goes on
// top, so all from here to the end must arrive byte for byte.
const mark = "X-Soak: "

// content is a message as its submitter gives it, with LF line ends. Nothing of it is
// kept: it is made again from the numbers.
type content struct {
	seed uint64
	seq  int
	size int64 // of the body, bytes; the last line may have no end
	bare bool  // no byte at all
}

// reader returns the message's bytes.
func (c content) reader() io.Reader {
	if c.bare {
		return strings.NewReader("")
	}
	head := mark + strconv.Itoa(c.seq) + "\nSubject: message " + strconv.Itoa(c.seq) + "\n\n"
	return io.MultiReader(strings.NewReader(head), io.LimitReader(&lines{rand: rand.New(rand.NewPCG(c.seed, uint64(c.seq)))}, c.size))
}

// sum returns the hash of what must arrive.
func (c content) sum() ([sha256.Size]byte, error) {
	var a arrival
	in := newLineReader(c.reader())
	for {
		line, err := in.next()
		if len(line) > 0 {
			a.line(line)
		}
		if err == io.EOF {
			return a.sum(), nil
		}
		if err != nil {
			return [sha256.Size]byte{}, err
		}
	}
}

// lines are endless lines of a body: some empty, some that begin with a dot or look
// like an mbox's From line, some of 8-bit bytes.
type lines struct {
	rand  *rand.Rand
	block []byte
	left  []byte
	count int
}

func (l *lines) Read(p []byte) (int, error) {
	if len(l.left) == 0 {
		if l.block == nil {
			l.fill()
		}
		l.count++
		l.left = append(fmt.Appendf(nil, "block %d\n", l.count), l.block...)
	}
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}

func (l *lines) fill() {
	for len(l.block) < 64<<10 {
		switch l.rand.IntN(12) {
		case 0:
			l.block = append(l.block, '\n')
		case 1:
			l.block = append(l.block, ".\n..\n.x\n"...)
		case 2:
			l.block = append(l.block, "From here on\n>From there\n"...)
		default:
			for range l.rand.IntN(150) {
				b := byte(l.rand.Uint32())
				if b == '\n' || b == '\r' || b == 0 {
					b = ' '
				}
				l.block = append(l.block, b)
			}
			l.block = append(l.block, '\n')
		}
	}
}

// arrival reads a message that has arrived, line by line, and keeps what is compared.
type arrival struct {
	seq    int // of the mark, 0 if there is none
	begun  bool
	body   bool // the header is over
	hash   hash.Hash
	last   byte
	wire   []byte // a line without its CR
	report report
}

// report is what a delivery status report says.
type report struct {
	id       string // Message-ID
	outcomes []outcome
	final    string // being read
}

// outcome is one recipient's part of a report.
type outcome struct{ rcpt, action string }

// line takes a line with LF at its end; the last may have none.
func (a *arrival) line(b []byte) {
	if !a.begun && !a.body {
		if rest, ok := bytes.CutPrefix(b, []byte(mark)); ok {
			a.begun = true
			a.seq, _ = strconv.Atoi(strings.TrimSpace(string(rest))) // 0: no one's
			a.hash = sha256.New()
		}
	}
	if a.begun {
		_, _ = a.hash.Write(b) // a hash takes everything
		a.last = b[len(b)-1]
	} else {
		a.report.line(b)
	}
	a.body = a.body || len(bytes.TrimRight(b, "\r\n")) == 0
}

// sum returns the hash of the message from its mark on, with an end to its last line.
func (a *arrival) sum() (s [sha256.Size]byte) {
	if !a.begun {
		return s
	}
	if a.last != '\n' {
		_, _ = a.hash.Write([]byte{'\n'})
		a.last = '\n'
	}
	return [sha256.Size]byte(a.hash.Sum(nil))
}

func (r *report) line(b []byte) {
	name, value, ok := bytes.Cut(b, []byte(": "))
	if !ok {
		return
	}
	text := strings.TrimSpace(string(value))
	switch string(name) {
	case "Message-ID":
		if r.id == "" {
			r.id = text
		}
	case "Final-Recipient":
		_, r.final, _ = strings.Cut(text, ";")
		r.final = strings.TrimSpace(r.final)
	case "Action":
		if r.final != "" {
			r.outcomes = append(r.outcomes, outcome{r.final, text})
			r.final = ""
		}
	}
}

// Write takes lines as a sink gives them, with CRLF at their end.
func (a *arrival) Write(b []byte) (int, error) {
	if whole, ok := bytes.CutSuffix(b, []byte("\r\n")); ok {
		a.wire = append(append(a.wire[:0], whole...), '\n')
		a.line(a.wire)
	} else {
		a.line(b)
	}
	return len(b), nil
}
