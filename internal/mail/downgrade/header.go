package downgrade

import (
	"bytes"
	"mime"
	"strings"

	"zmailer/internal/mail/envelope"
)

// kind is what a part is made of.
type kind uint8

const (
	kindLeaf      kind = iota
	kindMultipart      // parts between boundaries
	kindMessage        // a header and a body
	kindRigid          // must not be encoded (RFC 2046 §5.2), or cannot be taken apart
	kindFrame          // text before the first boundary of a multipart, or behind its last
)

// part is the MIME fields of a part's header.
type part struct {
	kind     kind
	top      bool // the header is a message's
	bare     bool // it has no MIME fields: text in an unknown charset (RFC 1428)
	text     bool
	signed   bool   // multipart/signed
	inside   bool   // of one
	digest   bool   // multipart/digest
	spoiled  bool   // the header has 8-bit content, and it is not sure what belongs to it
	boundary string // of a multipart
	encoding string // Content-Transfer-Encoding, see label; "" if there is none
	// doubt is why readers may disagree about what belongs to the part; "" if they cannot.
	// Such a part is sent as it is or not at all.
	doubt string
}

// The values of Content-Transfer-Encoding that say how the bytes of a part were encoded.
const (
	encodingQuoted = "quoted-printable"
	encodingBase64 = "base64"
)

// label reduces a value of Content-Transfer-Encoding to its first word in lower case,
// without comments. A word that names no encoding, such as 7-bit or plain, is read as 8bit:
// the bytes of the part are literal, as in every reader that ignores the word.
// Names that begin with x- and misspelled names of encodings are kept (RFC 2045 §6.3).
func label(value string) string {
	word, _ := uncomment(value)
	word = strings.TrimSpace(word)
	if i := strings.IndexAny(word, ";, \t\r\n"); i >= 0 {
		word = word[:i]
	}
	word = strings.ToLower(strings.Trim(word, `"'.`))
	switch word {
	case "", "7bit", "8bit", "binary", encodingQuoted, encodingBase64:
		return word
	}
	for _, name := range [...]string{"quoted", "qp", "base", "uu", "yenc", "hex"} {
		if strings.Contains(word, name) {
			return word
		}
	}
	if strings.HasPrefix(word, "x-") {
		return word
	}
	return "8bit"
}

// identity reports whether the bytes of the part are literal.
func (p *part) identity() bool {
	switch p.encoding {
	case "", "7bit", "8bit", "binary":
		return true
	}
	return false
}

// parsePart reads a part's header. In a digest a part is a message unless its header says
// otherwise (RFC 2046 §5.1.5).
func parsePart(header []byte, top, digest bool) part {
	p := part{top: top, text: true}
	var typed, labeled, versioned bool
	var value string
	for i, f := range envelope.Fields(header) {
		switch {
		case f.Name == "":
			if i == 0 && top && isFromLine(f.Raw) {
				continue
			}
			p.doubt = "the header of a part has a line that is not a header field"
			p.spoiled = p.spoiled || has8bit(header)
		case strings.EqualFold(f.Name, "Content-Type"):
			v := f.Value()
			if typed && v != value {
				p.doubt = "a part has two different Content-Type fields"
			}
			if !typed {
				typed, value = true, v
			}
		case strings.EqualFold(f.Name, "Content-Transfer-Encoding"):
			l := label(f.Value())
			if labeled && l != p.encoding {
				p.doubt = "a part has two different Content-Transfer-Encoding fields"
			}
			if !labeled {
				labeled, p.encoding = true, l
			}
		case strings.EqualFold(f.Name, "MIME-Version"):
			versioned = true
		}
	}
	if typed {
		p.classify(value)
	} else {
		p.bare = top && !versioned && !labeled
		if digest {
			p.kind, p.text = kindMessage, false
		}
	}
	if p.kind != kindLeaf && p.doubt != "" {
		p.kind = kindRigid
	}
	return p
}

// classify reads the value of Content-Type.
func (p *part) classify(value string) {
	value, closed := uncomment(value)
	media, params, err := mime.ParseMediaType(value)
	if err != nil {
		// One broken parameter must not hide the boundary.
		media = mediaType(value)
		params = map[string]string{"boundary": looseParameter(value, "boundary")}
	}
	main, sub, pair := strings.Cut(media, "/")
	p.text = main == "text" || !pair // RFC 2045 §5.2: an invalid type is text/plain
	switch {
	case !closed && (main == "multipart" || main == "message"):
		p.kind, p.doubt = kindRigid, "a part has a Content-Type that cannot be read"
	case main == "multipart" && p.identity():
		p.kind, p.boundary = kindMultipart, strings.TrimRight(params["boundary"], " \t\r")
		p.signed, p.digest = sub == "signed", sub == "digest"
		p.checkBoundary()
	case main == "multipart":
		// RFC 2045 §6.4 forbids it, and readers disagree whether the parts are encoded.
		p.kind, p.doubt = kindRigid, "a multipart has Content-Transfer-Encoding: "+p.encoding
	case main == "message" && (sub == "rfc822" || sub == "news") && p.identity():
		p.kind = kindMessage
	case main == "message" && !strings.HasPrefix(sub, "global"):
		// RFC 6532 §3.7 lets message/global be encoded, RFC 2046 §5.2 no other.
		p.kind = kindRigid
	case err != nil && (strings.Contains(media, "multipart") || strings.Contains(media, "message")):
		p.kind, p.doubt = kindRigid, "a part has a Content-Type that cannot be read"
	}
}

// maxBoundary bounds the boundaries that are looked for; RFC 2046 §5.1.1 allows 70. Bytes.
const maxBoundary = 500

// checkBoundary makes a multipart rigid whose boundary cannot be sent, or is missing.
func (p *part) checkBoundary() {
	if p.boundary == "" {
		p.kind, p.doubt = kindRigid, "a multipart has no boundary"
		return
	}
	if len(p.boundary) > maxBoundary {
		p.kind, p.doubt = kindRigid, "the boundary of a multipart is too long"
		return
	}
	for i := range len(p.boundary) {
		if c := p.boundary[i]; c < ' ' || c >= 0x7f {
			p.kind, p.doubt = kindRigid, "the boundary of a multipart has characters that are not allowed"
			return
		}
	}
}

// isFromLine reports whether a line is the first of a message in an mbox file, which
// readers skip.
func isFromLine(line []byte) bool {
	return bytes.HasPrefix(bytes.TrimPrefix(line, []byte(">")), []byte("From "))
}

// uncomment replaces comments (RFC 2045 §5.1, RFC 5322 §3.2.2) by a space. What looks like
// one in a quoted string is none. It reports whether all comments and quoted strings end.
func uncomment(s string) (without string, closed bool) {
	if !strings.ContainsAny(s, `("`) {
		return s, true
	}
	var b strings.Builder
	depth, inQuotes := 0, false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && (depth > 0 || inQuotes) && i+1 < len(s):
			if i++; depth == 0 {
				b.WriteString(s[i-1 : i+1])
			}
		case depth > 0:
			if c == '(' {
				depth++
			} else if c == ')' {
				if depth--; depth == 0 {
					b.WriteByte(' ')
				}
			}
		case c == '(' && !inQuotes:
			depth = 1
		default:
			if c == '"' {
				inQuotes = !inQuotes
			}
			b.WriteByte(c)
		}
	}
	return strings.TrimSpace(b.String()), depth == 0 && !inQuotes
}

// mediaType returns the type in a value that cannot be parsed, in lower case.
func mediaType(value string) string {
	value, _, _ = strings.Cut(value, ";")
	main, sub, ok := strings.Cut(strings.ToLower(strings.TrimSpace(value)), "/")
	if !ok {
		return main
	}
	return strings.TrimSpace(main) + "/" + strings.TrimSpace(sub)
}

// looseParameter finds a parameter in a value that cannot be parsed: the first of its name
// between semicolons outside of quoted strings.
func looseParameter(value, name string) string {
	for value != "" {
		var one string
		one, value = cutParameter(value)
		key, v, ok := strings.Cut(one, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(key), name) {
			continue
		}
		v = strings.TrimSpace(v)
		if rest, ok := strings.CutPrefix(v, `"`); ok {
			v, _, _ = strings.Cut(rest, `"`)
		}
		return v
	}
	return ""
}

// cutParameter cuts a value behind its first semicolon outside of quoted
// strings.
func cutParameter(value string) (first, rest string) {
	inQuotes := false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\' && inQuotes:
			i++
		case c == '"':
			inQuotes = !inQuotes
		case c == ';' && !inQuotes:
			return value[:i], value[i+1:]
		}
	}
	return value, ""
}

// edit returns a part's header with the encoding that was chosen: whole lines. Of
// several fields that name an encoding the first is changed and the others are removed.
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
