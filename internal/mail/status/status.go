// Package status holds what one delivery attempt of one recipient came to: an
// Outcome and an RFC 3463 enhanced status code.
//
// Diagnostics: Parse reports a bad code by ok == false; it never fails otherwise.
package status

import (
	"strconv"
	"strings"
)

// Outcome is what became of a recipient. The zero value is Deferred: whatever is
// unknown is temporary.
type Outcome uint8

const (
	Deferred  Outcome = iota // try again later
	Failed                   // permanent; the sender gets a report
	Delivered                // somebody else is responsible now
)

func (o Outcome) String() string {
	switch o {
	case Failed:
		return "failed"
	case Delivered:
		return "delivered"
	}
	return "deferred"
}

// Code is an enhanced mail system status code, RFC 3463 §2: class.subject.detail.
type Code struct {
	Class, Subject, Detail uint16
}

// Common codes.
var (
	OK             = Code{2, 0, 0}
	BadMailbox     = Code{5, 1, 1} // no such user
	BadDomain      = Code{5, 1, 2} // no such host
	BadAddress     = Code{5, 1, 3} // syntax
	MailboxFull    = Code{4, 2, 2}
	SystemTrouble  = Code{4, 3, 0} // ours: disk, memory, configuration
	NoAnswer       = Code{4, 4, 1} // the host does not answer
	BadConnection  = Code{4, 4, 2} // it broke
	RoutingTrouble = Code{4, 4, 3} // name server
	RoutingLoop    = Code{5, 4, 6}
	Expired        = Code{4, 4, 7} // tried too long
)

func (c Code) String() string {
	return strconv.Itoa(int(c.Class)) + "." + strconv.Itoa(int(c.Subject)) + "." + strconv.Itoa(int(c.Detail))
}

// IsZero reports whether there is no code.
func (c Code) IsZero() bool { return c == Code{} }

// Outcome is that of the code's class; anything but 2 and 5 is Deferred.
func (c Code) Outcome() Outcome {
	switch c.Class {
	case 2:
		return Delivered
	case 5:
		return Failed
	}
	return Deferred
}

// Parse reads "5.1.1": a class 2, 4 or 5, subject and detail of one to three
// digits (RFC 3463 §2). It wants the whole string.
func Parse(s string) (c Code, ok bool) {
	class, rest, _ := strings.Cut(s, ".")
	subject, detail, ok := strings.Cut(rest, ".")
	if !ok || len(class) != 1 || !strings.Contains("245", class) {
		return Code{}, false
	}
	var n [3]uint16
	for i, p := range [...]string{class, subject, detail} {
		if len(p) < 1 || len(p) > 3 {
			return Code{}, false
		}
		v, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return Code{}, false
		}
		n[i] = uint16(v)
	}
	return Code{n[0], n[1], n[2]}, true
}

// OfReply returns the code for an SMTP reply: the enhanced code that its text starts
// with if that agrees with the reply's first digit (RFC 2034 §4), else X.0.0.
func OfReply(reply int, text string) Code {
	first, _, _ := strings.Cut(text, " ")
	if c, ok := Parse(first); ok && int(c.Class) == reply/100 {
		return c
	}
	switch reply / 100 {
	case 2, 5:
		return Code{Class: uint16(reply / 100)}
	}
	return Code{Class: 4}
}
