package smtpserver

import (
	"bytes"
	"fmt"
	"runtime/debug"
)

// command answers a command in front of go-smtp, which does not know it. arg is what
// follows the verb, without blanks around it. The session is nil before the client's
// greeting. It replies by wire.say; false: go-smtp gets the line.
type command func(w *wire, s *session, arg string) (replied bool)

// newCommands is the table of commands that are answered in front of go-smtp.
func newCommands() map[string]command {
	return map[string]command{
		"AUTH":     authenticate,
		"ETRN":     etrn,
		"HELP":     help,
		"STARTTLS": startTLS,
		"XCLIENT":  xclient,
	}
}

// maxVerb is the longest verb of a command.
const maxVerb = 16

// answered answers a command of the table and takes its line away.
func (w *wire) answered(line []byte) bool {
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
	c := w.srv.commands[string(upper[:len(verb)])]
	if c == nil {
		return false
	}
	w.line = append(w.line[:0], text...)
	parameter := string(bytes.TrimSpace(arg))
	w.skip(len(line))
	if w.run(c, parameter) {
		return true
	}
	// go-smtp gets the line as it came: it still stands in the buffer.
	w.skip(-len(line))
	return false
}

// run calls a command. go-smtp catches the panics of a session; here we do.
func (w *wire) run(c command, arg string) (replied bool) {
	defer func() {
		if r := recover(); r != nil {
			w.srv.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic serving %v: %v\n%s", w.RemoteAddr(), r, debug.Stack()))
			w.say(421, "4.3.0", "a fault of ours, sorry")
			w.leave()
			replied = true
		}
	}()
	return c(w, w.session, arg)
}

// say appends a reply of one line; an enhanced code of "" is left out.
func (w *wire) say(code int, enhanced, text string) {
	if enhanced != "" {
		text = enhanced + " " + text
	}
	before := len(w.out)
	w.out = fmt.Appendf(w.out, "%d %s\r\n", code, oneLine(text))
	w.countFaults(w.out[before:])
}

// help answers HELP (RFC 5321 §4.1.1.8).
func help(w *wire, _ *session, _ string) bool {
	hello := "EHLO HELO STARTTLS AUTH"
	if w.client.role == RoleLMTP {
		hello = "LHLO"
	}
	w.say(214, "2.0.0", "Commands: "+hello+" MAIL RCPT DATA BDAT RSET NOOP VRFY ETRN HELP QUIT")
	return true
}
