package route

import (
	"net/mail"
	"strconv"
	"strings"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/human"
)

// header is what routing needs to know of a message's own header block.
type header struct {
	fields    []envelope.Field
	received  int
	messageID *envelope.Field
}

// look finds the fields in a header block; of repeated ones the first.
func (h *header) look(block []byte) {
	*h = header{fields: envelope.Fields(block)}
	for i := range h.fields {
		f := &h.fields[i]
		switch len(f.Name) {
		case len("Received"):
			if strings.EqualFold(f.Name, "Received") {
				h.received++
			}
		case len("Message-ID"):
			first(&h.messageID, f, "Message-ID")
		}
	}
}

func first(to **envelope.Field, f *envelope.Field, name string) {
	if *to == nil && strings.EqualFold(f.Name, name) {
		*to = f
	}
}

// maxIdent bounds what log lines are named with. Bytes.
const maxIdent = 250

// ident returns the message's own identification if it fits on one line, else "".
func (h *header) ident() string {
	if h.messageID == nil {
		return ""
	}
	v := h.messageID.Value()
	if len(v) < 3 || len(v) > maxIdent || v[0] != '<' || v[len(v)-1] != '>' {
		return ""
	}
	for i := 0; i < len(v); i++ {
		if v[i] <= ' ' || v[i] == 0x7f {
			return ""
		}
	}
	return v
}

// foldAt is where header lines of ours are folded, RFC 5322 §2.1.1. Bytes.
const foldAt = 78

// maxFrom bounds what a submitter has us say in a Received line, which must stay
// below 998 bytes even without a blank to fold at. Bytes.
const maxFrom = 500

// received appends the trace line, RFC 5321 §4.4.
func (msg *message) received(b []byte, c *Config) []byte {
	b = append(b, "Received: "...)
	e := &msg.head.Envelope
	begin := len(b) - len("Received: ")
	clause := "by " + c.Hostname
	if c.HideClient && msg.user != "" && msg.user != "-" {
		// The user is known here; the client's name and address are not for the recipients.
		clause += " (authenticated)"
	} else if msg.trusted && e.RcvdFrom != "" {
		b = appendFolded(b, &begin, "from "+rcvdFrom(e.RcvdFrom))
		b, begin = append(b, "\n\t"...), len(b)+1
	} else if !msg.external {
		clause += " (from userid " + strconv.FormatUint(uint64(msg.uid), 10) + ")"
	}
	if msg.trusted && e.Via != "" {
		clause += " via " + atom(e.Via)
	}
	if msg.trusted && e.With != "" {
		clause += " with " + atom(e.With)
	}
	if msg.policy.filter != nil {
		clause += " " + toFilter
	}
	b = appendFolded(b, &begin, clause)
	b = append(b, "\n\tid "...)
	b = append(b, msg.id...)
	b = append(b, "; "...)
	return append(msg.date(b), '\n')
}

// rcvdFrom returns a trusted submitter's text about its peer; if that is too long, the host
// alone, so that no comment is left open.
func rcvdFrom(s string) string {
	if len(s) > maxFrom {
		s, _, _ = strings.Cut(s, " ")
		s = s[:min(len(s), maxFrom)]
	}
	return human.Mask(strings.ReplaceAll(s, "\t", " "))
}

// date appends the time of acceptance, RFC 5322 §3.3.
func (msg *message) date(b []byte) []byte {
	return msg.claim.ID.Time().AppendFormat(b, "Mon, 2 Jan 2006 15:04:05 -0700")
}

// appendFolded appends words, with a line end before each that would pass foldAt.
// begin is where the line that b ends with begins.
func appendFolded(b []byte, begin *int, text string) []byte {
	start := len(b)
	for text != "" {
		word, rest, _ := strings.Cut(text, " ")
		text = rest
		if word == "" {
			continue
		}
		if len(b) > start {
			if len(b)-*begin+1+len(word) > foldAt {
				b = append(b, '\n')
				*begin = len(b)
				b = append(b, '\t')
			} else {
				b = append(b, ' ')
			}
		}
		b = append(b, word...)
	}
	return b
}

// atom is printable without what would end a word, RFC 5322 §3.2.3.
func atom(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" \t()<>@,;:\\\"[]", r) || r < ' ' || r == 0x7f {
			return '-'
		}
		return r
	}, s[:min(len(s), 40)])
}

// fromPhrase is RFC 5322 §3.4 name-addr, or the address alone if there is no name.
func fromPhrase(a mail.Address) string {
	if a.Name == "" {
		return a.Address
	}
	s := a.String()
	return s[:strings.LastIndexByte(s, '<')] + "<" + a.Address + ">"
}

// madeID returns the identification of a message that came without one: the spool ID,
// which no other message on this host has.
func (msg *message) madeID(hostname string) string { return "<" + msg.id + "@" + hostname + ">" }
