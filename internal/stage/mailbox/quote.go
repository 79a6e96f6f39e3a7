package mailbox

import (
	"bufio"
	"bytes"
	"strings"
	"time"
)

// fromLine is the line that parts messages in an mbox file: sender and time of
// delivery in UTC, RFC 4155 appendix A.
func fromLine(sender string, now time.Time) string {
	if sender == "" {
		sender = "MAILER-DAEMON"
	}
	sender = strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return '-'
		}
		return r
	}, sender)
	return "From " + sender + " " + now.UTC().Format(time.ANSIC) + "\n"
}

// fromWord is what must not start a line of a message.
const fromWord = "From "

// fromQuoter writes a message so that none of its lines looks like a From line: one
// that is fromWord after any number of ">" gets one ">" more (mboxrd). Removing one
// from each such line gives the message back. It holds at most fromWord.
type fromQuoter struct {
	w *bufio.Writer // keeps its error until Flush
	// seen is how much of fromWord stands at the start of the line and is held back;
	// inLine: the line is decided.
	seen   int
	inLine bool
	last   byte
}

// Write implements io.Writer.
func (q *fromQuoter) Write(p []byte) (int, error) {
	n := len(p)
	if n > 0 {
		q.last = p[n-1]
	}
	for len(p) > 0 {
		if q.inLine {
			i := bytes.IndexByte(p, '\n') + 1
			if i == 0 {
				i = len(p)
			} else {
				q.inLine = false
			}
			if _, err := q.w.Write(p[:i]); err != nil {
				return 0, err
			}
			p = p[i:]
			continue
		}
		switch c := p[0]; {
		case q.seen == 0 && c == '>':
			_ = q.w.WriteByte(c)
			p = p[1:]
		case c == fromWord[q.seen]:
			p = p[1:]
			if q.seen++; q.seen == len(fromWord) {
				_ = q.w.WriteByte('>')
				q.release()
			}
		default:
			q.release()
		}
	}
	return n, nil
}

// release writes what was held back.
func (q *fromQuoter) release() {
	_, _ = q.w.WriteString(fromWord[:q.seen])
	q.seen, q.inLine = 0, true
}

// end ends the last line and writes the empty line that ends a message in an mbox.
func (q *fromQuoter) end() {
	q.release()
	if q.last != '\n' {
		_ = q.w.WriteByte('\n')
	}
	_ = q.w.WriteByte('\n')
}
