// Package tasmtptest has what tests of the SMTP agent stand on: a scripted SMTP or
// LMTP server that keeps every byte, and a postoffice with queued messages.
package tasmtptest

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Patience bounds every wait; no test takes nearly so long.
const Patience = 30 * time.Second

// Sink is a server that takes what its Answer lets it take.
type Sink struct {
	LMTP       bool
	Extensions []string // after EHLO; nil: PIPELINING, SIZE, 8BITMIME, DSN, ENHANCEDSTATUSCODES
	// Answer, if set, gives the answer to a command: "GREETING", a line as it came,
	// or "." for the final dot; with LMTP ". ADDRESS" for each recipient. "" takes the usual
	// one. "HANGUP" closes the connection instead, "SILENCE" keeps it waiting.
	Answer func(command string) string
	// TLS, if set, is offered by STARTTLS, and Secure are the extensions under it besides.
	TLS      *tls.Config
	Secure   []string
	Implicit bool // TLS begins with the connection
	// Discard: messages are counted and summed, not kept.
	Discard bool

	t     testing.TB
	l     net.Listener
	ended chan struct{}
	all   sync.WaitGroup

	mu       sync.Mutex
	open     map[net.Conn]bool
	connects int
	quits    int
	messages []Taken
	changed  chan struct{}
}

// On returns an Answer to the commands that begin with a text; others take the usual one.
func On(command, answer string) func(string) string {
	return func(got string) string {
		if strings.HasPrefix(got, command) {
			return answer
		}
		return ""
	}
}

// After is On from the n-th such command on; each connection counts anew if anew is set.
func After(n int, command, answer string, anew bool) func(string) string {
	var mu sync.Mutex
	seen := 0
	return func(got string) string {
		mu.Lock()
		defer mu.Unlock()
		if anew && got == "GREETING" {
			seen = 0
		}
		if strings.HasPrefix(got, command) {
			if seen++; seen > n {
				return answer
			}
		}
		return ""
	}
}

// Taken is one transaction that came to its final dot.
type Taken struct {
	Mail  string               // the MAIL line
	Rcpts []string             // the RCPT lines that were accepted
	Data  string               // with line ends and stuffed dots as they came, the final dot included
	Bytes int64                // of Data, also if it was not kept
	Sum   uint32               // CRC-32 (IEEE) of Data, if it was not kept
	Conn  int                  // number of the connection, from 1
	Peer  string               // address of the client, without its port
	Hello string               // the name that it gave
	TLS   *tls.ConnectionState // nil: it came in the clear
}

// Start listens on network and address until the test ends; "" is 127.0.0.1:0.
func (s *Sink) Start(t testing.TB, network, address string) *Sink {
	t.Helper()
	if network == "" {
		network, address = "tcp", "127.0.0.1:0"
	}
	l, err := net.Listen(network, address)
	assert.Must(t, err)
	if s.Extensions == nil {
		s.Extensions = []string{"PIPELINING", "SIZE 0", "8BITMIME", "DSN", "ENHANCEDSTATUSCODES"}
	}
	s.t, s.l, s.ended = t, l, make(chan struct{})
	s.open, s.changed = map[net.Conn]bool{}, make(chan struct{})
	s.all.Go(s.accept)
	t.Cleanup(s.Stop)
	return s
}

// Stop closes the listener and every connection and waits.
func (s *Sink) Stop() {
	s.mu.Lock()
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
	for nc := range s.open {
		nc.Close()
	}
	s.mu.Unlock()
	s.l.Close()
	s.all.Wait()
}

// HangUp closes every connection, as a server does with idle ones.
func (s *Sink) HangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for nc := range s.open {
		nc.Close()
	}
}

// Addr returns where it listens.
func (s *Sink) Addr() string { return s.l.Addr().String() }

// Port is its TCP port.
func (s *Sink) Port() int { return s.l.Addr().(*net.TCPAddr).Port }

// Connects counts the connections there were.
func (s *Sink) Connects() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connects
}

// Messages returns what was taken so far.
func (s *Sink) Messages() []Taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Taken(nil), s.messages...)
}

// WaitQuits waits until n clients have said QUIT.
func (s *Sink) WaitQuits(n int) {
	s.t.Helper()
	s.wait(fmt.Sprintf("%d clients to say QUIT", n), func() bool { return s.quits >= n })
}

// WaitClosed waits until every connection has ended.
func (s *Sink) WaitClosed() {
	s.t.Helper()
	s.wait("all connections to end", func() bool { return len(s.open) == 0 })
}

// WaitMessages waits until n messages were taken.
func (s *Sink) WaitMessages(n int) []Taken {
	s.t.Helper()
	s.wait(fmt.Sprintf("%d messages", n), func() bool { return len(s.messages) >= n })
	return s.Messages()
}

func (s *Sink) wait(what string, done func() bool) {
	s.t.Helper()
	late := time.After(Patience)
	for {
		s.mu.Lock()
		ok, changed := done(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late:
			s.t.Fatalf("waited too long for %s", what)
		}
	}
}

// change makes a change that wait looks at.
func (s *Sink) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Sink) accept() {
	for {
		nc, err := s.l.Accept()
		if err != nil {
			return
		}
		var number int
		s.change(func() {
			s.connects++
			number = s.connects
			s.open[nc] = true
		})
		s.all.Go(func() {
			c := &conversation{Sink: s, nc: nc, r: bufio.NewReaderSize(nc, 64<<10), number: number}
			defer s.change(func() { delete(s.open, c.nc) })
			defer nc.Close()
			if !s.Implicit || c.secure() {
				c.run()
			}
		})
	}
}

// conversation is one connection.
type conversation struct {
	*Sink
	nc     net.Conn
	r      *bufio.Reader
	number int
	taken  Taken
	failed bool // MAIL was refused, or there was none
	hello  string
	tls    *tls.ConnectionState
}

// secure makes the handshake.
func (c *conversation) secure() bool {
	nc := tls.Server(c.nc, c.TLS)
	if nc.Handshake() != nil {
		return false
	}
	state := nc.ConnectionState()
	c.change(func() {
		delete(c.open, c.nc)
		c.open[nc] = true // HangUp ends TLS first
	})
	c.nc, c.tls, c.hello = nc, &state, ""
	c.r.Reset(nc)
	return true
}

// answer sends what Answer or the usual says; false ends the connection.
func (c *conversation) answer(command, usual string) (code byte, ok bool) {
	return c.say(c.ask(command), usual)
}

func (c *conversation) ask(command string) string {
	if c.Answer == nil {
		return ""
	}
	return c.Answer(command)
}

func (c *conversation) say(text, usual string) (code byte, ok bool) {
	switch text {
	case "":
		text = usual
	case "HANGUP":
		return 0, false
	case "SILENCE":
		<-c.ended
		return 0, false
	}
	_, err := io.WriteString(c.nc, strings.ReplaceAll(text, "\n", "\r\n")+"\r\n")
	return text[0], err == nil && !strings.HasPrefix(text, "421")
}

func (c *conversation) run() {
	if code, ok := c.answer("GREETING", "220 sink.test ESMTP"); !ok || code != '2' {
		return
	}
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			return
		}
		if !c.command(strings.TrimSuffix(line, "\r\n")) {
			return
		}
	}
}

func (c *conversation) command(line string) bool {
	verb, _, _ := strings.Cut(strings.ToUpper(line), " ")
	switch verb {
	case "EHLO", "LHLO":
		if (verb == "LHLO") != c.LMTP {
			_, ok := c.answer(line, "500 5.5.1 wrong protocol")
			return ok
		}
		_, c.hello, _ = strings.Cut(line, " ")
		lines := append([]string{"sink.test"}, c.Extensions...)
		if c.tls != nil {
			lines = append(lines, c.Secure...)
		} else if c.TLS != nil {
			lines = append(lines, "STARTTLS")
		}
		_, ok := c.answer(line, "250-"+strings.Join(lines[:len(lines)-1], "\n250-")+"\n250 "+lines[len(lines)-1])
		return ok
	case "STARTTLS":
		if c.TLS == nil {
			_, ok := c.answer(line, "502 5.5.1 no TLS")
			return ok
		}
		if code, ok := c.answer(line, "220 2.0.0 go"); !ok || code != '2' {
			return ok
		}
		return c.secure()
	case "MAIL":
		c.taken = Taken{Mail: line, Conn: c.number, Hello: c.hello, TLS: c.tls}
		if peer, _, err := net.SplitHostPort(c.nc.RemoteAddr().String()); err == nil {
			c.taken.Peer = peer
		}
		code, ok := c.answer(line, "250 2.1.0 Ok")
		c.failed = code != '2'
		return ok
	case "RCPT":
		usual := "250 2.1.5 Ok"
		if c.failed {
			usual = "503 5.5.1 no MAIL"
		}
		code, ok := c.answer(line, usual)
		if code == '2' {
			c.taken.Rcpts = append(c.taken.Rcpts, line)
		}
		return ok
	case "DATA":
		return c.data(line)
	case "RSET":
		c.taken, c.failed = Taken{}, true
	case "QUIT":
		c.change(func() { c.quits++ })
		c.answer(line, "221 2.0.0 bye")
		return false
	}
	_, ok := c.answer(line, "250 2.0.0 Ok")
	return ok
}

func (c *conversation) data(line string) bool {
	usual := "354 go ahead"
	if len(c.taken.Rcpts) == 0 {
		usual = "503 5.5.1 no recipients"
	}
	if code, ok := c.answer(line, usual); !ok || code != '3' {
		return ok
	}
	if err := c.readData(); err != nil {
		return false
	}
	c.change(func() { c.messages = append(c.messages, c.taken) })
	rcpts := c.taken.Rcpts
	c.taken, c.failed = Taken{}, true
	if !c.LMTP {
		_, ok := c.answer(".", "250 2.0.0 queued")
		return ok
	}
	for _, r := range rcpts {
		to, _, _ := strings.Cut(strings.TrimPrefix(r, "RCPT To:<"), ">")
		if _, ok := c.answer(". "+to, "250 2.0.0 stored"); !ok {
			return false
		}
	}
	return true
}

// readData reads up to and with the final dot, whatever the bytes are.
func (c *conversation) readData() error {
	var kept strings.Builder
	begin := true // of a line
	for {
		part, err := c.r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return err
		}
		c.taken.Bytes += int64(len(part))
		if c.Discard {
			c.taken.Sum = crc32.Update(c.taken.Sum, crc32.IEEETable, part)
		} else {
			kept.Write(part)
		}
		if begin && string(part) == ".\r\n" {
			c.taken.Data = kept.String()
			return nil
		}
		begin = len(part) > 1 && string(part[len(part)-2:]) == "\r\n"
	}
}
