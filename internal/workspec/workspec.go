// Package workspec reads and writes the bytes of a work specification, the file
// in transport/ that says what is to be done with one message (formats.md "Work
// specification"). It never touches the disk: it works on bytes and on io.Writer,
// and it computes the few bytes that are changed in place.
//
// A specification is written once by the router (Writer), closed by its z line,
// then only tags change in place and whole lines are appended. The line "z BYTES SUM"
// gives its own byte offset, so it is right only behind everything that it closes, and
// a checksum of that, which distinguishes zeros of a lost block from those of a sender.
// The line "z -" after the @ line promises it: without that promise a file that was
// cut between two groups would look like one of a writer that knows no z line.
//
// What survives a crash: any prefix of what Writer wrote parses, with blocks of zeros
// in it or not, and is not Complete unless all of it and the z line are there. A torn
// last line is ignored; the next writer ends it with CAN, and it is ignored too.
//
// Diagnostics: *SyntaxError names the byte offset of the line it cannot read: the
// file is corrupt, set it aside. ErrUnknownFormat: the @ line has bits we do not
// know; leave the file alone and report it. A file that ends too early is no error:
// see Spec.Complete. ErrValue: a value given to Writer cannot be written in a line.
package workspec

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/human"
)

// ErrUnknownFormat is returned for a specification whose @ line carries a bit
// that this program does not know; it must be left alone and reported.
var ErrUnknownFormat = errors.New("unknown format bits in @ line")

// ErrValue is returned by Writer for a value that would end its line or
// shift its fields: a line end, a NUL, a blank in a channel or host.
var ErrValue = errors.New("value cannot be written in a work specification")

// SyntaxError is a line that cannot be read.
type SyntaxError struct {
	Offset int64 // of the line's first byte
	Line   string
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("work specification, byte %d: %s: %.60q", e.Offset, e.Reason, e.Line)
}

// promise is the line that says that a z line will close the file. It has a value
// because ZMailer's readers take a line's second byte for a tag, even a newline.
const promise = "z -"

// own is what the u line says.
const own = "own"

// none stands for a word that a c line does not have.
const none = "-"

// Format bits of the @ line.
const (
	FormatPID   = 1 // r lines have the 6-byte owner field
	FormatDelay = 2 // r lines have the 4-byte delay field
	FormatM     = 4 // M blocks may occur
	FormatOurs  = FormatPID | FormatDelay | FormatM
)

// Tag is the state of a recipient or diagnostic.
type Tag byte

const (
	TagToDo   Tag = ' '
	TagLocked Tag = '~'
	TagOK     Tag = '+' // r: delivered; d: reported
	TagFailed Tag = '-'
)

// Spec is a parsed specification.
type Spec struct {
	Format     uint32
	Message    string // i: name of the message file in queue/
	BodyOffset int64  // o: offset of the body in it
	Verbose    string // v
	Ident      string // l
	Own        bool   // u: a user who logged in has submitted it
	// Client, ClientName and User are the words of the c line: the SMTP client that the
	// message came from, as the address literal of its Received line with a port; its host
	// name; and the user who logged in, in xtext. "": not known.
	Client, ClientName, User string

	ErrorTo   []string // e, in order of occurrence, repeated ones included
	Obsoletes []string // x
	Start     []string // T: ETRN hosts
	Groups    []Group
	// Complete: nothing that the router wrote is missing. True when every group ends
	// with its header block, there is at least one, and the z line is present and
	// right, or the file's writer is one that writes no z line (HasZ is false).
	Complete bool
	// HasZ: there is a z line, right, wrong or the promise of one: its writer closes
	// its files.
	HasZ        bool
	ZOffset     int64 // of the z line that closes the file; 0 if none is right
	Diagnostics []Diagnostic
	History     []Event
	Torn        bool  // the last line has no newline and was ignored
	Size        int64 // bytes parsed, the torn line included
	// Apart are the recipients right before which one is in the file that ParseOnly has
	// left out, by their offsets.
	Apart      []int64
	NameOffset int64 // of Message in the i line; 0: there is none
	Ignored    int   // lines that were passed over: of an unknown letter, or torn and ended
}

// Number returns the decimal number that the message's name starts with, which an
// agent's answers carry.
func (s *Spec) Number() (uint64, bool) {
	n := 0
	for n < len(s.Message) && s.Message[n] >= '0' && s.Message[n] <= '9' {
		n++
	}
	v, err := strconv.ParseUint(s.Message[:n], 10, 64)
	return v, err == nil
}

// Group is a sender with the recipients that share its headers.
type Group struct {
	Sender     Sender
	Recipients []Recipient
	// HeaderOffset is that of the first byte after "m NL", 0 without an m line; the
	// header block runs to HeaderEnd, the offset of the empty line that closes it or,
	// in a file that was cut there, of what was cut. Groups of different senders may
	// share a block.
	HeaderOffset, HeaderEnd int64
}

// Sender is an s line, with its V line.
type Sender struct {
	Offset                            int64
	Channel, Host, Address, Privilege string
	// VERP: every recipient gets the message from an address of its own, in which this
	// is between the sender's local part and the recipient; "": all from Address.
	VERP string
}

// Recipient is an r line with its N, R and n lines.
type Recipient struct {
	Offset       int64 // of the r; names the recipient
	Tag          Tag
	Owner        int    // of the lock; 0 if none
	Delay        string // the 4 bytes, blanks trimmed
	Channel      string
	Host         string
	Address      string
	Privilege    string
	NotaryOffset int64  // of the N line, 0 if none
	Notary       string // N: "NOTIFY=... ORCPT=...", verbatim
	Ret          string // R: FULL or HDRS
	EnvID        string // n: xtext
}

// Notary is the delivery status part of a diagnostic: the values of the RFC 3464
// fields, parted by ^A in the file.
type Notary struct {
	Address    string // Final-Recipient, without its type
	Action     string // failed, delayed, delivered, relayed, expanded
	Status     string // "5.1.1"; a foreign agent may add a comment
	Diagnostic string // "smtp; 550 no such user"
	Remote     string // while talking to: "dns; mx.example.org" or "X-IP-addr; [192.0.2.1]"
	Agent      string // agent[pid]
	// Way is ours, in the answers of agents alone: what the log has of the way to the other
	// side, as KEY=VALUE with blanks between; values are xtext.
	Way string
}

// None is what ZMailer writes for an offset that there is not. Our own diagnostics have 0
// in its place.
const None = -1

// Diagnostic is a d line.
type Diagnostic struct {
	LineOffset   int64 // of the d; the tag is the byte after it
	Reported     bool
	Recipient    int64     // offset of the r line as it was written, or None
	Of           int64     // that of the recipient it counts for, see attribute; 0: of none
	HeaderOffset int64     // or None
	NotaryOffset int64     // or None
	Time         time.Time // whole seconds
	Notary       Notary
	Text         string // newlines restored
}

// Event is an h line: one step of the message's history [ours].
type Event struct {
	LineOffset int64
	Time       time.Time // milliseconds
	Recipient  int64     // offset of the r line; 0: several (Spec.About) or the whole message
	Event      string    // one word, see the Event constants
	Attrs      []Attr    // KEY=VALUE, in order; values hold no blanks
	Text       string    // what is left
}

// Attr is one KEY=VALUE of an event.
type Attr struct{ Key, Value string }

// Words of Event.Event.
const (
	EventSent     = "sent"     // the final dot is about to be sent: in doubt until a tag says more. owner=N; about no recipient: all that N has locked
	EventDeferred = "deferred" // attempt=N next=UNIXMS status=X.Y.Z rcpts=RANGES, text: the last answer
	EventInDoubt  = "in-doubt" // an agent died after "sent"; delivered again by policy
	EventUnlocked = "unlocked" // the lock of an owner that is dead, or does not know whether it has delivered, was taken from it. owner=N
	EventReport   = "report"   // file=T kind=failed|delayed|delivered rcpts=OFF,OFF: public/T is prepared and will be submitted
	EventExpired  = "expired"
	EventUnserved = "unserved" // no clause of scheduler.conf serves the recipient; text: what helps
	EventServed   = "served"   // one does again
	// EventUnreported: the message does not end, because the sender got no report of the
	// failures at rcpts=OFF,OFF. text: of whom
	EventUnreported = "unreported"
	EventRemoved    = "removed"  // an operator took recipients out. id=SPOOLID rcpts=OFF,OFF; text: who
	EventRestored   = "restored" // and put them back
	EventPolicy     = "policy"   // what router.star decided. rule=FILE:LINE count=N; text: the decision, and for whom

	// Orders of an operator or of a rule about recipients that are open. id=SPOOLID
	// rcpts=OFF,OFF who=NAME, text: the reason.
	EventHold     = "hold"     // they wait until release, or until=UNIXMS
	EventRelease  = "release"  // they no longer do
	EventFrozen   = "frozen"   // they wait for an operator, and do not expire. cause=expired|person|...
	EventThawed   = "thawed"   // their time begins anew
	EventRetry    = "retry"    // they are to be tried now
	EventRerouted = "rerouted" // file=T: public/T is a copy of the message for these recipients and goes to the router
)

// Get returns the value of a key, "" if absent.
func (e *Event) Get(key string) string {
	for _, a := range e.Attrs {
		if a.Key == key {
			return a.Value
		}
	}
	return ""
}

// DeferredEvent returns the line that a retry's decision is written as before it is
// acted on (A5).
func DeferredEvent(now time.Time, recipient int64, attempt int, next time.Time, code status.Code, text string) Event {
	return Event{Time: now, Recipient: recipient, Event: EventDeferred, Text: text, Attrs: []Attr{
		{"attempt", fmt.Sprint(attempt)}, {"next", fmt.Sprint(next.UnixMilli())}, {"status", code.String()}}}
}

// Widths of the fields at the start of an r line.
const (
	ownerWidth = 6
	delayWidth = 4
	maxOwner   = 999999
)

// TagOffset returns the offset of a recipient's tag.
func TagOffset(recipient int64) int64 { return recipient + 1 }

// DiagnosticTagOffset returns the offset of a diagnostic's tag, given its LineOffset.
func DiagnosticTagOffset(line int64) int64 { return line + 1 }

// LockBytes returns what a lock by owner is written as, to be put at TagOffset: seven
// bytes. Only for a format with FormatPID; TagBytes(format, TagLocked) else. It
// panics on an owner that is not 1 to 999999, for it would write over the channel.
func LockBytes(owner int) []byte {
	if owner < 1 || owner > maxOwner {
		panic("workspec: owner " + strconv.Itoa(owner) + " does not fit the lock field")
	}
	return appendOwner(append(make([]byte, 0, 1+ownerWidth), byte(TagLocked)), owner)
}

// appendOwner appends an owner right-aligned in its field, blanks for 0.
func appendOwner(b []byte, owner int) []byte {
	var digits [ownerWidth]byte
	i := ownerWidth
	for ; owner > 0 && i > 0; owner /= 10 {
		i--
		digits[i] = byte('0' + owner%10)
	}
	for range i {
		b = append(b, ' ')
	}
	return append(b, digits[i:]...)
}

// TagBytes returns what a final or blank tag is written as, to be put at TagOffset: the
// tag and six blanks, or one byte if the format has no owner field.
func TagBytes(format uint32, t Tag) []byte {
	if format&FormatPID == 0 {
		return []byte{byte(t)}
	}
	return append([]byte{byte(t)}, "      "...)
}

// notarySep parts the values of a NOTARY field.
const notarySep = '\x01'

// String returns the NOTARY field: the six values with ^A between, empty if all are. A
// control character in a value becomes a blank.
func (n Notary) String() string {
	if n == (Notary{}) {
		return ""
	}
	return string(appendNotary(make([]byte, 0, 128), &n))
}

func appendNotary(b []byte, n *Notary) []byte {
	if *n == (Notary{}) {
		return b
	}
	for i, v := range n.values() {
		if i > 0 {
			b = append(b, notarySep)
		}
		b = append(b, human.Blank(*v)...)
	}
	if n.Way != "" {
		b = append(append(b, notarySep), human.Blank(n.Way)...)
	}
	return b
}

func (n *Notary) values() [6]*string {
	return [6]*string{&n.Address, &n.Action, &n.Status, &n.Diagnostic, &n.Remote, &n.Agent}
}

// ParseNotary reads a NOTARY field; missing values are empty, an eighth is ignored.
// Control characters in a value become blanks, so that none can reach a header
// field of a report.
func ParseNotary(s string) Notary {
	var n Notary
	for _, v := range n.values() {
		value, rest, more := strings.Cut(s, string(notarySep))
		*v = human.Blank(value)
		if !more {
			return n
		}
		s = rest
	}
	value, _, _ := strings.Cut(s, string(notarySep))
	n.Way = human.Blank(value)
	return n
}

// LockOwners returns the owners in the locks of a specification, also of one that cannot
// be parsed: any line that looks like a locked recipient counts, once or more often.
func LockOwners(b []byte) []int {
	var list []int
	prefix := []byte{'r', byte(TagLocked)}
	for line := range bytes.Lines(b) {
		field, ok := bytes.CutPrefix(line, prefix)
		if !ok || len(field) < ownerWidth {
			continue
		}
		n, err := strconv.Atoi(string(bytes.TrimLeft(field[:ownerWidth], " ")))
		if err == nil && n > 0 {
			list = append(list, n)
		}
	}
	return list
}
