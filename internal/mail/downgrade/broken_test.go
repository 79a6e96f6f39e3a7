package downgrade

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// maker makes random messages, most of them broken in one way or another.
type maker struct {
	*rand.Rand
	legal    bool     // nothing is broken so far
	signed   bool     // it has a signed part
	binary   bool     // it has a part that is binary
	digest   bool     // the next part is one of a digest
	comments []string // comments in MIME fields
	bounds   []string // boundaries of the multiparts around
}

func newMaker(seed, n uint64) *maker {
	return &maker{Rand: rand.New(rand.NewPCG(seed, n)), legal: true}
}

func (m *maker) oneIn(n int) bool { return m.IntN(n) == 0 }

// breaks decides on one more defect. Half of all messages have none.
func (m *maker) breaks(n int) bool {
	if !m.oneIn(n) {
		return false
	}
	m.legal = false
	return true
}

func pick[T any](m *maker, all ...T) T { return all[m.IntN(len(all))] }

// comment returns a comment now and then, which no other text of the message contains.
func (m *maker) comment() string {
	if !m.oneIn(8) {
		return ""
	}
	c := fmt.Sprintf(pick(m, "(c%d)", "(c%d ; boundary=no)", "(c%d (in) \\) \")", "(c%d (a (b)))"), len(m.comments))
	m.comments = append(m.comments, c)
	return c
}

// uncommented returns a message without the comments, and without the blank before a colon
// that RFC 5322 §4.5 allows, for readers that do not know them.
func (m *maker) uncommented(s string) string {
	for _, c := range m.comments {
		s = strings.ReplaceAll(s, c, "")
	}
	return strings.ReplaceAll(s, "X-Head : ", "X-Head: ")
}

func (m *maker) message() string {
	var b strings.Builder
	b.WriteString("From: a@b.example\n")
	if m.oneIn(4) {
		b.WriteString("Subject: gr\xc3\xbcn\n")
	}
	version := !m.oneIn(10)
	if version {
		b.WriteString("MIME-Version: 1.0" + m.comment() + "\n")
	}
	b.WriteString(m.entity(0, true))
	return b.String()
}

// entity returns the rest of a header, and a body that ends with a line end.
func (m *maker) entity(depth int, top bool) string {
	if m.oneIn(6) {
		top = false // nothing of MIME, so that it is text
	}
	switch n := m.IntN(10); {
	case depth < 4 && (n < 4 || n < 8 && depth == 0):
		return m.multipart(depth)
	case depth < 4 && n == 8:
		label := m.field("Content-Transfer-Encoding: ", pick(m, "", "", "8bit", "7bit"))
		return label + m.field("Content-Type: ", "message/rfc822") + m.junk() + "\n" + m.message2(depth)
	}
	return m.leaf(top)
}

func (m *maker) message2(depth int) string {
	m.digest = false
	head := "Subject: in\n"
	if m.breaks(20) {
		head = pick(m, "no field\n", "From a@b Mon\nSubject: in\n", "gr\xc3\xbcn\n", "")
	}
	return head + "MIME-Version: 1.0\n" + m.entity(depth+1, true)
}

// field returns a header field with comments and folds, or nothing.
func (m *maker) field(name, value string) string {
	if value == "" {
		return ""
	}
	if m.oneIn(6) {
		name = strings.ToLower(name)
	}
	if m.oneIn(8) {
		value = strings.Replace(value, ";", pick(m, " ;", ";\n\t", ";\n "), 1)
	}
	return name + m.comment() + value + m.comment() + "\n"
}

// junk returns what does not belong into a header.
func (m *maker) junk() string {
	if m.oneIn(12) {
		return pick(m, "X-Head: gr\xc3\xbcn\n", "X-Head : y\n")
	}
	if m.breaks(60) {
		return pick(m, "no field at all\n", "gr\xc3\xbcn, no field\n", "Content-Type: text/html\n", "Content-Transfer-Encoding: base64\n", "--\n", ": y\n")
	}
	return ""
}

func (m *maker) leaf(top bool) string {
	kind := pick(m, "text/plain; charset=utf-8", "text/plain"+m.comment()+"; charset=\"iso-8859-1\"", "text/html", "application/octet-stream",
		"image/png; name=\"a (b\"", "text/plain; name=\"x; boundary=no\"", "")
	if m.breaks(20) {
		kind = pick(m, "text", "foo", "text/plain; charset=", "text/plain; name=\"open", "message/delivery-status", "message/partial; id=x", "message/global",
			"multipart", "\"multipart/mixed\"; boundary=b", "/", "text/plain (open")
	}
	if kind == "" && m.digest {
		m.legal = false // it is to be a message, and is none
	}
	encoding := pick(m, "", "", "7bit", "8bit", "8BIT", "quoted-printable", "base64")
	if m.oneIn(20) {
		encoding, m.binary = "binary", true
	}
	if m.breaks(12) {
		encoding = pick(m, "7-bit", "plain", "8-bit", "none", "utf-8", "x-own", "8bit; x", "quoted-printable", "base-64", "x-uuencode", "8 bit")
	}
	header := m.field("Content-Type: ", kind) + m.junk() + m.field("Content-Transfer-Encoding: ", encoding)
	if m.oneIn(2) {
		header = m.field("Content-Transfer-Encoding: ", encoding) + m.field("Content-Type: ", kind) + m.junk()
	}
	if top && m.oneIn(20) {
		header = ""
	}
	body := ""
	switch encoding {
	case "quoted-printable":
		body = m.quoted()
	case "base64":
		body = m.base64()
	case "x-own", "x-uuencode", "base-64":
		body = m.text(false)
	default:
		body = m.text(encoding == "binary")
	}
	if m.breaks(80) {
		return header + body // no empty line
	}
	return header + "\n" + body
}

// text is text in 7 or 8 bits, with lines of any length.
func (m *maker) text(binary bool) string {
	const alphabet = "abc de\tf=.-\n\n-?"
	b := make([]byte, m.IntN(400))
	dense := pick(m, 0, 0, 1, 3)
	for i := range b {
		b[i] = alphabet[m.IntN(len(alphabet))]
		if m.IntN(12) < dense {
			b[i] = byte(0x80 + m.IntN(0x80))
		}
	}
	s := string(b)
	if binary || m.breaks(60) {
		s += "\x00\xff\x00"
	}
	if m.oneIn(10) {
		s += strings.Repeat(pick(m, "x", "--b", "\xc3\xa4", "= ", "From "), 400)
	}
	if m.oneIn(10) {
		s += pick(m, "\n--\n", "\n-- \nsig", "\n.\n", "\n\n\n", "\n-----\n", "\nFrom x\n")
	}
	return m.near(s) + "\n"
}

// near puts what is almost a boundary into text.
func (m *maker) near(s string) string {
	if len(m.bounds) == 0 || !m.breaks(60) {
		return s
	}
	b := pick(m, m.bounds...)
	return s + "\n" + pick(m, "--"+b+"x", "--"+b+" x", "--"+b+"-", "--"+b+"--x", "-"+b, " --"+b, "x--"+b) + "\n" + s
}

// quoted is quoted-printable, with octets and signs that it does not allow.
func (m *maker) quoted() string {
	var b strings.Builder
	wrong := m.breaks(4)
	for range m.IntN(300) {
		switch m.IntN(30) {
		case 0:
			b.WriteString("=\n")
		case 1:
			b.WriteString("\n")
		case 2:
			b.WriteString(pick(m, "=C3=A4", "=c3=a4", "=3D"))
		case 3:
			b.WriteString(pick(m, " ", "\t", "   "))
		case 4:
			if wrong {
				b.WriteString(pick(m, "\xc3\xa4", "\xff", "=\xc3", "=4\xc3", "=\xff\n", "= \xff", " \xff \n", "\xff=\n", "=x", "=", "=4", "=4\n", "\x00"))
			}
		case 5:
			if m.oneIn(60) {
				b.WriteString(strings.Repeat(pick(m, "x", "=41", "x ", "-"), 400))
			}
		default:
			b.WriteByte("abcdef -.?"[m.IntN(10)])
		}
	}
	return m.near(b.String()) + "\n"
}

func (m *maker) base64() string {
	raw := make([]byte, m.IntN(2000))
	for i := range raw {
		raw[i] = byte(m.Uint32())
	}
	s := base64.StdEncoding.EncodeToString(raw)
	if !m.oneIn(8) {
		var b strings.Builder
		for len(s) > 76 {
			b.WriteString(s[:76] + "\n")
			s = s[76:]
		}
		s = b.String() + s
	}
	if m.breaks(12) {
		s += pick(m, "\n\xff\n", "\nfooter\n", "=\n====", "\ngr\xc3\xbcn")
	}
	return s + "\n"
}

func (m *maker) multipart(depth int) string {
	kind := pick(m, "mixed", "alternative", "related", "digest", "report", "x-any")
	if depth > 0 && m.oneIn(12) || m.oneIn(25) {
		kind, m.signed = "signed", true
	}
	b := pick(m, fmt.Sprintf("=_%d.%d", depth, m.IntN(1000)), fmt.Sprintf("b%d", m.IntN(1000)), fmt.Sprintf("a b(%d)c", m.IntN(1000)), fmt.Sprintf("----=_Part:%d", m.IntN(1000)))
	if n := len(m.bounds); n > 0 && m.oneIn(12) {
		b = m.bounds[n-1] + "x" // the outer one is the beginning of the inner one
	}
	if n := len(m.bounds); n > 0 && m.breaks(40) {
		b = pick(m, m.bounds[n-1], m.bounds[n-1]+"--")
	}
	if slices.Contains(m.bounds, b) {
		m.legal = false
	}
	said := b
	if m.breaks(40) {
		said = pick(m, b+"y", b[:len(b)-1], "other")
	}
	boundary := "; " + m.comment() + pick(m, "boundary", "Boundary", "charset=utf-8; boundary") + "=\"" + said + "\""
	if !strings.ContainsAny(said, "() =:") && m.oneIn(2) {
		boundary = "; boundary=" + said + pick(m, "", "; name=\"x; boundary=y\"")
	}
	if m.breaks(25) {
		boundary = pick(m, "", "; boundary=", ", boundary=\""+b+"\"", " boundary="+b, "; boundary="+b, "; boundary=\""+b, "; x y; boundary=\""+b+"\"", "; boundary=\"gr\xc3\xbcn\"",
			"; boundary=\""+b+"\"; boundary=no", "; boundary=no; boundary=\""+b+"\"", "; boundary*0=\""+b[:1]+"\"; boundary*1=\""+b[1:]+"\"", "; boundary=\""+b+"\"; x", "; name=(; boundary=\""+b+"\"")
	}
	label := pick(m, "", "", "8bit", "7bit")
	if m.oneIn(30) {
		label, m.binary = "binary", true
	}
	if m.breaks(25) {
		label = pick(m, "quoted-printable", "base64", "7-bit", "plain")
	}
	var s strings.Builder
	s.WriteString(m.field("Content-Transfer-Encoding: ", label) + m.field("Content-Type: ", "multipart/"+kind+boundary) + m.junk() + "\n")
	m.bounds = append(m.bounds, b)
	s.WriteString(m.around(b))
	for range 1 + m.IntN(3) {
		s.WriteString("--" + b + pick(m, "", "", "", " ", "\t ") + "\n")
		switch {
		case kind == "digest" && m.oneIn(2):
			s.WriteString("\n" + m.message2(depth+1))
		case m.breaks(40):
			// Not even a line: Python's reader overlooks that the next boundary is the last.
			s.WriteString(pick(m, "\n", "gr\xc3\xbcn\n", "X-Head: y\n", " \n", "gr\xc3\xbcn\n\nmore\n"))
		default:
			m.digest = kind == "digest"
			s.WriteString(m.entity(depth+1, false))
		}
		if m.oneIn(3) {
			s.WriteString("\n")
		}
		if m.breaks(80) {
			s.WriteString("--" + b + "--\n") // too early
		}
	}
	m.bounds = m.bounds[:len(m.bounds)-1]
	if m.breaks(30) {
		return s.String() // not closed
	}
	return s.String() + "--" + b + "--\n" + m.around(b)
}

// around is text before or behind the parts.
func (m *maker) around(b string) string {
	if !m.oneIn(5) {
		return ""
	}
	s := pick(m, "This is a multi-part message.\n", "Gr\xc3\xbc\xc3\x9fe = x\n", "\n", "\n\xff\n\n", "a? b\n", strings.Repeat("long ", 300)+"\n", "-- \nf\xc3\xbcr\n", "-----\n\xc3\xa4\n")
	if m.breaks(20) {
		s = pick(m, "--other\nContent-Type: text/plain\n\ngr\xc3\xbcn\n", "--"+b+"z\n\ngr\xc3\xbcn\n", "gr\xc3\xbcn\n\x00\n")
	}
	return s
}
