// Package envelope reads and writes the head of a message file: the envelope lines
// and the RFC 5322 headers below them (docs/spool.md):
//
//	m, err := envelope.Read(file)                   // m.From, m.Recipients, m.Header
//	for _, f := range envelope.Fields(m.Header) { } // f.Name, f.Value()
//	lines, err := envelope.Append(nil, &m.Envelope) // to write another file
//
// It works on bytes that others read and write; a file that was cut by a crash shows as a
// broken envelope or by Octets, never as a shorter message.
//
// Diagnostics: *SyntaxError names the line number and what is wrong: the envelope
// is broken and the message must not be delivered. Other errors of Read are the
// reader's: try again.
package envelope

import "fmt"

// SyntaxError is a broken envelope.
type SyntaxError struct {
	Line   int // 1 is the first
	Text   string
	Reason string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("envelope line %d: %s: %.60q", e.Line, e.Reason, e.Text)
}

// MaxSize is how large an envelope may be, in bytes, its end included: Read refuses a larger
// one, so that a broken file does not make it hold all of it, and Append does not write one.
// Ten thousand recipients with the longest todsn lines of RFC 3461 take half of it.
const MaxSize = 16 << 20

// maxWritten is how large an envelope Append writes: what others put before its lines, as
// the first line of a draft and the one of a file that was picked up, fits beside it.
const maxWritten = MaxSize - 64<<10

// MaxRecipients is how many bytes the lines of all recipients may take, see Recipient.Size:
// an envelope with them can be written whatever its other lines hold, as long as no value
// is longer than a line of SMTP.
const MaxRecipients = maxWritten - 1<<20

// ErrTooLarge is returned by Append for an envelope that Read would refuse for its size.
var ErrTooLarge = fmt.Errorf("the envelope has more than %d bytes; send the message to fewer recipients at once", maxWritten)

// MaxHeader is how many bytes of headers are held in memory; what follows the last
// whole line below it is treated as body. Bytes.
const MaxHeader = 4 << 20

// Envelope holds the envelope lines. Values are kept as written; nothing is believed
// here: the router asks the file's owner for that.
type Envelope struct {
	External  bool
	RcvdFrom  string
	Forwarded string // as RcvdFrom: who gave the message to that client, which said so by XFORWARD; "": not said
	BodyType  string
	ErrorMsg  bool
	With      string
	IdentInfo string
	Comments  []string
	FullName  string
	LoginName string
	Via       string
	User      string
	Verbose   string
	// Submitted is the user who has submitted the message by SMTP, in xtext (RFC 3461 section 4);
	// "-": a client that may submit without a name; "": the message was not submitted that way.
	Submitted string
	// Rules is what smtpserver has done with the rules about header and body: "followed",
	// "skipped"; "": nothing.
	Rules string
	// Filter is CHANNEL!HOST: a rule has the message go there, whatever its recipients are; "": none.
	Filter string
	// Filtered: the message has passed the content filter (CONTENTFILTER).
	Filtered bool
	// Above is how many fields at the begin of the header go above our Received field: filters
	// have put them there. "": none.
	Above     string
	From      string // address without brackets; "" with HasFrom: null sender
	HasFrom   bool   // a from or a channel line was there
	EnvID     string
	NotaryRet string
	// Submitter is who has submitted the message, as the router that copied it has found by
	// the owner of the user's file (postoffice.PickUp); nil: the file's owner. It is only to
	// be believed in a file of the daemons.
	Submitter *Submitter
	// Octets is the file's size as its writer recorded it, -1 if it did not: a
	// file whose size differs was not finished (see postoffice).
	Octets     int64
	Recipients []Recipient
	Unknown    []string // keywords that were ignored
}

// Submitter is the user whose file a message was copied from.
type Submitter struct {
	UID uint32
	ID  string // spool ID of that file
}

// Recipient is a to line with the todsn line before it.
type Recipient struct {
	Address string // without brackets
	DSN     string // todsn's value, verbatim
}

// Size returns how many bytes the lines of the recipient take.
func (r *Recipient) Size() int {
	n := len("to <>\n") + len(r.Address)
	if r.DSN != "" {
		n += len("todsn \n") + len(r.DSN)
	}
	return n
}

// Message is the head of a message file.
type Message struct {
	Envelope
	// Header is the header block as it is in the file: whole lines without the
	// empty line after them.
	Header []byte
	// HeaderOffset and BodyOffset count from the start of the file. Between the
	// end of Header and BodyOffset is the empty line, if the file has one.
	HeaderOffset, BodyOffset int64
}
