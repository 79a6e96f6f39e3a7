package mailbox

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
	"zmailer/internal/workspec"
)

// topLines returns what final delivery adds above the header, RFC 5321 §4.4.
func topLines(s workspec.Sender, recipient string) []byte {
	s.Address = s.For(recipient)
	return []byte("Return-Path: <" + senderAddress(s) + ">\nDelivered-To: " + recipient + "\n")
}

// senderAddress returns the envelope sender without brackets; "" for the null sender.
func senderAddress(s workspec.Sender) string {
	if s.Channel == "error" {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(s.Address, "<"), ">")
}

// message is one message on its way to one store.
type message struct {
	delivery  *agent.Delivery
	recipient *agent.Recipient    // the first of all that has Sent, or the first
	all       []*agent.Recipient  // whom this copy is for
	lead      *workspec.Recipient // after whom it is named
	now       time.Time
	top       []byte
	creds     *credentials
	as        identity
}

// size returns how many bytes write writes.
func (l *message) size() int64 {
	return int64(len(l.top)) + int64(len(l.delivery.Header(l.recipient.Group))) + l.delivery.BodySize()
}

// write writes the lines on top, the header block, and the body with the empty line
// before it, unchanged.
func (l *message) write(w io.Writer) error {
	if _, err := w.Write(l.top); err != nil {
		return err
	}
	if _, err := w.Write(l.delivery.Header(l.recipient.Group)); err != nil {
		return err
	}
	// A bufio.Writer reads into its own buffer and needs none.
	var buf []byte
	if _, ok := w.(io.ReaderFrom); !ok {
		buf = make([]byte, min(l.delivery.BodySize()+1, 32<<10))
	}
	_, err := io.CopyBuffer(w, l.delivery.Body(), buf)
	return err
}

// sent records that the message is about to be in the store: in the postoffice,
// which is not the user's. where describes how to find it there.
func (l *message) sent(where ...workspec.Attr) error {
	err := l.creds.asRoot(l.as, func() error { return l.delivery.SentTo(l.all, where...) })
	if err != nil {
		return fmt.Errorf("record the delivery: %w", err)
	}
	return nil
}

// inDoubt records that the store does not show whether an agent that died has
// delivered the message.
func (l *message) inDoubt() error {
	return l.creds.asRoot(l.as, func() error {
		for _, r := range l.all {
			if err := l.delivery.InDoubt(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// loops fails a recipient that the message has been delivered to before, by its
// Delivered-To fields: something there, a program or another system that the mail was
// forwarded to, sends it back.
func loops(d *agent.Delivery, g *workspec.Group, to string) error {
	header := d.Header(g)
	for to != "" && len(header) > 0 && header[0] != '\n' {
		line, rest, _ := bytes.Cut(header, []byte("\n"))
		header = rest
		name, value, ok := bytes.Cut(line, []byte(":"))
		if ok && strings.EqualFold(string(bytes.TrimSpace(name)), "Delivered-To") && strings.EqualFold(string(bytes.TrimSpace(value)), to) {
			return &fault{code: status.RoutingLoop, text: "the mail was delivered to " + to + " before and has come back"}
		}
	}
	return nil
}

// fromLine returns the line that parts messages in an mbox file: sender and time of
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
	// seen is how much of fromWord the start of the line has, which is held back;
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

// release writes the bytes held back.
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
