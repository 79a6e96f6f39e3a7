package downgrade

import (
	"mime"
	"strings"

	"zmailer/internal/envelope"
)

// kind is what a part is made of.
type kind uint8

const (
	kindLeaf      kind = iota
	kindMultipart      // parts between boundaries
	kindMessage        // a header and a body
	kindRigid          // must not be encoded (RFC 2046 §5.2), or cannot be taken apart
)

// part is what a part's header says.
type part struct {
	kind     kind
	top      bool // the header is a message's
	bare     bool // it says nothing of MIME: text in a charset that is not known (RFC 1428)
	text     bool
	signed   bool   // multipart/signed
	inside   bool   // of one
	digest   bool   // multipart/digest
	boundary string // of a multipart
	encoding string // Content-Transfer-Encoding, lower case; "" if it is not said
}

// identity tells a part whose bytes stand for themselves.
func (p *part) identity() bool {
	switch p.encoding {
	case "", "7bit", "8bit", "binary":
		return true
	}
	return false
}

// parsePart reads a part's header. In a digest a part is a message unless it says
// otherwise (RFC 2046 §5.1.5).
func parsePart(header []byte, top, digest bool) part {
	p := part{top: top, text: true}
	if value, ok := field(header, "Content-Transfer-Encoding"); ok {
		p.encoding = token(value)
	}
	value, typed := field(header, "Content-Type")
	if !typed {
		_, versioned := field(header, "MIME-Version")
		p.bare = top && !versioned && p.encoding == ""
		if digest {
			p.kind, p.text = kindMessage, false
		}
		return p
	}
	media, params, err := mime.ParseMediaType(value)
	if err != nil {
		// One broken parameter must not hide the boundary.
		media, params = token(value), map[string]string{"boundary": looseBoundary(value)}
	}
	main, sub, _ := strings.Cut(media, "/")
	p.text = main == "text"
	switch {
	case main == "multipart" && p.identity():
		p.kind, p.boundary = kindMultipart, strings.TrimRight(params["boundary"], " \t\r")
		p.signed, p.digest = sub == "signed", sub == "digest"
	case main == "message" && (sub == "rfc822" || sub == "news") && p.identity():
		p.kind = kindMessage
	case main == "message" && !strings.HasPrefix(sub, "global"):
		// RFC 6532 §3.7 lets message/global be encoded, RFC 2046 §5.2 no other.
		p.kind = kindRigid
	}
	return p
}

// token is the first word of a value in lower case: what stands before parameters and
// comments.
func token(value string) string {
	if i := strings.IndexAny(value, ";( \t\r\n"); i >= 0 && strings.TrimSpace(value[:i]) != "" {
		value = value[:i]
	}
	return strings.ToLower(strings.TrimSpace(value))
}

// looseBoundary finds a boundary in a value that cannot be parsed.
func looseBoundary(value string) string {
	const name = "boundary="
	for len(value) >= len(name) && !strings.EqualFold(value[:len(name)], name) {
		value = value[1:]
	}
	if len(value) < len(name) {
		return ""
	}
	value = value[len(name):]
	if rest, ok := strings.CutPrefix(value, `"`); ok {
		value, _, _ = strings.Cut(rest, `"`)
		return value
	}
	value, _, _ = strings.Cut(value, ";")
	return strings.TrimSpace(value)
}

// field is the value of the first field of a name, unfolded.
func field(header []byte, name string) (string, bool) {
	for _, f := range envelope.Fields(header) {
		if strings.EqualFold(f.Name, name) {
			return f.Value(), true
		}
	}
	return "", false
}

// edit gives a part's header with what the choice makes of its encoding: whole lines. Of
// several fields that say one encoding the first is changed and the others go.
func (c choice) edit(header []byte, top bool) []byte {
	if c.encoding == "" {
		return header
	}
	line := "Content-Transfer-Encoding: " + c.encoding + "\n"
	out := make([]byte, 0, len(header)+len(line)+100)
	said, versioned := false, false
	for _, f := range envelope.Fields(header) {
		versioned = versioned || strings.EqualFold(f.Name, "MIME-Version")
		if !strings.EqualFold(f.Name, "Content-Transfer-Encoding") {
			out = append(out, f.Raw...)
			continue
		}
		if !said {
			out = append(out, line...)
		}
		said = true
	}
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	if top && !versioned {
		out = append(out, "MIME-Version: 1.0\n"...)
	}
	if c.bare {
		out = append(out, "Content-Type: text/plain; charset=unknown-8bit\n"...) // RFC 1428 §3
	}
	if !said {
		out = append(out, line...)
	}
	return out
}
