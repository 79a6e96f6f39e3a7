package session

import (
	"bytes"
	"strings"
)

// errorCount counts what a client does wrong between two messages. Recipients are counted
// apart, and those that are only deferred not at all: a client that is cut off for them would
// come again with the same list in the same order until all of it bounces.
type errorCount struct {
	limit      int // at which the connection ends; 0: none
	commands   int // refused ones, RCPT apart
	recipients int // refused for good
	idle       int // commands that do nothing
}

// maxIdle is how many commands that do nothing a client may send between two messages
// before they count as errors: each one gives it the whole time limit anew.
const maxIdle = 100

// LimitErrors ends the connection after n refused commands.
func (w *Conn) LimitErrors(n int) { w.errors.limit = n }

// reset starts anew after a message that was accepted.
func (e *errorCount) reset() { *e = errorCount{limit: e.limit} }

// countErrors counts the refusals among replies to the last command.
func (w *Conn) countErrors(replies []byte) {
	if w.errors.limit <= 0 {
		return
	}
	for line := range bytes.Lines(replies) {
		switch {
		case len(line) < 4 || line[3] != ' ' || line[0] != '4' && line[0] != '5':
		case !isCommand(w.line, "RCPT "):
			w.errors.commands++
		case line[0] == '5':
			w.errors.recipients++
		}
	}
}

// countIdle counts a command that does nothing.
func (w *Conn) countIdle(line []byte) {
	if w.errors.limit <= 0 {
		return
	}
	verb, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte{' '})
	for _, v := range []string{"NOOP", "RSET", "HELP", "VRFY", "EHLO", "HELO", "LHLO"} {
		if !strings.EqualFold(string(verb), v) {
			continue
		}
		if w.errors.idle++; w.errors.idle > maxIdle {
			w.errors.commands++
		}
		return
	}
}

// triesAddresses reports whether so many recipients were refused that the client gets to
// know no more about others. It may still send the message to those that were accepted.
func (w *Conn) triesAddresses() bool {
	e := &w.errors
	return e.limit > 0 && e.commands+e.recipients >= e.limit
}

// tooManyErrors ends a connection of which too many commands were refused (RFC 5321 section
// 3.8 allows 421 to any command). While a message has recipients, those that were refused
// are no reason: the others would never get it.
func (w *Conn) tooManyErrors() bool {
	n := w.errors.commands
	if w.session == nil || w.session.taken == 0 {
		n += w.errors.recipients
	}
	if w.errors.limit <= 0 || n < w.errors.limit {
		return false
	}
	w.server.Log.Warn("refused", "client", w.client.String(), "status", "4.7.0", "reply", "too many errors", "errors", n)
	w.say(NewReply(421, "4.7.0", w.server.Hostname+" Error: too many errors"))
	return true
}
