// Package socketmap speaks the protocol by which Sendmail and Postfix look keys up in
// servers: a request is a netstring "MAP KEY", its answer a netstring of a word and a
// text (socketmap_table(5)). One request is under way at a time.
//
// It owns nothing; connections are the caller's.
//
// Diagnostics: an error of Ask or Read means that the connection is of no more use,
// because it broke off or because the other side does not speak the protocol: it
// is unknown what the next bytes answer. A failure that the server itself reported is no error
// but a Reply with another status than OK and NotFound.
package socketmap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Status is the word that an answer begins with.
type Status string

// Statuses. All but the first two mean that the answer is unknown.
const (
	OK       Status = "OK"
	NotFound Status = "NOTFOUND"
	Temp     Status = "TEMP"
	Timeout  Status = "TIMEOUT"
	Perm     Status = "PERM"
)

// MaxLength is how long a request or an answer may be. Postfix takes 100,000 bytes, which
// a long alias passes.
const MaxLength = 1 << 20

// Reply is an answer.
type Reply struct {
	Status Status
	Text   string // the value, or what went wrong
}

// ErrProtocol is an answer of the other side that is not socketmap.
var ErrProtocol = errors.New("not the socketmap protocol")

// Ask sends a request and reads its answer.
func Ask(r *bufio.Reader, w io.Writer, name, key string) (Reply, error) {
	if len(name)+1+len(key) > MaxLength {
		return Reply{}, fmt.Errorf("key of %d bytes: socketmap takes %d", len(key), MaxLength)
	}
	if err := Write(w, name+" "+key); err != nil {
		return Reply{}, err
	}
	text, err := Read(r)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF // a question was open
	}
	if err != nil {
		return Reply{}, err
	}
	reply, err := parseReply(text)
	if err == nil && r.Buffered() > 0 {
		// Unread bytes would be taken for the next answer.
		more, _ := r.Peek(min(r.Buffered(), 20))
		err = fmt.Errorf("%w: more than one answer, %q", ErrProtocol, more)
	}
	return reply, err
}

func parseReply(text string) (Reply, error) {
	word, rest, _ := strings.Cut(text, " ")
	switch s := Status(word); s {
	case OK, NotFound, Temp, Timeout, Perm:
		return Reply{s, rest}, nil
	}
	return Reply{}, fmt.Errorf("%w: an answer begins with %q", ErrProtocol, word[:min(len(word), 20)])
}

// Write sends a netstring in one piece.
func Write(w io.Writer, text string) error {
	_, err := io.WriteString(w, strconv.Itoa(len(text))+":"+text+",")
	return err
}

// Read takes a netstring; io.EOF: there is none, the other side has ended before it.
func Read(r *bufio.Reader) (string, error) {
	n, err := length(r)
	if err != nil {
		return "", err
	}
	b := make([]byte, n+1)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", unexpected(err)
	}
	if b[n] != ',' {
		return "", fmt.Errorf("%w: no comma behind %d bytes", ErrProtocol, n)
	}
	return string(b[:n]), nil
}

// length reads "NUMBER:".
func length(r *bufio.Reader) (int, error) {
	n := 0
	for i := 0; ; i++ {
		c, err := r.ReadByte()
		switch {
		case err == io.EOF && i == 0:
			return 0, io.EOF
		case err != nil:
			return 0, unexpected(err)
		case c == ':' && i > 0:
			return n, nil
		case c < '0' || c > '9' || i > 0 && n == 0:
			return 0, fmt.Errorf("%w: %q in a length", ErrProtocol, c)
		}
		if n = 10*n + int(c-'0'); n > MaxLength {
			return 0, fmt.Errorf("%w: longer than %d bytes", ErrProtocol, MaxLength)
		}
	}
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Serve answers requests until the other side ends, which is no error.
func Serve(r io.Reader, w io.Writer, answer func(name, key string) Reply) error {
	in := bufio.NewReader(r)
	for {
		text, err := Read(in)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		reply := Reply{Perm, "no map's name and blank before the key"}
		if name, key, ok := strings.Cut(text, " "); ok {
			reply = answer(name, key)
		}
		if len(reply.Text) > MaxLength-len(reply.Status)-1 {
			reply = Reply{Temp, fmt.Sprintf("the value has %d bytes; an answer takes %d", len(reply.Text), MaxLength)}
		}
		if err := Write(w, string(reply.Status)+" "+reply.Text); err != nil {
			return fmt.Errorf("write an answer: %w", err)
		}
	}
}
