package session

// errorCount counts what a client does wrong between two messages. Recipients are counted
// apart, and those that are only deferred not at all: a client that is cut off for them would
// come again with the same list in the same order until all of it bounces.
type errorCount struct {
	limit      int // at which the connection ends; 0: none
	commands   int // refused ones, RCPT apart
	recipients int // refused for good
	idle       int // commands that change nothing
}

// maxIdle is how many commands that change nothing a client may send between two messages
// before they count as errors: each one gives it the whole time limit anew.
const maxIdle = 100

// LimitErrors ends the connection after n refused commands.
func (c *Conn) LimitErrors(n int) { c.errors.limit = n }

// reset starts anew after a message that was accepted.
func (e *errorCount) reset() { *e = errorCount{limit: e.limit} }

// begin counts a command that changes nothing.
func (e *errorCount) begin(c *command) {
	if !c.idle {
		return
	}
	if e.idle++; e.idle > maxIdle {
		e.commands++
	}
}

// count counts the reply to a command; nil: to none.
func (e *errorCount) count(c *command, code int) {
	switch {
	case c == nil || code < 400:
	case c.verb != "RCPT":
		e.commands++
	case code >= 500:
		e.recipients++
	}
}

// triesAddresses reports whether so many recipients were refused that the client gets to
// know no more about others. It may still send the message to those that were accepted.
func (e *errorCount) triesAddresses() bool {
	return e.limit > 0 && e.commands+e.recipients >= e.limit
}

// tooManyErrors ends a connection of which too many commands were refused (RFC 5321 section
// 3.8 allows 421 to any command). While a message has recipients, those that were refused
// are no reason: the others would never get it.
func (c *Conn) tooManyErrors() bool {
	n := c.errors.commands
	if c.taken == 0 {
		n += c.errors.recipients
	}
	if c.errors.limit <= 0 || n < c.errors.limit {
		return false
	}
	c.config.Log.Warn("refused", "client", c.client.String(), "stage", "command", "code", 421, "status", "4.7.0", "reply", "too many errors", "errors", n)
	c.reply(replyErrors)
	return true
}
