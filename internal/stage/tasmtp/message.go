package tasmtp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"zmailer/internal/mail/downgrade"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
	"zmailer/internal/wire/smtpclient"
)

// transact sends a message over a connection.
func (r *Relay) transact(l *link, d *agent.Delivery, rcpts []*agent.Recipient) ([]smtpclient.Result, error) {
	m, unsent := r.message(d, l, rcpts)
	if m == nil {
		return unsent, nil
	}
	if r.lease != nil {
		// What is written may wait in the kernel for a server that does not read: past the
		// deadline it must not be sent.
		defer r.lease.AtEnd(l.conn.Abort)()
	}
	return l.conn.Send(m)
}

// message returns the message for the recipients of one part in the form that the server
// of a connection accepts. If there is none it returns the results of all recipients.
func (r *Relay) message(d *agent.Delivery, l *link, rcpts []*agent.Recipient) (*smtpclient.Message, []smtpclient.Result) {
	first := rcpts[0]
	c := content{header: d.Header(first.Group), body: d.Body}
	c.size = int64(len(c.header)) + d.BodySize()
	err := r.adapt(d, l, &c)
	if err == nil {
		err = c.replaceBare() // encoding may have added some
	}
	if err == nil && !l.lmtp {
		err = r.signer.sign(d, &c)
	}
	if err != nil {
		return nil, notSent(err, len(rcpts))
	}
	m := &smtpclient.Message{
		From: sender(first), Ret: first.Ret, EnvID: first.EnvID, UTF8: c.utf8,
		Header: c.header, Body: c.body(), Size: c.size,
		Recipients: make([]smtpclient.Recipient, len(rcpts)),
		RequireTLS: requiresTLS(first),
	}
	if l.conn.Extensions().XForward != "" {
		if m.Forward, err = r.forward(d, l); err != nil {
			return nil, notSent(err, len(rcpts))
		}
	}
	for i, rcpt := range rcpts {
		m.Recipients[i] = smtpclient.Recipient{Address: rcpt.Address, Notify: rcpt.Param("NOTIFY"), ORcpt: rcpt.Param("ORCPT"), Brief: !rcpt.AsksSuccess()}
	}
	m.Sent = func(accepted []int) error {
		if len(accepted) == len(rcpts) {
			return d.SentTo(rcpts)
		}
		some := make([]*agent.Recipient, len(accepted))
		for i, n := range accepted {
			some[i] = rcpts[n]
		}
		return d.SentTo(some)
	}
	return m, nil
}

// content is the bytes of a message: header lines, and a body that can be read again.
type content struct {
	header []byte
	body   func() io.Reader
	size   int64
	utf8   bool // the header needs SMTPUTF8

	scanned bool  // the body has been read through:
	bare    bool  // it has bytes that replaceBare changes
	ends    int64 // CRs before a line end
}

// messageError is why a message is not sent.
type messageError struct {
	outcome status.Outcome
	code    status.Code
	err     error
}

func (e *messageError) Error() string { return e.err.Error() }

func (e *messageError) Unwrap() error { return e.err }

// notSent returns the results of recipients whose message could not be prepared. An error
// that the message does not cause is ours, and temporary.
func notSent(err error, recipients int) []smtpclient.Result {
	res := smtpclient.Result{Code: status.SystemTrouble, Phase: smtpclient.PhaseMail, Err: err}
	if never := (*messageError)(nil); errors.As(err, &never) {
		res.Outcome, res.Code = never.outcome, never.code
	}
	all := make([]smtpclient.Result, recipients)
	for i := range all {
		all[i] = res
	}
	return all
}

var errHeaderUTF8 = errors.New("the header is not ASCII and the server does not offer SMTPUTF8")

// needsUTF8 is RFC 3463 §3.7 as RFC 6531 §3.5 has it: the receiver does not take this
// message's addresses or header.
var needsUTF8 = status.Code{Class: 5, Subject: 6, Detail: 7}

// adapt makes a message fit for a server.
func (r *Relay) adapt(d *agent.Delivery, l *link, c *content) error {
	ext := l.conn.Extensions()
	var err error
	if c.utf8, err = internationalized(d, c.header); err != nil {
		return err
	}
	if c.utf8 && !ext.SMTPUTF8 {
		return &messageError{status.Failed, needsUTF8, errHeaderUTF8}
	}
	return r.convert(d, l, c, ext.EightBitMIME)
}

// internationalized reports whether a message came with SMTPUTF8 and its header needs it
// (RFC 6531 §3.5). Other octets in headers, which have been in use longer than that
// extension, go as they came.
func internationalized(d *agent.Delivery, header []byte) (bool, error) {
	if isASCII(header) {
		return false, nil
	}
	m, err := readEnvelope(d)
	if m == nil || err != nil {
		return false, err
	}
	// RFC 6531 §4.3: UTF8SMTP, UTF8SMTPS, UTF8LMTPA ...
	return len(m.With) > 4 && strings.EqualFold(m.With[:4], "UTF8"), nil
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// readEnvelope reads the head of the message file; nil: it is not one of ours.
func readEnvelope(d *agent.Delivery) (*envelope.Message, error) {
	m, err := envelope.Read(io.NewSectionReader(d.Message, 0, d.Size))
	if syntax := (*envelope.SyntaxError)(nil); errors.As(err, &syntax) {
		return nil, nil // the router has read it before; another program's file
	}
	if err != nil {
		return nil, fmt.Errorf("read the message: %w", err)
	}
	return m, nil
}

// convert encodes what a server does not take.
func (r *Relay) convert(d *agent.Delivery, l *link, c *content, eight bool) error {
	scan := downgrade.NewScan(c.header, eight)
	if err := c.scanBody(&scan); err != nil {
		return err
	}
	if !scan.Found() {
		return nil
	}
	plan, err := downgrade.Inspect(c.header, c.body(), eight)
	if never := (*downgrade.Error)(nil); errors.As(err, &never) {
		return &messageError{status.Failed, never.Code, err}
	}
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	if !plan.Changed() {
		return nil
	}
	// A signature covers the bytes as they were.
	r.log.Info("converted", "id", d.ID(), "channel", l.key.channel, "host", l.key.host, "parts", plan.Parts,
		"signed", hasField(c.header, "DKIM-Signature"))
	body := c.body
	c.header, c.size, c.scanned = plan.Header, plan.Size, false
	c.body = func() io.Reader { return plan.Body(body()) }
	return nil
}

// hasField reports whether a header has a field of a name.
func hasField(header []byte, name string) bool {
	for _, f := range envelope.Fields(header) {
		if strings.EqualFold(f.Name, name) {
			return true
		}
	}
	return false
}

// sender returns the address for MAIL; that of channel error is the null sender, whatever its
// address is.
func sender(rcpt *agent.Recipient) string {
	s := &rcpt.Group.Sender
	if s.Channel == "error" {
		return ""
	}
	return s.For(rcpt.Address)
}

// replaceBare removes bare CRs from a message before it is signed and sent: they are not
// allowed (RFC 5321 §2.3.8), and some servers take one for a line end, so that CR, dot, CR
// ends the message for them and begins another. A CR before a line end, as in text that
// came with CRLF, is dropped; any other becomes a blank, as in Postfix. A bare LF is a line
// end in a message file and is sent as one. A NUL between the beginning of a line and a
// dot becomes a blank as well: a server that drops NULs would find a dot there that was
// not doubled. Other NULs are sent as they are.
//
// A message without such bytes is only read once more.
func (c *content) replaceBare() error {
	if bytes.IndexByte(c.header, '\r') >= 0 || bytes.IndexByte(c.header, 0) >= 0 {
		// Text with CRLF may be all header: it has no empty line.
		header, err := io.ReadAll(&bareReader{r: bufio.NewReader(bytes.NewReader(c.header)), start: true})
		if err != nil {
			return fmt.Errorf("read the header: %w", err)
		}
		c.size -= int64(len(c.header) - len(header))
		c.header = header
	}
	if err := c.scanBody(&downgrade.Scan{}); err != nil {
		return err
	}
	if c.bare {
		c.size -= c.ends
		body := c.body
		c.body = func() io.Reader { return &bareReader{r: bufio.NewReaderSize(body(), scanBuffer), start: true} }
	}
	return nil
}

// scanBody reads the whole body, unless that was done: for bytes that replaceBare changes,
// and for what a scan searches. If the scan finds something the body will be converted,
// and what replaceBare would change is not known yet.
func (c *content) scanBody(scan *downgrade.Scan) error {
	if c.scanned || scan.Found() {
		return nil
	}
	found, ends, err := findBare(c.body(), scan)
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	c.scanned, c.bare, c.ends = !scan.Found(), found, ends
	return nil
}

// scanBuffer is how much of a body is looked at once. Bytes.
const scanBuffer = 32 << 10

var scanBuffers = sync.Pool{New: func() any { return new([scanBuffer]byte) }}

// findBare reports whether there is a CR, or a NUL at the beginning of a line, and how many CRs
// are before an LF. It shows what it reads to a scan, and ends early if that has found
// something.
func findBare(r io.Reader, scan *downgrade.Scan) (found bool, ends int64, err error) {
	pooled := scanBuffers.Get().(*[scanBuffer]byte)
	defer scanBuffers.Put(pooled)
	buf := pooled[:]
	last := byte('\n') // the byte before
	for {
		n, err := r.Read(buf)
		if n > 0 {
			b := buf[:n]
			if last == '\r' && b[0] == '\n' {
				ends++
			}
			if bytes.IndexByte(b, 0) >= 0 && (last == '\n' && b[0] == 0 || bytes.Contains(b, []byte("\n\x00"))) {
				found = true
			}
			if bytes.IndexByte(b, '\r') >= 0 {
				found = true
				ends += int64(bytes.Count(b, []byte("\r\n")))
			}
			last = b[n-1]
			if scan.Body(b); scan.Found() {
				return found, ends, nil
			}
		}
		if err == io.EOF {
			return found, ends, nil
		}
		if err != nil {
			return found, ends, err
		}
	}
}

// bareReader reads a text with the changes of replaceBare.
type bareReader struct {
	r     *bufio.Reader
	start bool // the next byte begins a line
}

func (w *bareReader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		b, err := w.r.ReadByte()
		if err != nil {
			if n > 0 && err == io.EOF {
				err = nil
			}
			return n, err
		}
		switch {
		case b == '\r':
			next, err := w.r.Peek(1)
			if err != nil && err != io.EOF {
				return n, err
			}
			if err == nil && next[0] == '\n' {
				continue
			}
			b, w.start = ' ', false
		case b == 0 && w.start:
			// What follows still begins the line.
			next, err := w.r.Peek(1)
			if err != nil && err != io.EOF {
				return n, err
			}
			if err == nil && next[0] == '.' {
				b = ' '
			}
		default:
			w.start = b == '\n'
		}
		p[n] = b
		n++
	}
	return n, nil
}
