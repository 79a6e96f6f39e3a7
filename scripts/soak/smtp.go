package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// answerWait is how long a client waits for one answer: longer than any stop.
const answerWait = 60 * time.Second

// manner is how a client sends one message.
type manner struct {
	pipelined bool
	bodyType  bool
	cutAt     int64 // bytes of content after which the connection is cut, 0 none
	cutAtDot  bool  // it is cut when all is sent, the answer not waited for
}

func (w manner) String() string {
	s := "plain"
	if w.pipelined {
		s = "pipelined"
	}
	if w.cutAt > 0 {
		s += fmt.Sprintf(", cut after %d bytes", w.cutAt)
	}
	if w.cutAtDot {
		s += ", cut after the dot"
	}
	return s
}

// client is a connection to smtpserver.
type client struct {
	conn net.Conn
	r    *bufio.Reader
	w    *bufio.Writer
}

// dial connects from any address, dialFrom from one of this machine.
func dial(ctx context.Context, addr string) (*client, error) { return dialFrom(ctx, nil, addr) }

func dialFrom(ctx context.Context, from net.IP, addr string) (*client, error) {
	var d net.Dialer
	if from != nil {
		d.LocalAddr = &net.TCPAddr{IP: from}
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &client{conn, bufio.NewReader(conn), bufio.NewWriterSize(conn, 32<<10)}
	if _, err = c.expect("220"); err == nil {
		_, err = c.command("250", "EHLO soak.example")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *client) close() { c.conn.Close() }

// errAnswer is an answer that was not the one hoped for.
var errAnswer = errors.New("answer")

func (c *client) expect(want string) (string, error) {
	if err := c.w.Flush(); err != nil {
		return "", err
	}
	if err := c.conn.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return "", err
	}
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if len(line) > 3 && line[3] == '-' {
			continue
		}
		line = strings.TrimRight(line, "\r\n")
		if !strings.HasPrefix(line, want) {
			return line, fmt.Errorf("%w: %s", errAnswer, line)
		}
		return line, nil
	}
}

func (c *client) put(line string) { _, _ = c.w.WriteString(line + "\r\n") } // Flush returns the error

func (c *client) command(want, line string) (string, error) {
	c.put(line)
	return c.expect(want)
}

// commands returns the envelope of a message.
func commands(m *message, how manner) []string {
	mail := "MAIL FROM:<" + m.from + ">"
	if how.bodyType {
		mail += " BODY=8BITMIME"
	}
	list := []string{mail}
	for _, r := range m.rcpts {
		line := "RCPT TO:<" + r + ">"
		if m.notify != "" {
			line += " NOTIFY=" + m.notify
		}
		list = append(list, line)
	}
	return list
}

// send sends a message. What it says of the outcome is sure: refused only where the
// final dot was not sent or was answered with no.
func (c *client) send(m *message, how manner) (state, string, error) {
	if err := c.envelope(m, how); err != nil {
		return refused, "", err
	}
	if err := c.content(m, how); err != nil {
		return refused, "", err
	}
	// From here on the message may be accepted, whatever is heard of it.
	c.put(".")
	if how.cutAtDot {
		err := c.w.Flush()
		c.close()
		return unsure, "", errors.Join(errCut, err)
	}
	answer, err := c.expect("250")
	if errors.Is(err, errAnswer) {
		return refused, "", err
	}
	if err != nil {
		return unsure, "", err
	}
	_, id, _ := strings.Cut(answer, "queued as ")
	return accepted, id, nil
}

func (c *client) envelope(m *message, how manner) error {
	list := append(commands(m, how), "DATA")
	if how.pipelined {
		for _, line := range list {
			c.put(line)
		}
	}
	for i, line := range list {
		want := "250"
		if i == len(list)-1 {
			want = "354"
		}
		var err error
		if how.pipelined {
			_, err = c.expect(want)
		} else {
			_, err = c.command(want, line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errCut: the client ended the connection, as it was to.
var errCut = errors.New("cut")

// content sends a message's lines with CRLF and dots doubled.
func (c *client) content(m *message, how manner) error {
	in := newLineReader(m.content.reader())
	var sent int64
	for {
		line, err := in.next()
		if err != nil && err != io.EOF {
			return err
		}
		if len(line) > 0 {
			if line[0] == '.' {
				_ = c.w.WriteByte('.') // Flush returns the error
			}
			_, _ = c.w.Write(trimEnd(line))
			if _, err := c.w.WriteString("\r\n"); err != nil {
				return err
			}
			if sent += int64(len(line)); sent&^(1<<20-1) != (sent-int64(len(line)))&^(1<<20-1) {
				if err := c.conn.SetDeadline(time.Now().Add(answerWait)); err != nil {
					return err
				}
			}
		}
		if how.cutAt > 0 && sent >= how.cutAt {
			err := c.w.Flush()
			c.close()
			return errors.Join(errCut, err)
		}
		if err == io.EOF {
			return nil
		}
	}
}

func trimEnd(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\n' {
		return line[:n-1]
	}
	return line
}

// quit ends the connection in order; how it ends is of no interest.
func (c *client) quit() {
	_, _ = c.command("221", "QUIT")
	c.close()
}

// lineReader reads lines of any length up to its buffer; a longer one comes in parts.
type lineReader struct{ r *bufio.Reader }

func newLineReader(in io.Reader) *lineReader { return &lineReader{bufio.NewReaderSize(in, 256<<10)} }

// next returns the next line with its end; the last may have none.
func (l *lineReader) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		err = nil
	}
	return line, err
}
