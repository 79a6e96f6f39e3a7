package smtpclient

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// patience bounds every wait in these tests; no test takes nearly so long.
const patience = 20 * time.Second

// hello opens an ESMTP session with every extension.
const hello = `
S: 220 mx.test ESMTP
C: EHLO client.test
S: 250-mx.test
S: 250-PIPELINING
S: 250-SIZE 1000000
S: 250-8BITMIME
S: 250-DSN
S: 250-SMTPUTF8
S: 250 ENHANCEDSTATUSCODES
`

// plainHello opens a session without extensions.
const plainHello = `
S: 220 mx.test ESMTP
C: EHLO client.test
S: 250 mx.test
`

// played is a server that follows a script on one connection.
type played struct {
	body chan string // each message between DATA and dot, as it came
	done chan error  // the end of the script

	stall chan struct{} // closed when the test ends
}

// play serves one connection from a script of lines: "C: text" is read and must be
// equal, "S: text" is sent, "BODY" reads up to a final dot, "HALFBODY" one line of
// a body, "CLOSE" hangs up, "RESET" hangs up so that the client's writes fail,
// "WAIT" reads until the client hangs up, "STALL" reads nothing until then.
func play(t testing.TB, nc net.Conn, script string) *played {
	p := &played{body: make(chan string, 100), done: make(chan error, 1), stall: make(chan struct{})}
	t.Cleanup(func() { close(p.stall) })
	go func() {
		err := p.run(nc, script)
		nc.Close()
		p.done <- err
	}()
	return p
}

func (p *played) run(nc net.Conn, script string) error {
	nc.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(nc)
	for n, step := range strings.Split(strings.TrimSpace(script), "\n") {
		if step == "" {
			continue
		}
		kind, text, _ := strings.Cut(step, ": ")
		switch kind {
		case "C":
			line, err := r.ReadString('\n')
			if err != nil {
				return fmt.Errorf("step %d, want %q: %w", n, text, err)
			}
			if got, want := line, text+"\r\n"; got != want {
				return fmt.Errorf("step %d: got %q, want %q", n, got, want)
			}
		case "S":
			if _, err := io.WriteString(nc, text+"\r\n"); err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
		case "BODY":
			b, err := readBody(r)
			if err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
			p.body <- b
		case "HALFBODY":
			if _, err := r.ReadString('\n'); err != nil {
				return fmt.Errorf("step %d: %w", n, err)
			}
		case "CLOSE":
			return nil
		case "RESET":
			return nc.(*net.TCPConn).SetLinger(0)
		case "STALL":
			<-p.stall
			return nil
		case "WAIT":
			_, err := io.Copy(io.Discard, r)
			return err
		default:
			return fmt.Errorf("step %d: bad script: %q", n, step)
		}
	}
	return nil
}

// readBody reads up to and with the final dot.
func readBody(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return b.String(), err
		}
		b.WriteString(line)
		if s := b.String(); s == ".\r\n" || strings.HasSuffix(s, "\r\n.\r\n") {
			return s, nil
		}
	}
}

// recorder keeps each write of the client apart.
type recorder struct {
	net.Conn
	mu     sync.Mutex
	writes []string
	// failAfter is after how many writes they fail, as on a connection that was
	// reset; 0: never.
	failAfter int
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.writes = append(r.writes, string(p))
	broken := r.failAfter > 0 && len(r.writes) > r.failAfter
	r.mu.Unlock()
	if broken {
		return 0, syscall.EPIPE
	}
	return r.Conn.Write(p)
}

// pair returns a TCP connection's two ends.
func pair(t testing.TB) (client *recorder, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.Must(t, err)
	defer l.Close()
	type accepted struct {
		nc  net.Conn
		err error
	}
	ch := make(chan accepted, 1)
	go func() {
		nc, err := l.Accept()
		ch <- accepted{nc, err}
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	assert.Must(t, err)
	a := <-ch
	if a.err != nil {
		t.Fatal(a.err)
	}
	t.Cleanup(func() { nc.Close(); a.nc.Close() })
	return &recorder{Conn: nc}, a.nc
}

// short are timeouts that a test can wait for.
func short(d time.Duration) Timeouts {
	return Timeouts{d, d, d, d, d, d, d, d, d}
}

// start plays a script and makes a client for it.
func start(t *testing.T, cfg Config, script string) (*Conn, *recorder, *played) {
	t.Helper()
	client, server := pair(t)
	if cfg.Hostname == "" {
		cfg.Hostname = "client.test"
	}
	if cfg.Timeouts == (Timeouts{}) {
		cfg.Timeouts = short(patience)
	}
	return New(client, cfg), client, play(t, server, script)
}

// open is start with the session opened.
func open(t *testing.T, cfg Config, script string) (*Conn, *recorder, *played) {
	t.Helper()
	c, rec, p := start(t, cfg, script)
	assert.Must(t, c.Hello())
	return c, rec, p
}

// end waits for the script's end and fails the test if it was not followed.
func (p *played) end(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("server: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the server's script did not end")
	}
}

// message returns a small message to the given recipients.
func message(rcpt ...string) *Message {
	m := &Message{From: "sender@client.test", Header: []byte("Subject: x\n"), Body: strings.NewReader("\nbody\n")}
	for _, r := range rcpt {
		m.Recipients = append(m.Recipients, Recipient{Address: r})
	}
	return m
}

// outcomes returns a short form of results: outcome, code and phase of each.
func outcomes(results []Result) []string {
	var s []string
	for _, r := range results {
		doubt := ""
		if r.InDoubt {
			doubt = ", in doubt"
		}
		s = append(s, fmt.Sprintf("%s %s %s%s", r.Outcome, r.Code, r.Phase, doubt))
	}
	return s
}

// lines is a server that talks by hand.
type lines struct {
	nc  net.Conn
	r   *bufio.Reader
	err error
}

func newLines(nc net.Conn) *lines {
	nc.SetDeadline(time.Now().Add(patience))
	return &lines{nc: nc, r: bufio.NewReader(nc)}
}

func (l *lines) say(text string) {
	if l.err == nil {
		_, l.err = io.WriteString(l.nc, text+"\r\n")
	}
}

func (l *lines) hear() string {
	if l.err != nil {
		return ""
	}
	var text string
	text, l.err = l.r.ReadString('\n')
	return strings.TrimSuffix(text, "\r\n")
}
