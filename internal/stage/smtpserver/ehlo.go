package smtpserver

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// requireTLS is the word of a recipient's todsn line that asks for RFC 8689 on the way
// to him. It travels with NOTIFY and ORCPT.
const requireTLS = "REQUIRETLS=YES"

const mostCapabilities = 13

// capabilities are the extensions that EHLO and LHLO are answered (RFC 5321
// §4.1.1.1), in place of those that go-smtp lists. The session is there.
func (w *wire) capabilities() []string {
	list := append(make([]string, 0, mostCapabilities), "PIPELINING", "8BITMIME", "ENHANCEDSTATUSCODES", "CHUNKING", "SMTPUTF8", "DSN")
	if w.srv.MaxSize > 0 {
		list = append(list, "SIZE "+strconv.FormatInt(w.srv.MaxSize, 10))
	} else {
		list = append(list, "SIZE")
	}
	most := w.srv.MaxRecipients
	if w.session != nil {
		most = w.session.mostRecipients()
	}
	if most > 0 {
		list = append(list, "LIMITS RCPTMAX="+strconv.Itoa(most)) // RFC 9422
	}
	if w.offersTLS() {
		list = append(list, "STARTTLS")
	}
	if w.session != nil && w.client.role != RoleLMTP && w.session.offersETRN() {
		list = append(list, "ETRN")
	}
	if w.client.tls != nil {
		list = append(list, "REQUIRETLS")
	}
	if w.mayXCLIENT() {
		list = append(list, xclientOffer)
	}
	if mechanisms := w.session.mechanisms(); len(mechanisms) > 0 {
		list = append(list, "AUTH "+strings.Join(mechanisms, " "))
	}
	return list
}

// greet replaces go-smtp's answer to a greeting, line by line: the first word has to
// be our name (RFC 5321 §4.1.1.1), and the list is ours.
func (w *wire) greet(p []byte) {
	if !bytes.HasPrefix(p, []byte("250")) {
		w.hello = ""
		w.countFaults(p)
		w.out = append(w.out, p...)
		return
	}
	if bytes.HasPrefix(p, []byte("250-")) {
		return
	}
	hello := w.hello
	w.hello = ""
	first := w.srv.Hostname
	if w.session != nil {
		first += " greets " + greetingName(w.session.conn.Hostname())
	}
	if hello == "HELO" {
		w.say(250, "", first)
		return
	}
	line := func(sep byte, text string) {
		w.out = append(append(w.out, '2', '5', '0', sep), oneLine(text)...)
		w.out = append(w.out, '\r', '\n')
	}
	list := w.capabilities()
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

// greeted notes the name that the client gave itself, unless XCLIENT gave one.
func (s *session) greeted() {
	if s.wire.client.helo == "" {
		s.client.helo = s.conn.Hostname()
	}
}

// with is the protocol of a message as Received lines name it (RFC 3848, RFC 6531
// §4.3): UTF8, SMTP or LMTP, S in TLS, A from an authenticated user.
func (s *session) with(utf8 bool) string {
	word := s.wire.with
	if word == "SMTP" {
		return word // HELO: nothing else is registered
	}
	if utf8 {
		word = "UTF8" + strings.TrimPrefix(word, "E")
	}
	if s.client.tls != nil {
		word += "S"
	}
	if s.client.user != "" {
		word += "A"
	}
	return word
}

// rcvdFrom says for the Received line who the client is: what it calls itself, then
// what we know.
func (s *session) rcvdFrom() string {
	known := literal(s.client.addr)
	if s.client.name != "" {
		known = greetingName(s.client.name) + " " + known
	}
	return greetingName(s.client.helo) + " (" + known + ")"
}

// replies tells how many replies the end of a message gets: one, or one for each
// recipient (RFC 2033 §4.2).
func (s *session) replies() int {
	if s.client.role == RoleLMTP && s.transaction != nil {
		return len(s.transaction.Recipients)
	}
	return 1
}
