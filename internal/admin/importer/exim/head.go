package exim

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/admin/importer"
	"zmailer/internal/mail/envelope"
)

// head is what a file ID-H says.
type head struct {
	sender     string
	arrival    time.Time
	frozen     time.Time // zero: it is not
	envID, ret string
	wire       bool // the body's lines end in CRLF
	// done are the addresses that have it; true when one of them is a recipient.
	done       map[string]bool
	recipients []recipient
	header     []byte
}

type recipient struct {
	address string
	orcpt   string // xtext
	flags   int
}

// Flags of a recipient (Exim's macros.h) and of dsn_ret.
const (
	notifyNever = 1 << (iota + 1)
	notifySuccess
	notifyFailure
	notifyDelay

	retFull = 1
	retHdrs = 2
)

type lines struct{ rest []byte }

func (l *lines) next() (string, error) {
	line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
	if !ok {
		return "", errors.New("the file is truncated")
	}
	l.rest = rest
	return string(line), nil
}

// parseHead reads ID-H, as Exim's spool_in.c does.
func parseHead(id string, text []byte) (*head, error) {
	h := &head{done: map[string]bool{}}
	l := &lines{text}
	err := h.top(id, l)
	if err == nil {
		err = h.options(l)
	}
	if err == nil {
		err = h.list(l)
	}
	if err == nil {
		err = h.fields(l)
	}
	if err != nil {
		return nil, fmt.Errorf("%s-H cannot be read: %w", id, err)
	}
	return h, nil
}

// top reads the first four lines: its name, who wrote it, the sender, the time.
func (h *head) top(id string, l *lines) error {
	name, err := l.next()
	if err != nil {
		return err
	}
	if name != id+"-H" {
		return fmt.Errorf("it begins with %.60q", name)
	}
	if _, err := l.next(); err != nil {
		return err
	}
	from, err := l.next()
	if err != nil {
		return err
	}
	if len(from) < 2 || from[0] != '<' || from[len(from)-1] != '>' {
		return fmt.Errorf("its sender is %.100q", from)
	}
	h.sender = from[1 : len(from)-1]
	when, err := l.next()
	if err != nil {
		return err
	}
	seconds, _, _ := strings.Cut(when, " ")
	n, err := strconv.ParseInt(seconds, 10, 64)
	const last = 1 << 40
	if err != nil || n < 0 || n > last {
		return fmt.Errorf("its time is %.40q", when)
	}
	h.arrival = time.Unix(n, 0)
	return nil
}

// options reads the lines that begin with "-", and the tree that follows them.
func (h *head) options(l *lines) error {
	for {
		line, err := l.next()
		if err != nil {
			return err
		}
		option, is := strings.CutPrefix(line, "-")
		if !is {
			return h.tree(line, l)
		}
		// A second one marks a value that came from outside.
		name, value, _ := strings.Cut(strings.TrimPrefix(option, "-"), " ")
		if err := h.option(name, value, l); err != nil {
			return err
		}
	}
}

func (h *head) option(name, value string, l *lines) error {
	n, nerr := strconv.ParseInt(strings.TrimPrefix(value, "."), 10, 64)
	switch name {
	case "frozen":
		if nerr != nil {
			return fmt.Errorf("it is frozen since %.40q", value)
		}
		h.frozen = time.Unix(n, 0)
	case "received_time_usec":
		if nerr == nil && n >= 0 && n < 1e6 {
			h.arrival = h.arrival.Add(time.Duration(n) * time.Microsecond)
		}
	case "dsn_envid":
		h.envID = value
	case "dsn_ret":
		switch {
		case nerr == nil && n == retFull:
			h.ret = "FULL"
		case nerr == nil && n == retHdrs:
			h.ret = "HDRS"
		}
	case "spool_file_wireformat":
		h.wire = true
	case "aclc", "aclm", "acl":
		return skipValue(value, l)
	}
	return nil
}

// skipValue passes over a variable: the line has its name or number, and a length;
// what follows has that many bytes and a newline, and may hold newlines.
func skipValue(value string, l *lines) error {
	f := strings.Fields(value)
	if len(f) < 2 {
		return fmt.Errorf("a variable without its length: %.60q", value)
	}
	n, err := strconv.Atoi(f[len(f)-1])
	if err != nil || n < 0 || n >= len(l.rest) {
		return fmt.Errorf("a variable of length %.20q", f[len(f)-1])
	}
	l.rest = l.rest[n+1:]
	return nil
}

// tree reads those who have the message: "XX", or a line for each node of a binary tree,
// which says with two messages whether nodes follow to its left and right.
func (h *head) tree(line string, l *lines) error {
	if line == "XX" {
		return nil
	}
	for open := 1; open > 0; open-- {
		if len(line) < 3 || strings.Trim(line[:2], "YN") != "" || line[2] != ' ' {
			return fmt.Errorf("no line of those who have it: %.60q", line)
		}
		h.done[key(line[3:])] = false
		open += strings.Count(line[:2], "Y")
		if open == 1 {
			return nil
		}
		var err error
		if line, err = l.next(); err != nil {
			return err
		}
	}
	return nil
}

// key returns an address for comparison: domains are in lower case in one place and not in
// another.
func key(address string) string {
	at := strings.LastIndexByte(address, '@')
	return address[:at+1] + strings.ToLower(address[at+1:])
}

func (h *head) list(l *lines) error {
	line, err := l.next()
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(line)
	if err != nil || n < 0 || n > len(l.rest) {
		return fmt.Errorf("a number of recipients: %.20q", line)
	}
	for range n {
		line, err := l.next()
		if err != nil {
			return err
		}
		r, err := parseRecipient(line)
		if err != nil {
			return err
		}
		h.recipients = append(h.recipients, r)
	}
	return nil
}

// parseRecipient reads a recipient's line from its end: ADDRESS, ADDRESS PARENT, or
// ADDRESS [ORCPT LEN,FLAGS] ERRORSTO LEN,PARENT#BITS, where bit 1 says that the last of it
// is there and bit 2 the one in brackets.
func parseRecipient(line string) (recipient, error) {
	digits := len(line) - len(strings.TrimRight(line, "0123456789"))
	rest := line[:len(line)-digits]
	switch {
	case digits == 0 || rest == "":
		return recipient{address: line}, nil
	case rest[len(rest)-1] == ' ':
		return recipient{address: strings.TrimRight(rest, " ")}, nil
	case rest[len(rest)-1] != '#':
		// Digits that end a domain, or the form of Exim 3: ADDRESS N,N,N.
		if a, numbers, ok := cutLast(line); ok && strings.Trim(numbers, "0123456789,") == "" {
			return recipient{address: a}, nil
		}
		return recipient{address: line}, nil
	}
	bits, err := strconv.Atoi(line[len(rest):])
	if err != nil {
		return recipient{}, fmt.Errorf("recipient %.100q: %w", line, err)
	}
	var r recipient
	rest = rest[:len(rest)-1]
	if bits&1 != 0 {
		if rest, _, _, err = cutCounted(rest); err != nil {
			return recipient{}, fmt.Errorf("recipient %.100q: %w", line, err)
		}
	}
	if bits&2 != 0 {
		if rest, r.orcpt, r.flags, err = cutCounted(rest); err != nil {
			return recipient{}, fmt.Errorf("recipient %.100q: %w", line, err)
		}
	}
	r.address = rest
	return r, nil
}

func cutLast(s string) (before, after string, ok bool) {
	at := strings.LastIndexByte(s, ' ')
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+1:], true
}

// cutCounted takes " TEXT LEN,NUMBER" from the end of a line.
func cutCounted(s string) (rest, text string, number int, err error) {
	rest, numbers, ok := cutLast(s)
	length, second, comma := strings.Cut(numbers, ",")
	n, lerr := strconv.Atoi(length)
	number, nerr := strconv.Atoi(second)
	// TEXT and a blank before it; with an empty TEXT the blank alone.
	if !ok || !comma || lerr != nil || nerr != nil || n < 0 || n >= len(rest) {
		return "", "", 0, fmt.Errorf("no length and number: %.60q", numbers)
	}
	text = rest[len(rest)-n:]
	rest = rest[:len(rest)-n]
	if !strings.HasSuffix(rest, " ") {
		return "", "", 0, errors.New("its parts do not fit their lengths")
	}
	return rest[:len(rest)-1], text, number, nil
}

// fields reads the header: each field behind its length and a message; "*" marks those that
// are not to be sent.
func (h *head) fields(l *lines) error {
	empty, err := l.next()
	if err != nil {
		return err
	}
	if empty != "" {
		return fmt.Errorf("no empty line before the header: %.60q", empty)
	}
	for b := l.rest; len(b) > 0; {
		digits := len(b) - len(bytes.TrimLeft(b, "0123456789"))
		n, err := strconv.Atoi(string(b[:digits]))
		if err != nil || len(b) < digits+2 || b[digits+1] != ' ' || n < 0 || n > len(b)-digits-2 {
			return fmt.Errorf("no field of the header: %.60q", b)
		}
		kind, text := b[digits], b[digits+2:digits+2+n]
		if bytes.IndexByte(text, 0) >= 0 {
			return errors.New("zeros are in its header")
		}
		if kind != '*' {
			h.header = append(h.header, text...)
			if n > 0 && text[n-1] != '\n' {
				h.header = append(h.header, '\n')
			}
		}
		b = b[digits+2+n:]
	}
	return nil
}

func (h *head) part() importer.Part {
	p := importer.Part{Sender: h.sender, EnvID: importer.EnvID(h.envID), Ret: h.ret}
	if !h.frozen.IsZero() {
		p.Held = "it is frozen since " + h.frozen.UTC().Format(time.RFC3339)
	}
	seen := map[string]bool{}
	for _, r := range h.recipients {
		k := key(r.address)
		if _, done := h.done[k]; done {
			h.done[k] = true
			continue
		}
		if seen[k] {
			continue
		}
		seen[k] = true
		w := importer.Wishes{Never: r.flags&notifyNever != 0, Success: r.flags&notifySuccess != 0,
			Failure: r.flags&notifyFailure != 0, Delay: r.flags&notifyDelay != 0}
		p.Recipients = append(p.Recipients, envelope.Recipient{Address: r.address, DSN: w.DSN(r.orcpt)})
	}
	return p
}

// notes are added when part was called.
func (h *head) notes() []string {
	n := 0
	for _, recipient := range h.done {
		if !recipient {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("addresses of an alias that already received it, and may get it twice because the alias is expanded again: %d", n)}
}
