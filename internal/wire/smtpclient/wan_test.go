package smtpclient

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// way is how long bytes take in one direction in these tests; the clock is that of a
// synctest bubble, so that the time that passes counts round trips and nothing else.
const way = 50 * time.Millisecond

// far makes a connection whose bytes take their time in each direction.
func far(t testing.TB) (client *recorder, server net.Conn) {
	near, a := net.Pipe()
	b, distant := net.Pipe()
	over := make(chan struct{})
	go carry(b, a, over)
	go carry(a, b, over)
	t.Cleanup(func() { close(over); near.Close(); distant.Close() })
	return &recorder{Conn: near}, distant
}

// carry moves bytes, each way later than they came, and the end of the connection.
func carry(to, from net.Conn, over chan struct{}) {
	type piece struct {
		b  []byte
		at time.Time
	}
	pieces := make(chan piece, 100_000)
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 32<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			pieces <- piece{b[:n], time.Now().Add(way)}
		}
	}()
	for p := range pieces {
		select {
		case <-time.After(time.Until(p.at)):
		case <-over:
		}
		_, _ = to.Write(p.b) // the peer may have ended
	}
	select {
	case <-time.After(way):
	case <-over:
	}
	to.Close()
}

// naive is a server that takes commands as they come.
type naive struct {
	extensions []string
	// answer gives the answer to a command, "." for a message's; "" takes the
	// usual one. "HANGUP" ends the connection, "DEAF" reads nothing more.
	answer func(command string) string
	// write writes the answer to a command; nil: in one piece with CRLF.
	write func(nc net.Conn, command, text string) error

	mu       sync.Mutex
	commands []string
	messages []string // of those taken: sender and content
	end      chan struct{}
}

var errHangUp = errors.New("hang up")

var pipelining = []string{"PIPELINING", "8BITMIME", "ENHANCEDSTATUSCODES"}

func (n *naive) serve(nc net.Conn) {
	defer nc.Close()
	r := bufio.NewReader(nc)
	_ = n.reply(nc, "GREETING", "220 naive.test")
	var from string
	var to []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSuffix(line, "\r\n")
		n.mu.Lock()
		n.commands = append(n.commands, line)
		n.mu.Unlock()
		verb, _, _ := strings.Cut(strings.ToUpper(line), " ")
		usual := "250 2.0.0 ok"
		switch verb {
		case "EHLO", "LHLO":
			usual = "250-naive.test\r\n250-" + strings.Join(n.extensions[1:], "\r\n250-") + "\r\n250 " + n.extensions[0]
		case "RSET":
			from, to = "", nil
		case "MAIL":
			if from != "" {
				usual = "503 5.5.1 nested MAIL"
			}
		case "RCPT":
			if usual = "250 2.1.5 ok"; from == "" {
				usual = "503 5.5.1 no MAIL"
			}
		case "DATA":
			if usual = "354 go"; len(to) == 0 {
				usual = "503 5.5.1 no recipients"
			}
		}
		ok, err := n.ask(nc, line, usual)
		if err != nil {
			return
		}
		switch {
		case ok && verb == "MAIL":
			from = line
		case ok && verb == "RCPT":
			to = append(to, line)
		case ok && verb == "DATA":
			body, err := readBody(r)
			if err != nil {
				return
			}
			if ok, err = n.ask(nc, ".", "250 2.6.0 taken"); err != nil {
				return
			}
			if ok {
				n.take(from, to, body)
			}
			from, to = "", nil
		}
	}
}

func (n *naive) take(from string, to []string, content string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range to {
		n.messages = append(n.messages, content)
	}
}

func (n *naive) ask(nc net.Conn, command, usual string) (bool, error) {
	text := ""
	if n.answer != nil {
		text = n.answer(command)
	}
	switch text {
	case "HANGUP":
		return false, errHangUp
	case "DEAF":
		<-n.end
		return false, errHangUp
	}
	if text == "421 DEAF" {
		_ = n.reply(nc, command, text)
		<-n.end
		return false, errHangUp
	}
	text = cmp.Or(text, usual)
	err := n.reply(nc, command, text)
	if strings.HasPrefix(text, "421") {
		err = errHangUp
	}
	return text[0] < '4', err
}

func (n *naive) reply(nc net.Conn, command, text string) error {
	if n.write != nil {
		return n.write(nc, command, text)
	}
	_, err := io.WriteString(nc, text+"\r\n")
	return err
}

// answers gives an answer to the commands that begin so.
func answers(begin, answer string) func(string) string {
	return func(command string) string {
		if strings.HasPrefix(command, begin) {
			return answer
		}
		return ""
	}
}

// raw writes what text returns for an answer.
func raw(text func(command, usual string) string) func(net.Conn, string, string) error {
	return func(nc net.Conn, command, usual string) error {
		_, err := io.WriteString(nc, text(command, usual))
		return err
	}
}

// rawAt is raw for the commands that begin so; the others have the usual answer.
func rawAt(begin string, text func(usual string) string) func(net.Conn, string, string) error {
	return raw(func(command, usual string) string {
		if strings.HasPrefix(command, begin) {
			return text(usual)
		}
		return usual + "\r\n"
	})
}

// taken returns the messages that the server has, in order.
func (n *naive) taken() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.messages)
}

// farServer opens a session with a distant server.
func farServer(t testing.TB, n *naive, cfg Config) (*Conn, *recorder) {
	t.Helper()
	client, server := far(t)
	n.end = make(chan struct{})
	go n.serve(server)
	t.Cleanup(func() { close(n.end) })
	cfg.Hostname = "client.test"
	c := New(client, cfg)
	assert.Must(t, c.Hello())
	return c, client
}

// numbered returns a small message; its number stands in its sender and content.
func numbered(i int, rcpt ...string) *Message {
	m := message(rcpt...)
	m.From = fmt.Sprintf("m%d@client.test", i)
	m.Header = fmt.Appendf(nil, "Subject: %d\n", i)
	m.Body = strings.NewReader("\n.\nbody\n")
	m.Size = int64(len(m.Header) + len("\n.\nbody\n"))
	return m
}

// sent is what came of a message.
type sent struct {
	results []Result
	err     error
}

// sendAll sends messages, one after the other.
func sendAll(c *Conn, messages []*Message) []sent {
	all := make([]sent, len(messages))
	for i, m := range messages {
		all[i].results, all[i].err = c.Send(m)
	}
	return all
}

// several is n messages with one recipient each.
func several(n int) []*Message {
	var list []*Message
	for i := range n {
		list = append(list, numbered(i, fmt.Sprintf("to%d@test", i)))
	}
	return list
}
