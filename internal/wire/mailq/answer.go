package mailq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// AppendLine appends one line behind Follows: a dot that it begins with is doubled, and
// it stays one line. A CR in it parts the lines of what a server once said.
func AppendLine(b []byte, line string) []byte {
	if strings.HasPrefix(line, ".") {
		b = append(b, '.')
	}
	for i := range len(line) {
		if c := line[i]; c == '\n' {
			b = append(b, '\r')
		} else {
			b = append(b, c)
		}
	}
	return append(b, '\n')
}

// Client is the other end: it sends requests and reads answers.
type Client struct {
	in        *bufio.Reader
	out       io.Writer
	Challenge string // the second line of the server
}

// longest is how long a line of a server may be.
const longest = 1 << 20

// NewClient reads the greeting.
func NewClient(rw io.ReadWriter) (*Client, error) {
	c := &Client{in: bufio.NewReader(rw), out: rw}
	for i := range 2 {
		line, err := c.line()
		if err != nil {
			return nil, fmt.Errorf("read greeting: %w", err)
		}
		if i == 0 && !strings.HasPrefix(line, Version) {
			return nil, fmt.Errorf("%w: it begins with %.60q", ErrAnswer, line)
		}
		c.Challenge = line
	}
	return c, nil
}

// Login proves that the user knows the password.
func (c *Client) Login(user, password string) error {
	_, err := c.Ask(Request{Kind: Auth, User: user, Digest: Authenticator(c.Challenge, password)}, nil)
	return err
}

// Ask sends a request and reads the answer: its first line, without the mark, and, if
// lines follow, a call for each of them. An error of line ends it; the connection is of
// no more use then. ErrRefused: the server said no.
func (c *Client) Ask(r Request, line func(string) error) (string, error) {
	return c.AskFollowing(r, func() {}, line)
}

// AskFollowing is Ask for lines that may come late: begins is called when the server has
// said that they follow.
func (c *Client) AskFollowing(r Request, begins func(), line func(string) error) (string, error) {
	if _, err := c.out.Write(AppendRequest(nil, r)); err != nil {
		return "", fmt.Errorf("%s: %w", r.Kind, err)
	}
	first, err := c.line()
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.Kind, err)
	}
	switch {
	case strings.HasPrefix(first, "-"):
		return "", fmt.Errorf("%s: %w: %s", r.Kind, ErrRefused, first[1:])
	case !strings.HasPrefix(first, "+"):
		return "", fmt.Errorf("%s: %w: %.60q", r.Kind, ErrAnswer, first)
	case first != Follows:
		return first[1:], nil
	}
	begins()
	for {
		text, err := c.line()
		if err != nil {
			return "", fmt.Errorf("%s: %w", r.Kind, err)
		}
		if text == End {
			return first[1:], nil
		}
		if line == nil {
			continue
		}
		if err := line(strings.TrimPrefix(text, ".")); err != nil {
			return "", err
		}
	}
}

// line reads one line, without its newline.
func (c *Client) line() (string, error) {
	var b []byte
	for {
		part, err := c.in.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(b) < longest:
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			return "", fmt.Errorf("%w: a line without end", ErrAnswer)
		case errors.Is(err, io.EOF):
			return "", io.ErrUnexpectedEOF
		case err != nil:
			return "", err
		}
		return string(b[:len(b)-1]), nil
	}
}
