package mailbox

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
	"zmailer/internal/workspec"
)

// topLines are what final delivery adds above the header, RFC 5321 §4.4.
func topLines(s workspec.Sender, recipient string) []byte {
	s.Address = s.For(recipient)
	return []byte("Return-Path: <" + senderAddress(s) + ">\nDelivered-To: " + recipient + "\n")
}

// senderAddress is the envelope sender without brackets; "" for the null sender.
func senderAddress(s workspec.Sender) string {
	if s.Channel == "error" {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(s.Address, "<"), ">")
}

// letter is one message on its way to one store.
type letter struct {
	delivery  *agent.Delivery
	recipient *agent.Recipient    // the first of all that has Sent, or the first
	all       []*agent.Recipient  // whom this copy is for
	lead      *workspec.Recipient // after whom it is named
	now       time.Time
	top       []byte
	creds     *credentials
	as        identity
}

// size is how many bytes write writes.
func (l *letter) size() int64 {
	return int64(len(l.top)) + int64(len(l.delivery.Header(l.recipient.Group))) + l.delivery.BodySize()
}

// write writes the lines on top, the header block, and the body with the empty line
// before it, as they stand.
func (l *letter) write(w io.Writer) error {
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
// which is not the user's. where says how to find it there.
func (l *letter) sent(where ...workspec.Attr) error {
	err := l.creds.asRoot(l.as, func() error { return l.delivery.SentTo(l.all, where...) })
	if err != nil {
		return fmt.Errorf("record the delivery: %w", err)
	}
	return nil
}

// inDoubt records that the store does not tell whether an agent that died has
// delivered the message.
func (l *letter) inDoubt() error {
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
