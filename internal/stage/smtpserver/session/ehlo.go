package session

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// extensions are what EHLO and LHLO offer (RFC 5321 section 4.1.1.1), in place of go-smtp's
// list. The session is there.
func (w *Conn) extensions() []string {
	const most = 13
	list := append(make([]string, 0, most), "PIPELINING", "8BITMIME", "ENHANCEDSTATUSCODES", "CHUNKING", "SMTPUTF8", "DSN")
	if w.server.MaxSize > 0 {
		list = append(list, "SIZE "+strconv.FormatInt(w.server.MaxSize, 10))
	} else {
		list = append(list, "SIZE")
	}
	list = append(list, w.session.handler.Extensions()...)
	if w.offersTLS() {
		list = append(list, "STARTTLS")
	}
	if w.client.TLS != nil {
		list = append(list, "REQUIRETLS")
	}
	if w.mayXCLIENT() {
		list = append(list, xclientOffer)
	}
	return list
}

// greet replaces go-smtp's answer to a greeting, line by line: the first word has to
// be our name (RFC 5321 section 4.1.1.1), and the list is ours.
func (w *Conn) greet(p []byte) {
	if !bytes.HasPrefix(p, []byte("250")) || w.session == nil {
		w.hello = ""
		before := len(w.out)
		w.out = reword(w.out, p)
		w.countErrors(w.out[before:])
		return
	}
	if bytes.HasPrefix(p, []byte("250-")) {
		return
	}
	hello := w.hello
	w.hello = ""
	first := w.server.Hostname + " greets " + SafeName(w.session.library.Hostname())
	if hello == "HELO" {
		w.say(&Reply{Code: 250, Text: first})
		return
	}
	line := func(sep byte, text string) {
		w.out = append(append(w.out, '2', '5', '0', sep), OneLine(text)...)
		w.out = append(w.out, '\r', '\n')
	}
	list := w.extensions()
	line('-', first)
	for i, text := range list {
		if i == len(list)-1 {
			line(' ', text)
		} else {
			line('-', text)
		}
	}
}

// copyLargeSize gives go-smtp, which counts with 32 bits and calls any more a bad
// parameter, the largest SIZE it takes for a larger one (RFC 1870 §5 has twenty digits).
// 0: the line has none.
func copyLargeSize(p, line []byte) int {
	const largest = math.MaxUint32
	digits := 0
	for i := 0; i < len(line) && digits < 10; i++ {
		if digits++; line[i] < '0' || line[i] > '9' {
			digits = 0
		}
	}
	if digits < 10 {
		return 0
	}
	_, params := splitPath(string(line))
	value := param(params, "SIZE")
	if n, err := strconv.ParseUint(value, 10, 64); len(value) > 20 || err != nil && !errors.Is(err, strconv.ErrRange) || n <= largest {
		return 0
	}
	at := len(line) - len(params)
	full := string(line[:at])
	for _, f := range strings.Fields(params) {
		if key, _, _ := strings.Cut(f, "="); strings.EqualFold(key, "SIZE") {
			f = key + "=" + strconv.Itoa(largest)
		}
		full += " " + f
	}
	full += "\r\n"
	if len(full) > len(p) {
		return 0
	}
	return copy(p, full)
}

// splitPath cuts a MAIL or RCPT command into its path, with brackets, and its
// parameters (RFC 5321 §4.1.2). go-smtp has accepted the line, so that only where
// the path ends is left to be found; its own reading of the path loses quotes.
func splitPath(line string) (path, params string) {
	_, rest, _ := strings.Cut(line, ":")
	rest = strings.TrimLeft(rest, " \t")
	quoted := false
	for i := 0; i < len(rest); i++ {
		switch b := rest[i]; {
		case b == '\\' && quoted:
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '>' && rest[0] == '<':
			return rest[:i+1], rest[i+1:]
		case (b == ' ' || b == '\t') && rest[0] != '<':
			return rest[:i], rest[i:]
		}
	}
	return rest, ""
}

// param finds the value of a parameter, "" if there is none.
func param(params, name string) string {
	for _, f := range strings.Fields(params) {
		key, value, _ := strings.Cut(f, "=")
		if strings.EqualFold(key, name) {
			return value
		}
	}
	return ""
}

// duplicate finds a parameter that is given twice, "" if none is. go-smtp checks and
// keeps the last, param finds the first.
func duplicate(params string) string {
	if params == "" {
		return ""
	}
	seen := map[string]bool{}
	for _, f := range strings.Fields(params) {
		key, _, _ := strings.Cut(f, "=")
		if key = strings.ToUpper(key); seen[key] {
			return key
		}
		seen[key] = true
	}
	return ""
}

// MaxName is how much of a client's name is kept: the longest domain.
const MaxName = 255

// SafeName is a client's name without the characters that would break a Received line.
func SafeName(name string) string {
	b := []byte(name)
	if len(b) > MaxName {
		b = b[:MaxName]
	}
	for i, ch := range b {
		switch {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9':
		case strings.IndexByte(".-_:[]", ch) >= 0, ch >= 0x80:
		default:
			b[i] = '?'
		}
	}
	return strings.ToValidUTF8(string(b), "?")
}
