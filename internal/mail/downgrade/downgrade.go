// Package downgrade makes a message fit for a server that takes no 8-bit content: each
// MIME part that needs it is encoded as quoted-printable or base64 (RFC 6152 §3, RFC 2045
// §6), everything else goes through as it is.
//
// No byte is replaced by another. Where it is not sure what belongs to a part, because
// readers of mail disagree about broken MIME, a part with 8-bit content is an error; a part
// without goes through.
//
//	plan, err := downgrade.Inspect(header, body, server8Bit)
//	if err == nil && plan.Changed() {
//		... send plan.Header and plan.Body(body from its beginning)
//	}
//
// It owns nothing and holds no message: content is read twice, once to find out what each
// part needs, once to convert it, in constant memory. Nothing here survives a crash, nor
// needs to: the same message is converted to the same bytes each time.
//
// Stored messages have LF line ends, which are CRLF on the wire; so the line ends of a
// part are encoded as CRLF. A part that is declared binary has no lines: unless
// it is text its bytes are encoded as they are stored. It is encoded whatever the server
// takes, because we never send BINARYMIME (RFC 3030 §3) and LF would not stay LF.
//
// Diagnostics: an *Error is a message that cannot be converted: asking again does not
// help. Every other error is the reader's.
package downgrade

import (
	"io"

	"zmailer/internal/mail/status"
)

// Error is a message that cannot be converted, for good.
type Error struct {
	Code   status.Code
	Reason string
}

func (e *Error) Error() string {
	return "the message has 8-bit content, which the server does not take, and cannot be converted: " + e.Reason
}

var (
	// RFC 3463 §3.7: conversion required but not supported, and required but prohibited.
	notSupported = status.Code{Class: 5, Subject: 6, Detail: 3}
	prohibited   = status.Code{Class: 5, Subject: 6, Detail: 2}
)

const (
	// maxParts and maxLevels bound what a message can make us remember.
	maxParts  = 100000
	maxLevels = 100
	// maxHeader bounds the header of one part. Bytes.
	maxHeader = 1 << 20
	// maxLine is what a line may have without its end (RFC 5322 §2.1.1).
	maxLine = 998
	// fragment is how much of a long line is looked at at once.
	fragment = 16 << 10
)

// Plan is how one message is converted.
type Plan struct {
	Header []byte // of the message, converted: whole lines
	Size   int64  // of header and body, converted: an estimate, stored bytes
	Parts  int    // parts that are encoded

	changed bool

	header  []byte
	eight   bool     // the server takes 8-bit content
	choices []choice // of each part in the order of their headers
}

// Changed reports whether the message has to be converted. If it does not, the server takes
// it as it is.
func (p *Plan) Changed() bool { return p.changed }

// Inspect finds out how a message is to be converted. The header is whole lines; the body
// begins with the empty line. eight: the server takes 8-bit content, only parts that are
// binary are encoded. An error that is not an *Error is the reader's.
func Inspect(header []byte, body io.Reader, eight bool) (*Plan, error) {
	p := &Plan{header: header, eight: eight}
	in := &inspector{plan: p}
	w := walker{to: in}
	w.start(header)
	if err := w.read(body); err != nil {
		return nil, err
	}
	p.Header = p.choices[0].edit(header, true)
	p.Size += int64(len(p.Header))
	return p, nil
}

// Body reads the converted body; the reader given is at the body's beginning.
func (p *Plan) Body(body io.Reader) io.Reader {
	c := &converter{plan: p}
	c.walker = walker{to: c, in: newLines(body)}
	c.walker.start(p.header)
	c.out = c.out[:0] // the header goes another way
	return c
}
