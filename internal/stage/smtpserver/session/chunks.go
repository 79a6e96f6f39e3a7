package session

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxStrayCommands is how many commands that are none of its business a client may
// send between the chunks of a message.
const maxStrayCommands = 10

// bdat is a BDAT command (RFC 3030 §2).
type bdat struct {
	size int64 // bytes of the chunk
	left int64 // bytes of it that were not read
	last bool
}

// parseBDAT reads a BDAT command line. ok is false if it is not right; go-smtp
// refuses it then.
func parseBDAT(line []byte) (b bdat, ok bool) {
	f := bytes.Fields(line[len("BDAT"):])
	if len(f) < 1 || len(f) > 2 {
		return bdat{}, false
	}
	n, err := strconv.ParseUint(string(f[0]), 10, 62)
	if err != nil {
		return bdat{}, false
	}
	if len(f) == 2 && !bytes.EqualFold(f[1], []byte("LAST")) {
		return bdat{}, false
	}
	return bdat{size: int64(n), left: int64(n), last: len(f) == 2}, true
}

// chunks is the content of a message that comes by BDAT. go-smtp is told that the
// first BDAT is DATA; the ones that follow are read and answered here. Its own BDAT
// serves the message in a second goroutine through a pipe, takes a connection that
// breaks inside of the last chunk for the end of the message, and after a RSET may
// answer one message with another's result.
type chunks struct {
	conn    *Conn
	content *Content // whose input this is
	stray   int
}

func (c *chunks) peek() []byte {
	b := c.conn.peek()
	return b[:min(int64(len(b)), c.conn.bdat.left)]
}

func (c *chunks) skip(n int) {
	c.conn.skip(n)
	c.conn.bdat.left -= int64(n)
}

// more reads on in the chunk, or answers it and reads on in the next. The reader has
// used all that was there.
func (c *chunks) more() error {
	for {
		switch b := c.conn.bdat; {
		case b.left > 0 && len(c.conn.peek()) > 0:
			return nil
		case b.left > 0:
			if err := c.conn.more(); err != nil {
				return err
			}
		case b.last, c.content.err != nil:
			// With an error this chunk gets the message's answer: a client sends no more of
			// it, and chunks that are on their way already are refused one by one.
			return errEnd
		default:
			c.conn.say(NewReply(250, "2.0.0", fmt.Sprintf("Ok: %d octets received", b.size)))
			if err := c.next(); err != nil {
				return err
			}
		}
	}
}

// next reads commands up to the next BDAT.
func (c *chunks) next() error {
	for {
		line, err := c.conn.nextLine()
		if err != nil {
			return err
		}
		command := bytes.TrimRight(line, "\r\n")
		if ends(command) {
			return ErrAbandoned // go-smtp reads the line again
		}
		c.conn.skip(len(line))
		if isCommand(command, "BDAT ") {
			if b, ok := parseBDAT(command); ok {
				c.conn.bdat = &b
				return nil
			}
			c.conn.say(NewReply(501, "5.5.4", "Syntax: BDAT count [LAST]"))
		} else if isCommand(command, "NOOP") {
			c.conn.say(NewReply(250, "2.0.0", "Ok"))
		} else {
			c.conn.say(NewReply(503, "5.5.1", "Error: command not allowed during BDAT"))
		}
		if c.stray++; c.stray > maxStrayCommands {
			return errors.New("too many commands between chunks")
		}
	}
}

// ends reports whether a command ends a transaction.
func ends(command []byte) bool {
	verb, _, _ := bytes.Cut(command, []byte{' '})
	for _, v := range []string{"RSET", "QUIT", "EHLO", "HELO"} {
		if strings.EqualFold(string(verb), v) {
			return true
		}
	}
	return false
}

// dropChunk skips the chunk of a BDAT command that was refused.
func (w *Conn) dropChunk() error {
	for w.bdat.left > 0 {
		if len(w.peek()) == 0 {
			if err := w.more(); err != nil {
				return err
			}
		}
		n := min(int64(len(w.peek())), w.bdat.left)
		w.skip(int(n))
		w.bdat.left -= n
	}
	w.bdat = nil
	return nil
}
