package session

import (
	"bytes"
	"fmt"
	"runtime/debug"
)

// command answers a command in front of go-smtp, which does not know it or knows it badly.
// arg is what follows the verb, without blanks around it. The session is nil before the
// client's greeting. It replies by Conn.say; false: go-smtp gets the line.
type command func(w *Conn, s *librarySession, arg string) (replied bool)

// commands are answered in front of go-smtp.
var commands = map[string]command{
	"AUTH":     authenticate,
	"ETRN":     etrn,
	"HELP":     help,
	"STARTTLS": startTLS,
	"XCLIENT":  xclient,
}

// maxVerb is the longest verb of a command.
const maxVerb = 16

// answered answers a command of the table and takes its line away.
func (w *Conn) answered(line []byte) bool {
	text := bytes.TrimRight(line, "\r\n")
	verb, arg, _ := bytes.Cut(text, []byte{' '})
	var upper [maxVerb]byte
	if len(verb) > len(upper) {
		return false
	}
	for i, b := range verb {
		if 'a' <= b && b <= 'z' {
			b -= 'a' - 'A'
		}
		upper[i] = b
	}
	c := commands[string(upper[:len(verb)])]
	if c == nil {
		return false
	}
	w.line = append(w.line[:0], text...)
	parameter := string(bytes.TrimSpace(arg))
	w.skip(len(line))
	if w.run(c, parameter) {
		return true
	}
	// go-smtp gets the line as it came: it is still in the buffer.
	w.skip(-len(line))
	return false
}

// run calls a command. go-smtp catches the panics of a session; here we do.
func (w *Conn) run(c command, arg string) (replied bool) {
	defer func() {
		if r := recover(); r != nil {
			w.server.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic serving %v: %v\n%s", w.RemoteAddr(), r, debug.Stack()))
			w.say(NewReply(421, "4.3.0", w.server.Hostname+" Error: internal error"))
			replied = true
		}
	}()
	return c(w, w.session, arg)
}

// say appends a reply; an enhanced code that is not there is left out.
func (w *Conn) say(r *Reply) {
	text := OneLine(r.Text)
	if !r.Status.IsZero() {
		text = r.Status.String() + " " + text
	}
	before := len(w.out)
	w.out = fmt.Appendf(w.out, "%d %s\r\n", r.Code, text)
	w.countErrors(w.out[before:])
	if r.Last || r.Code == 421 {
		w.leave()
	}
}

// authenticate answers AUTH (RFC 4954). go-smtp's own would answer syntax errors with 4xx,
// and accept AUTH within a transaction.
func authenticate(w *Conn, s *librarySession, arg string) bool {
	if s == nil {
		return false // go-smtp asks for a greeting
	}
	r := s.handler.Auth(arg, func(challenge string) (string, error) {
		w.say(&Reply{Code: 334, Text: challenge})
		line, err := w.nextLine()
		if err != nil {
			if w.err == nil {
				w.err = err // a line that is too long
			}
			return "", fmt.Errorf("%w: %w", ErrLost, err)
		}
		text := string(bytes.TrimRight(line, "\r\n"))
		w.skip(len(line))
		return text, nil
	})
	if r == nil {
		return true
	}
	w.say(r)
	if r.Last && r.Code != 421 {
		w.say(NewReply(421, "4.7.0", w.server.Hostname+" Error: too many errors"))
	}
	return true
}

// etrn answers ETRN (RFC 1985).
func etrn(w *Conn, s *librarySession, arg string) bool {
	if s == nil {
		w.say(NewReply(503, "5.5.1", "Error: send HELO/EHLO first"))
		return true
	}
	w.say(s.handler.ETRN(arg))
	return true
}

// help answers HELP (RFC 5321 §4.1.1.8).
func help(w *Conn, _ *librarySession, _ string) bool {
	hello := "EHLO HELO STARTTLS AUTH"
	if w.client.Role == RoleLMTP {
		hello = "LHLO"
	}
	w.say(NewReply(214, "2.0.0", "Commands: "+hello+" MAIL RCPT DATA BDAT RSET NOOP VRFY ETRN HELP QUIT"))
	return true
}
