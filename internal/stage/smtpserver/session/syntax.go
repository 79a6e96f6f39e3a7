package session

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
)

// Longest values of parameters. Characters.
const (
	maxEnvID = 100 // RFC 3461 section 4.4
	maxORCPT = 500 // RFC 3461 section 4.2
	maxSize  = 20  // digits of SIZE: RFC 1870 section 5
)

// cutPath reads the argument of MAIL and RCPT: "FROM:<path> parameters" (RFC 5321 section
// 4.1.2). The path keeps its brackets; one without them, which many programs send, is taken
// as well, and blanks behind the colon are. It reports false where there is no path.
func cutPath(arg, keyword string) (path, params string, ok bool) {
	if len(arg) < len(keyword) || !strings.EqualFold(arg[:len(keyword)], keyword) {
		return "", "", false
	}
	rest := strings.TrimLeft(arg[len(keyword):], " \t")
	quoted := false
	for i := 0; i < len(rest); i++ {
		switch b := rest[i]; {
		case b == '\\' && quoted:
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '>' && rest[0] == '<':
			path, params = rest[:i+1], rest[i+1:]
			return path, params, params == "" || params[0] == ' ' || params[0] == '\t'
		case (b == ' ' || b == '\t') && rest[0] != '<':
			return rest[:i], rest[i:], true
		}
	}
	return rest, "", rest != "" && rest[0] != '<' && !quoted
}

// readMail reads a MAIL command into m. A nil reply takes it.
func (m *Mail) read(arg string, s *Conn) *Reply {
	path, params, ok := cutPath(arg, "FROM:")
	if !ok {
		return replyMailSyntax
	}
	*m = Mail{Protocol: s.protocol, Params: strings.Fields(params)}
	if r := eachParam("MAIL", m.Params, m.param); r != nil {
		return r
	}
	from, err := address.Parse(path)
	switch {
	case err != nil:
		return NewReply(501, "5.1.7", "Bad sender address syntax: "+err.Error())
	case !from.IsASCII() && !m.UTF8:
		return replyNeedUTF8
	case m.RequireTLS && s.client.TLS == nil:
		return replyNeedTLS
	case s.config.MaxSize > 0 && m.Size > s.config.MaxSize:
		return replyTooLarge
	}
	m.From = from
	return nil
}

// param reads a parameter of MAIL.
func (m *Mail) param(key, value string, hasValue bool) (ok, known bool) {
	switch key {
	case "SIZE": // RFC 1870
		n, err := strconv.ParseUint(value, 10, 64)
		if len(value) > maxSize || err != nil && n != math.MaxUint64 || !isDigits(value) {
			return false, true
		}
		m.Size = int64(min(n, math.MaxInt64))
	case "BODY": // RFC 6152, RFC 3030
		m.Body = strings.ToUpper(value)
		return m.Body == "7BIT" || m.Body == "8BITMIME", m.Body != "BINARYMIME"
	case "SMTPUTF8": // RFC 6531
		m.UTF8 = true
		return !hasValue, true
	case "REQUIRETLS": // RFC 8689
		m.RequireTLS = true
		return !hasValue, true
	case "RET": // RFC 3461 section 4.3
		m.Ret = strings.ToUpper(value)
		return m.Ret == "FULL" || m.Ret == "HDRS", true
	case "ENVID": // RFC 3461 section 4.4
		m.EnvID = value
		return len(value) <= maxEnvID && isPrintable(value), true
	case "AUTH": // RFC 4954 section 5: what it claims is not used
		text, err := address.DecodeXText(value)
		if err == nil && value != "<>" {
			_, err = address.Parse(text)
		}
		return err == nil && value != "", true
	default:
		return false, false
	}
	return true, true
}

// read reads a RCPT command into r. A nil reply takes it.
func (r *Rcpt) read(arg string, s *Conn) *Reply {
	path, params, ok := cutPath(arg, "TO:")
	if !ok {
		return replyRcptSyntax
	}
	*r = Rcpt{Params: strings.Fields(params)}
	if reply := eachParam("RCPT", r.Params, func(key, value string, _ bool) (ok, known bool) { return r.param(key, value, s.mail.UTF8) }); reply != nil {
		return reply
	}
	to, err := address.Parse(path)
	switch {
	case err != nil:
		return NewReply(501, "5.1.3", "Bad recipient address syntax: "+err.Error())
	case to.IsNull():
		return NewReply(501, "5.1.3", "Bad recipient address syntax: the null address is no recipient")
	case !to.IsASCII() && !s.mail.UTF8:
		return replyNeedUTF8
	}
	r.To = to
	return nil
}

// param reads a parameter of RCPT.
func (r *Rcpt) param(key, value string, utf8 bool) (ok, known bool) {
	switch key {
	case "NOTIFY": // RFC 3461 section 4.1
		r.Notify = strings.ToUpper(value)
		if r.Notify == "NEVER" {
			return true, true
		}
		seen := map[string]bool{"": true}
		for word := range strings.SplitSeq(r.Notify, ",") {
			if seen[word] || word != "SUCCESS" && word != "FAILURE" && word != "DELAY" {
				return false, true
			}
			seen[word] = true
		}
		return true, true
	case "ORCPT": // RFC 3461 section 4.2, RFC 6533 section 3
		r.ORCPT = value
		kind, text, _ := strings.Cut(value, ";")
		switch {
		case len(value) > maxORCPT || text == "":
			return false, true
		case strings.EqualFold(kind, "rfc822"):
			return isPrintable(text), true
		case strings.EqualFold(kind, "utf-8"):
			_, err := address.DecodeXText(text)
			return err == nil && (utf8 || isASCII(text)), true
		}
		return false, true
	}
	return false, false
}

// DSN returns the parameters as a todsn line has them, with more behind them.
func (r *Rcpt) DSN(more string) string {
	var words []string
	if r.Notify != "" {
		words = append(words, "NOTIFY="+r.Notify)
	}
	if r.ORCPT != "" {
		words = append(words, "ORCPT="+r.ORCPT)
	}
	if more != "" {
		words = append(words, more)
	}
	return strings.Join(words, " ")
}

// ParseRcptParams reads parameters of RCPT that a program gives in place of a client.
func ParseRcptParams(params []string) (*Rcpt, error) {
	r := &Rcpt{Params: params}
	return r, paramError(eachParam("RCPT", params, func(key, value string, _ bool) (ok, known bool) { return r.param(key, value, true) }))
}

// ParseMailParams is the same for MAIL.
func ParseMailParams(params []string) (*Mail, error) {
	m := &Mail{Params: params}
	return m, paramError(eachParam("MAIL", params, m.param))
}

func paramError(r *Reply) error {
	if r == nil {
		return nil
	}
	return errors.New(r.Text)
}

// eachParam reads the parameters of a command, "KEY" or "KEY=value" (RFC 5321 section
// 4.1.1.11). read reports whether the value is right and whether it is implemented at all.
func eachParam(verb string, params []string, read func(key, value string, hasValue bool) (ok, known bool)) *Reply {
	for i, p := range params {
		key, value, hasValue := strings.Cut(p, "=")
		key = strings.ToUpper(key)
		for _, before := range params[:i] {
			if name, _, _ := strings.Cut(before, "="); strings.EqualFold(name, key) {
				return NewReply(501, "5.5.4", "Error: duplicate parameter "+key)
			}
		}
		ok, known := read(key, value, hasValue)
		switch {
		case !known && key == "BODY":
			return NewReply(504, "5.5.4", "Error: "+p+" is not implemented")
		case !known:
			return NewReply(555, "5.5.4", "Unsupported option in "+verb)
		case !ok:
			return NewReply(501, "5.5.4", "Error: bad value of parameter "+key)
		}
	}
	return nil
}

// isPrintable reports whether text is xtext of printable ASCII.
func isPrintable(text string) bool {
	decoded, err := address.DecodeXText(text)
	return err == nil && text != "" && !strings.ContainsFunc(decoded, func(r rune) bool { return r < ' ' || r > '~' })
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r > '~' })
}

func isDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// bdat is a BDAT command (RFC 3030 section 2).
type bdat struct {
	size int64 // bytes of the chunk
	left int64 // bytes of it that were not read
	last bool
}

// parseBDAT reads the argument of BDAT.
func parseBDAT(arg string) (b bdat, ok bool) {
	f := strings.Fields(arg)
	if len(f) < 1 || len(f) > 2 || len(f) == 2 && !strings.EqualFold(f[1], "LAST") || !isDigits(f[0]) {
		return bdat{}, false
	}
	n, err := strconv.ParseInt(f[0], 10, 64)
	return bdat{size: n, left: n, last: len(f) == 2}, err == nil
}

// MaxName is how much of a client's name is kept: the longest domain.
const MaxName = 255

// SafeName returns a client's name without the characters that would break a Received line.
func SafeName(name string) string {
	if isSafeName(name) {
		return name
	}
	b := []byte(name)
	if len(b) > MaxName {
		b = b[:MaxName]
	}
	for i, ch := range b {
		switch {
		case isNameByte(ch), ch >= 0x80:
		default:
			b[i] = '?'
		}
	}
	return strings.ToValidUTF8(string(b), "?")
}

// isSafeName reports whether a name is one as almost all clients have, which is not copied.
func isSafeName(name string) bool {
	for i := range len(name) {
		if !isNameByte(name[i]) {
			return false
		}
	}
	return len(name) <= MaxName
}

func isNameByte(ch byte) bool {
	return 'a' <= ch && ch <= 'z' || 'A' <= ch && ch <= 'Z' || '0' <= ch && ch <= '9' || strings.IndexByte(".-_:[]", ch) >= 0
}
