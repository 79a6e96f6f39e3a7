package dsn

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/emersion/go-message/textproto"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
)

const (
	// maxText bounds what a remote host can make us repeat. Bytes.
	maxText = 4 << 10
	// maxWord keeps a word foldable: lines end before 998 (RFC 5322 §2.1.1). Bytes.
	maxWord = 800
)

// writeStatus writes the part for programs (RFC 3464 §2.1).
func (r *Report) writeStatus(mw *textproto.MultipartWriter) error {
	kind, encoding := "message/delivery-status", "7bit"
	if r.utf8() {
		kind, encoding = "message/global-delivery-status", "8bit" // RFC 6533 §3
	}
	p, err := mw.CreatePart(fields{
		{"Content-Description", "Delivery report for programs", false},
		{"Content-Type", kind, false},
		{"Content-Transfer-Encoding", encoding, false},
	}.header())
	if err != nil {
		return err
	}
	u := r.utf8()
	// RFC 3464 §2.2
	message := fields{
		{"Original-Envelope-Id", text(r.EnvID, u), false},
		{"Reporting-MTA", "dns; " + text(r.ReportingMTA, u), false},
		{"Received-From-MTA", typed(r.ReceivedFrom, "dns", u), false}, // RFC 3464 §2.2.4
		{"Arrival-Date", date(r.Arrival), false},
		{"X-Spool-ID", text(r.SpoolID, u), false},
	}
	if err := message.write(p); err != nil {
		return err
	}
	for i := range r.Recipients {
		if _, err := io.WriteString(p, "\r\n"); err != nil {
			return err
		}
		if err := r.Recipients[i].fields(u).write(p); err != nil {
			return err
		}
	}
	return nil
}

// fields returns a recipient's (RFC 3464 §2.3).
func (p *Recipient) fields(utf8 bool) fields {
	f := fields{
		{"Original-Recipient", originalRecipient(p.Original, utf8), true},
		{"Final-Recipient", finalRecipient(p.Final, utf8), true},
		{"Action", string(p.Action), false},
		{"Status", p.status(), false},
		{"Remote-MTA", typed(p.Remote, "dns", utf8), false},
		{"Diagnostic-Code", typed(p.Diagnostic, "x-local", utf8), false},
		{"Last-Attempt-Date", date(p.LastAttempt), false},
		{"Final-Log-ID", text(p.LogID, utf8), false}, // RFC 3464 §2.3.7
	}
	if p.Action == Delayed {
		f = append(f, field{"Will-Retry-Until", date(p.WillRetryUntil), false}) // RFC 3464 §2.3.8
	}
	return f
}

// status returns the code without a comment; one that is none gives the action's class.
func (p *Recipient) status() string {
	word, _, _ := strings.Cut(strings.TrimSpace(p.Status), " ")
	if c, ok := status.Parse(word); ok {
		return c.String()
	}
	switch p.Action {
	case Failed:
		return "5.0.0"
	case Delayed:
		return "4.0.0"
	}
	return "2.0.0"
}

func date(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(dateFormat)
}

// originalRecipient is "type; address" from ORCPT's "type;address" (RFC 3464
// §2.3.1).
func originalRecipient(orcpt string, utf8 bool) string {
	if orcpt == "" {
		return ""
	}
	kind, addr, ok := strings.Cut(orcpt, ";")
	if !ok || !isToken(strings.TrimSpace(kind)) {
		kind, addr = "rfc822", orcpt
	}
	return recipientField(strings.TrimSpace(kind), strings.TrimSpace(addr), utf8)
}

func finalRecipient(addr string, utf8 bool) string {
	m, err := address.Parse(addr)
	if err != nil || m.IsNull() {
		return recipientField("rfc822", addr, utf8)
	}
	addr = m.String()
	if isASCII(addr) {
		return "rfc822; " + addr // no control characters, and its blanks count
	}
	return recipientField("rfc822", addr, utf8)
}

// recipientField writes a non-ASCII address with the type utf-8. In a 7-bit report
// its characters, and those that have a meaning there, are written \x{HEX}; in an
// 8-bit one what came so is written plain (RFC 6533 §3).
func recipientField(kind, addr string, utf8 bool) string {
	if !isASCII(addr) && strings.EqualFold(kind, "rfc822") {
		kind = "utf-8"
	}
	if !strings.EqualFold(kind, "utf-8") {
		return kind + "; " + text(addr, utf8)
	}
	addr = text(unembed(addr), true)
	if utf8 {
		return kind + "; " + addr
	}
	var b []byte
	for _, r := range addr {
		if strings.ContainsRune(` \+=`, r) {
			b = fmt.Appendf(b, `\x{%X}`, r)
			continue
		}
		b = appendRune(b, r, false)
	}
	return kind + "; " + text(string(b), false)
}

// unembed turns \x{HEX} of an address of type utf-8 back into characters.
func unembed(s string) string {
	if !strings.Contains(s, `\x{`) {
		return s
	}
	var b strings.Builder
	for s != "" {
		before, rest, found := strings.Cut(s, `\x{`)
		b.WriteString(before)
		if !found {
			break
		}
		hex, after, closed := strings.Cut(rest, "}")
		n, err := strconv.ParseUint(hex, 16, 21)
		if !closed || err != nil || !validRune(n) {
			b.WriteString(`\x{`)
			s = rest
			continue
		}
		b.WriteRune(rune(n))
		s = after
	}
	return b.String()
}

// validRune: no control character may hide in an address, RFC 6533 §3 HEXPOINT.
func validRune(n uint64) bool {
	return n >= ' ' && n != 0x7f && n <= unicode.MaxRune && (n < 0xd800 || n > 0xdfff) && !unicode.IsControl(rune(n))
}

// typed makes sure that a value begins with a type.
func typed(s, kind string, utf8 bool) string {
	if strings.TrimSpace(s) == "" {
		return ""
	}
	k, rest, ok := strings.Cut(s, ";")
	if !ok || !isToken(strings.TrimSpace(k)) {
		k, rest = kind, s
	}
	return strings.TrimSpace(k) + "; " + text(rest, utf8)
}

// isToken reports whether s is an atom, as types are (RFC 3464 section 2.1.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		if b := s[i]; b <= ' ' || b >= 0x7f || strings.IndexByte(`()<>@,;:\".[]`, b) >= 0 {
			return false
		}
	}
	return s != "" && len(s) < 64
}

// text makes a value that stays in its field: control characters and runs of
// blanks become one blank, a word that could not be folded is parted, the whole is
// bounded. Without utf8 characters outside ASCII are written \x{HEX}.
func text(s string, utf8 bool) string {
	b := make([]byte, 0, min(len(s), maxText)+8)
	word, gap := 0, false
	for _, r := range s {
		if r <= ' ' || r == 0x7f || unicode.IsControl(r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) {
			gap = true
			continue
		}
		if len(b) >= maxText {
			return string(append(b, " ..."...))
		}
		if (gap || word >= maxWord) && len(b) > 0 {
			b = append(b, ' ')
			word = 0
		}
		gap = false
		before := len(b)
		b = appendRune(b, r, utf8)
		word += len(b) - before
	}
	return string(b)
}

// appendRune appends a rune, as an EmbeddedUnicodeChar (RFC 6533 section 3) if necessary.
func appendRune(b []byte, r rune, raw bool) []byte {
	if r < utf8.RuneSelf || raw {
		return utf8.AppendRune(b, r)
	}
	return fmt.Appendf(b, `\x{%X}`, r)
}
