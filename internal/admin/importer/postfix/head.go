package postfix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/admin/importer"
	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
)

// head is everything of a queue file but its content.
type head struct {
	arrival    time.Time
	sender     string
	hasSender  bool
	fullName   string
	bodyType   string
	envID, ret string
	redirect   string
	recipients []recipient
	notes      []string
	end        bool

	// What the next recipient gets.
	orcpt  string
	notify int
}

type recipient struct {
	at      int64
	address string
	open    bool
	orcpt   string // "type;address", plain
	notify  int
}

// Flags of a notify record.
const (
	notifyNever = 1 << iota
	notifySuccess
	notifyFailure
	notifyDelay
)

func readHead(r io.ReaderAt, size int64) (*head, error) {
	s := newRecords(r, size)
	h := &head{}
	content := false
	for !h.end {
		kind, data, at, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch {
		case content && kind != typeFound && kind != typeEnd:
			continue
		case kind == typeContent:
			content = true
			continue
		case kind == typeFound:
			content = false
			continue
		}
		if err := h.record(kind, data, at); err != nil {
			return nil, err
		}
	}
	switch {
	case !h.end:
		return nil, errors.New("the file is incomplete: its end is missing")
	case !h.hasSender:
		return nil, errors.New("it has no sender")
	}
	return h, nil
}

func (h *head) record(kind byte, data []byte, at int64) error {
	if kind == typeAttr {
		name, value, _ := strings.Cut(string(data), "=")
		h.attr(name, value)
		return nil
	}
	text := string(data)
	switch kind {
	case typeTime:
		return h.setTime(text)
	case typeSender:
		h.sender, h.hasSender = text, true
	case typeFullName:
		h.fullName = text
	case typeFilter:
		h.notes = append(h.notes, "it has not passed the content filter "+text)
	case typeRedirect:
		h.redirect = text
	case typeVERP:
		h.notes = append(h.notes, "VERP ("+text+") was requested; it is sent with the plain sender address")
	case typeRet, typeEnvID, typeORCPT, typeNotify:
		h.wish(kind, text)
	case typeOpen, typeDone, typeCanceled:
		h.recipients = append(h.recipients, recipient{at: at, address: text, open: kind == typeOpen, orcpt: h.orcpt, notify: h.notify})
		h.orcpt, h.notify = "", 0
	case typeEnd:
		h.end = true
	}
	return nil
}

func (h *head) setTime(text string) error {
	sec, usec, _ := strings.Cut(strings.TrimSpace(text), " ")
	n, err := strconv.ParseInt(sec, 10, 64)
	const last = 1 << 40
	if err != nil || n < 0 || n > last {
		return fmt.Errorf("its time is %.40q", text)
	}
	// Old versions have no microseconds.
	micro, _ := strconv.ParseInt(strings.TrimSpace(usec), 10, 64)
	h.arrival = time.Unix(n, min(max(micro, 0), 999_999)*1000)
	return nil
}

// attr takes a named attribute: some of them are records by another name.
func (h *head) attr(name, value string) {
	switch name {
	case "encoding":
		if value == "8bit" {
			h.bodyType = "8BITMIME"
		}
	case "ret_flags":
		h.wish(typeRet, value)
	case "envelope_id":
		h.wish(typeEnvID, value)
	case "dsn_orig_rcpt":
		h.wish(typeORCPT, value)
	case "notify_flags":
		h.wish(typeNotify, value)
	}
}

func (h *head) wish(kind byte, text string) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	switch kind {
	case typeRet:
		if err == nil && n == 1 {
			h.ret = "FULL"
		} else if err == nil && n == 2 {
			h.ret = "HDRS"
		}
	case typeEnvID:
		h.envID = text
	case typeORCPT:
		h.orcpt = text
	case typeNotify:
		if err == nil {
			h.notify = n
		}
	}
}

// reopen opens the recipients at these places.
func (h *head) reopen(places map[int64]bool) {
	n := 0
	for i := range h.recipients {
		if r := &h.recipients[i]; !r.open && places[r.at] {
			r.open = true
			n++
		}
	}
	if n > 0 {
		h.notes = append(h.notes, fmt.Sprintf("recipients that had failed without a report to the sender, and are tried again: %d", n))
	}
}

func (h *head) part() importer.Part {
	// Postfix keeps what it was given without its xtext; what cannot be in one is left out.
	p := importer.Part{Sender: importer.Quoted(h.sender), EnvID: address.EncodeXText(h.envID), Ret: h.ret}
	seen := map[string]bool{}
	for i := range h.recipients {
		r := &h.recipients[i]
		to := r.address
		if h.redirect != "" {
			to = h.redirect
		}
		if !r.open || seen[to] {
			continue
		}
		seen[to] = true
		w := importer.Wishes{Never: r.notify&notifyNever != 0, Success: r.notify&notifySuccess != 0,
			Failure: r.notify&notifyFailure != 0, Delay: r.notify&notifyDelay != 0}
		p.Recipients = append(p.Recipients, envelope.Recipient{Address: importer.Quoted(to), DSN: w.DSN(importer.ORCPT(r.orcpt))})
	}
	return p
}

// parseBounces returns the places in the queue file of those that a file in bounce/ names.
func parseBounces(text []byte) map[int64]bool {
	places := map[int64]bool{}
	for line := range bytes.Lines(text) {
		value, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("offset="))
		if !ok {
			continue
		}
		if at, err := strconv.ParseInt(string(value), 10, 64); err == nil && at > 0 {
			places[at] = true
		}
	}
	return places
}
