// Package peer is the other side of the pipeline for tests, the demonstration and
// the benchmark: an SMTP or LMTP server that keeps what it receives and answers as
// configured, and a client that sends many messages over many connections. Both listen
// on and talk to loopback only.
package peer

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Message is what a sink accepted.
type Message struct {
	From       string    // inside the angle brackets
	Recipients []string  // those it accepted, inside the angle brackets
	Commands   []string  // MAIL and the RCPTs that were accepted, as they came
	Data       []byte    // as on the wire: CRLF line ends, dots unstuffed; nil if not kept
	Content    io.Writer // got the data instead, see Sink.Content
	Size       int
	Peer       string // the client's address, without its port
	Hello      string // the name that it gave
	Connection int    // 1 is the sink's first
	Time       time.Time
}

// Moments at which a Sink may be held up or cut its connection.
const (
	AtData   = "DATA"   // before the 354
	InData   = "data"   // in the middle of the content; Cut alone
	AtDot    = "."      // before the message is kept
	AfterDot = "answer" // kept, and not answered yet; Cut alone
)

// Sink is an SMTP server on 127.0.0.1.
type Sink struct {
	// Listen is another address than "127.0.0.1:0"; "unix:/path" for a socket.
	Listen string
	// LMTP: the final dot is answered once for each recipient (RFC 2033 §4.2); Final is
	// asked for each, with a message that has no other.
	LMTP bool
	// Rcpt answers a RCPT command; nil or "" accepts. attempt counts from 1 for each
	// address. It is called by one goroutine at a time.
	Rcpt func(address string, attempt int) string
	// Final answers the final dot; nil or "" accepts.
	Final func(m *Message) string
	// Stall is called at AtData and AtDot and may wait; other connections go on.
	Stall func(at string, m *Message)
	// Cut is called at each of the moments, InData after the first line; true ends the
	// connection there.
	Cut func(at string, m *Message) bool
	// Content is called when a message's data begin and gives what takes them, as in
	// Message.Data, instead of memory; it stands in Message.Content.
	Content func(m *Message) io.Writer
	// NoDSN: RFC 3461 is not offered; No8Bit: RFC 6152 and 6531 are not.
	NoDSN, No8Bit bool
	// Chunking: BDAT is offered (RFC 3030). Moments in its data are not looked at.
	Chunking bool
	// Discard keeps no message content.
	Discard bool
	// OnMessage is called for each accepted message before it is answered.
	OnMessage func(m *Message)

	listener net.Listener
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    map[net.Conn]bool
	count    int
	attempts map[string]int
	messages []*Message
	arrived  chan struct{} // closed and replaced at each message
}

// Start listens on Addr.
func (s *Sink) Start() error {
	network, where := "tcp", cmp.Or(s.Listen, "127.0.0.1:0")
	if path, ok := strings.CutPrefix(where, "unix:"); ok {
		network, where = "unix", path
	}
	l, err := net.Listen(network, where)
	if err != nil {
		return err
	}
	s.listener = l
	s.conns = map[net.Conn]bool{}
	s.attempts = map[string]int{}
	s.arrived = make(chan struct{})
	s.wg.Add(1)
	go s.accept()
	return nil
}

// Addr is "127.0.0.1:port".
func (s *Sink) Addr() string { return s.listener.Addr().String() }

// RouteHost returns the sink as the host of a route: "[127.0.0.1]:port".
func (s *Sink) RouteHost() string {
	host, port, _ := net.SplitHostPort(s.Addr())
	return "[" + host + "]:" + port
}

// Close ends the sink and its connections.
func (s *Sink) Close() {
	s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Messages returns what has arrived so far.
func (s *Sink) Messages() []*Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Message(nil), s.messages...)
}

// Count returns how many messages and connections there were.
func (s *Sink) Count() (messages, connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.messages), s.count
}

// Wait waits until at least n messages have arrived or the deadline is over.
func (s *Sink) Wait(n int, deadline time.Duration) error {
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	for {
		s.mu.Lock()
		have, arrived := len(s.messages), s.arrived
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-arrived:
		case <-timer.C:
			return fmt.Errorf("%d of %d messages after %v", have, n, deadline)
		}
	}
}

func (s *Sink) accept() {
	defer s.wg.Done()
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.count++
		n := s.count
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			s.serve(c, n)
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
	}
}

func (s *Sink) serve(c net.Conn, number int) {
	r := bufio.NewReaderSize(c, 16<<10)
	w := bufio.NewWriter(c)
	reply := func(text string) {
		w.WriteString(text)
		w.WriteString("\r\n")
		if r.Buffered() == 0 { // pipelined commands get their replies in one write
			w.Flush()
		}
	}
	reply("220 sink.example ESMTP")
	hello := ""
	peer, _, _ := net.SplitHostPort(c.RemoteAddr().String()) // a socket's has none
	m := &Message{Connection: number}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		text := strings.TrimRight(string(line), "\r\n")
		verb, _, _ := strings.Cut(strings.ToUpper(text), " ")
		switch verb {
		case "EHLO", "LHLO":
			_, hello, _ = strings.Cut(text, " ")
			dsn := "250-DSN\r\n"
			if s.NoDSN {
				dsn = ""
			}
			if s.Chunking {
				dsn += "250-CHUNKING\r\n"
			}
			eight := "250-8BITMIME\r\n250-SMTPUTF8\r\n"
			if s.No8Bit {
				eight = ""
			}
			reply("250-sink.example\r\n250-PIPELINING\r\n" + eight + "250-ENHANCEDSTATUSCODES\r\n" + dsn + "250 SIZE")
		case "HELO", "NOOP", "RSET":
			m = &Message{Connection: number}
			reply("250 2.0.0 Ok")
		case "MAIL":
			m = &Message{Connection: number, Peer: peer, Hello: hello, From: bracketed(text), Commands: []string{text}}
			reply("250 2.1.0 Ok")
		case "RCPT":
			a := s.rcpt(bracketed(text))
			if a[0] == '2' {
				m.Recipients, m.Commands = append(m.Recipients, bracketed(text)), append(m.Commands, text)
			}
			reply(a)
		case "DATA":
			if len(m.Recipients) == 0 {
				reply("554 5.5.1 no valid recipients")
				continue
			}
			w.Flush()
			answer, ok := s.content(r, w, m)
			if !ok {
				return
			}
			reply(answer)
			m = &Message{Connection: number}
		case "BDAT":
			answer, over, err := s.chunk(r, m, text)
			if err != nil {
				return
			}
			if reply(answer); over {
				m = &Message{Connection: number}
			}
		case "QUIT":
			reply("221 2.0.0 bye")
			w.Flush()
			return
		default:
			reply("500 5.5.2 unknown command")
		}
	}
}

// content takes a message's data and gives the answer; false: the connection is over.
func (s *Sink) content(r *bufio.Reader, w *bufio.Writer, m *Message) (answer string, ok bool) {
	s.stall(AtData, m)
	if s.cut(AtData, m) {
		return "", false
	}
	w.WriteString("354 go ahead\r\n")
	w.Flush()
	if s.Content != nil {
		m.Content = s.Content(m)
	}
	if err := s.data(r, m); err != nil {
		return "", false
	}
	s.stall(AtDot, m)
	if s.cut(AtDot, m) {
		return "", false
	}
	answer = s.finish(m)
	return answer, !s.cut(AfterDot, m)
}

// chunk takes a BDAT and gives the answer; over: the transaction has ended.
func (s *Sink) chunk(r *bufio.Reader, m *Message, command string) (answer string, over bool, err error) {
	f := strings.Fields(command)
	if len(f) < 2 {
		return "501 5.5.4 no size", false, nil
	}
	n, err := strconv.Atoi(f[1])
	if err != nil || n < 0 {
		return "501 5.5.4 no size", false, nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", false, err
	}
	if len(m.Recipients) == 0 {
		return "503 5.5.1 no valid recipients", false, nil
	}
	if m.Size += n; !s.Discard {
		m.Data = append(m.Data, b...)
	}
	if len(f) < 3 {
		return "250 2.0.0 Ok", false, nil
	}
	s.stall(AtDot, m)
	return s.finish(m), true, nil
}

func (s *Sink) cut(at string, m *Message) bool { return s.Cut != nil && s.Cut(at, m) }

func (s *Sink) rcpt(address string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[address]++
	if s.Rcpt != nil {
		if a := s.Rcpt(address, s.attempts[address]); a != "" {
			return a
		}
	}
	return "250 2.1.5 Ok"
}

// errCut: the sink ended the connection.
var errCut = errors.New("cut")

// data reads up to the final dot. A line that its buffer cannot hold comes in parts.
func (s *Sink) data(r *bufio.Reader, m *Message) error {
	begin := true // of a line
	for {
		line, err := r.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return err
		}
		if begin && bytes.Equal(line, []byte(".\r\n")) {
			return nil
		}
		if begin && line[0] == '.' {
			line = line[1:]
		}
		if m.Size == 0 && s.cut(InData, m) {
			return errCut
		}
		m.Size += len(line)
		switch {
		case m.Content != nil:
			if _, err := m.Content.Write(line); err != nil {
				return err
			}
		case !s.Discard:
			m.Data = append(m.Data, line...)
		}
		begin = err == nil
	}
}

func (s *Sink) stall(at string, m *Message) {
	if s.Stall != nil {
		s.Stall(at, m)
	}
}

// finish answers the final dot and keeps the message if it was accepted.
func (s *Sink) finish(m *Message) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.LMTP {
		return s.finishEach(m)
	}
	if a := s.final(m); a != "" {
		return a
	}
	s.keep(m)
	return "250 2.0.0 Ok"
}

func (s *Sink) final(m *Message) string {
	if s.Final == nil {
		return ""
	}
	return s.Final(m)
}

// finishEach answers for each recipient; the message is kept with those accepted.
func (s *Sink) finishEach(m *Message) string {
	var answers, accepted []string
	for _, r := range m.Recipients {
		one := *m
		one.Recipients = []string{r}
		a := s.final(&one)
		if a == "" {
			a = "250 2.0.0 Ok"
			accepted = append(accepted, r)
		}
		answers = append(answers, a)
	}
	if m.Recipients = accepted; len(accepted) > 0 {
		s.keep(m)
	}
	return strings.Join(answers, "\r\n")
}

func (s *Sink) keep(m *Message) {
	m.Time = time.Now()
	s.messages = append(s.messages, m)
	if s.OnMessage != nil {
		s.OnMessage(m)
	}
	close(s.arrived)
	s.arrived = make(chan struct{})
}

func bracketed(line string) string {
	_, rest, _ := strings.Cut(line, "<")
	a, _, _ := strings.Cut(rest, ">")
	return a
}
