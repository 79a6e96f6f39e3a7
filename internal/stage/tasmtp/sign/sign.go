// Package sign signs messages with DKIM (RFC 6376, RFC 8463) for the domains that the
// file dkim names, with the keys that it names.
//
// It owns nothing: the table and its keys are the postmaster's files, read again when
// they change. A message is read once for its signatures, in constant memory.
//
// Diagnostics: an *Error is trouble with our keys: the message is to wait until a
// postmaster has mended it. ErrShape is a message that is not signed because of what it
// is. Every other error is the reader's.
package sign

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/emersion/go-msgauth/dkim"

	"zmailer/internal/mail/envelope"
)

// Error is a domain none of whose keys can be used now.
type Error struct {
	Domain string
	Err    error
}

func (e *Error) Error() string { return "sign for " + e.Domain + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// ErrShape is a message that no one should vouch for.
var ErrShape = errors.New("the message has empty lines without end")

// maxEmpty bounds the empty lines in a row that are hashed: the library holds them until
// it knows whether the body ends with them.
const maxEmpty = 1 << 20

// oversigned are fields that must not be added or changed later: each is signed once more
// than it occurs (RFC 6376 §5.4).
var oversigned = []string{
	"From", "To", "Cc", "Subject", "Date", "Reply-To", "Message-ID", "In-Reply-To", "References",
	"MIME-Version", "Content-Type", "Content-Transfer-Encoding",
}

// signed are those that are signed as they are. A mailing list that comes later may add
// its own.
var signed = []string{
	"Sender", "Resent-Date", "Resent-From", "Resent-To", "Resent-Cc", "Resent-Message-ID", "Auto-Submitted",
	"List-Id", "List-Help", "List-Unsubscribe", "List-Unsubscribe-Post", "List-Subscribe", "List-Post", "List-Owner", "List-Archive",
}

// maxSame is how often a field is signed at most: the names must fit into a line.
const maxSame = 3

// names returns those for the h= tag of a header.
func names(header []byte) []string {
	count := map[string]int{}
	for _, f := range envelope.Fields(header) {
		count[strings.ToLower(f.Name)]++
	}
	var list []string
	for _, name := range oversigned {
		for range min(count[strings.ToLower(name)], maxSame) + 1 {
			list = append(list, name)
		}
	}
	for _, name := range signed {
		for range min(count[strings.ToLower(name)], maxSame) {
			list = append(list, name)
		}
	}
	return list
}

// Sign returns the signature fields for a message, one of each key that can be used: whole
// lines, to be put on top. The header is whole lines, the body begins with the empty line;
// line ends are LF, and become CRLF on the wire.
func Sign(keys []*Key, header []byte, body io.Reader, now time.Time) ([]byte, error) {
	var signers []*dkim.Signer
	var used []*Key
	var trouble error
	fields := names(header)
	for _, k := range keys {
		s, err := k.signer(fields, now)
		if err != nil {
			trouble = errors.Join(trouble, err)
			continue
		}
		signers, used = append(signers, s), append(used, k)
	}
	if len(signers) == 0 {
		return nil, &Error{Domain: keys[0].Domain, Err: trouble}
	}
	err := feed(signers, header, body)
	var out []byte
	for i, s := range signers {
		// Close also ends a signer that will not be used.
		if cerr := s.Close(); cerr != nil && err == nil {
			err = &Error{Domain: used[i].Domain, Err: cerr}
		}
		if err == nil {
			out = append(out, strings.ReplaceAll(s.Signature(), "\r\n", "\n")...)
		}
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// feed gives a message to the signers as it will be on the wire.
func feed(signers []*dkim.Signer, header []byte, body io.Reader) error {
	w := &wire{}
	for _, s := range signers {
		w.to = append(w.to, s)
	}
	b := bufio.NewWriterSize(w, 32<<10)
	if _, err := b.Write(header); err != nil {
		return err
	}
	n, err := io.Copy(b, body)
	if err == nil && n == 0 {
		_, err = b.Write([]byte("\n")) // a message that is all header
	}
	if err != nil {
		return err
	}
	return b.Flush()
}

// wire makes CRLF of LF.
type wire struct {
	to    []io.Writer
	buf   []byte
	empty int // line ends in a row
}

func (w *wire) Write(p []byte) (int, error) {
	w.buf = w.buf[:0]
	for _, c := range p {
		switch c {
		case '\n':
			w.empty++
			w.buf = append(w.buf, '\r')
		case '\r':
			w.empty++
		case ' ', '\t':
			// A line of blanks counts as empty.
		default:
			w.empty = 0
		}
		if w.empty > maxEmpty {
			return 0, ErrShape
		}
		w.buf = append(w.buf, c)
	}
	for _, to := range w.to {
		if _, err := to.Write(w.buf); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
