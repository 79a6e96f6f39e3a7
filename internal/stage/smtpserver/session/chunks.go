package session

import (
	"bytes"
	"errors"
)

// maxStrayCommands is how many commands that are out of place a client may send between the
// chunks of a message.
const maxStrayCommands = 10

var errStray = errors.New("too many commands between chunks")

// chunks is the content of a message that comes by BDAT (RFC 3030 section 2). The commands
// between its chunks are read and answered here.
type chunks struct {
	conn    *Conn // nil: no BDAT is under way
	content *Content
	chunk   bdat
	stray   int
}

func (c *chunks) peek() []byte {
	b := c.conn.peek()
	return b[:min(int64(len(b)), c.chunk.left)]
}

func (c *chunks) skip(n int) {
	c.conn.skip(n)
	c.chunk.left -= int64(n)
}

// more reads on in the chunk, or answers it and reads on in the next. The reader has
// used all that was there.
func (c *chunks) more() error {
	for {
		switch {
		case c.chunk.left > 0 && len(c.conn.peek()) > 0:
			return nil
		case c.chunk.left > 0:
			if err := c.conn.more(); err != nil {
				return err
			}
		case c.chunk.last, c.content.err != nil:
			// With an error this chunk gets the message's answer: a client sends no more of
			// it, and chunks that are on their way already are refused one by one.
			return errEnd
		default:
			c.conn.reply(octetsReceived(c.chunk.size))
			if err := c.next(); err != nil {
				return err
			}
		}
	}
}

// next reads commands up to the next BDAT. One that ends the transaction is left to be
// answered after it.
func (c *chunks) next() error {
	for ; c.stray <= maxStrayCommands; c.stray++ {
		if c.conn.tooManyErrors() {
			return c.conn.err
		}
		line, err := c.conn.readLine(maxCommandLine)
		if errors.Is(err, errLong) {
			c.conn.reply(replyLong)
			continue
		}
		if err != nil {
			return err
		}
		command, arg := parseCommand(line)
		switch verb := command.verb; {
		case verb == "RSET", verb == "QUIT", verb == "EHLO", verb == "HELO", verb == "LHLO":
			c.conn.unreadLine()
			return ErrAbandoned
		case bytes.ContainsFunc(line, isControl):
			c.conn.reply(replyCharacters)
		case verb == "NOOP":
			c.conn.reply(replyOK)
		case verb == "BDAT":
			if b, ok := parseBDAT(arg); ok {
				c.chunk = b
				return nil
			}
			c.conn.reply(replyBDATSyntax)
		default:
			c.conn.reply(replyInBDAT)
		}
	}
	return errStray
}
