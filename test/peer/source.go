package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Source sends messages to an SMTP server.
type Source struct {
	Addr        string
	Local       string // address of ours that it connects from; "": any
	Connections int
	Messages    int
	Reuse       bool // one connection for many messages
	Again       int  // how often a connection that is lost before its greeting is made again
	From        string
	To          func(n int) string // recipient of message n, 0 is the first
	// ToAll gives a message many recipients, in To's place. A server that offers
	// PIPELINING (RFC 2920) gets them without waiting for each answer.
	ToAll func(n int) []string
	// MailParams and RcptParams stand behind the addresses: "RET=HDRS", "NOTIFY=NEVER".
	MailParams, RcptParams string
	// Body is message n as it goes over the wire: CRLF line ends, dots doubled, without
	// the final dot.
	Body func(n int) []byte
	// OnAccepted is called with the moment of the 250 for the final dot. It may be
	// called by several goroutines at once.
	OnAccepted func(n int, reply string, at time.Time)
}

// Run sends everything and returns the first error.
func (s *Source) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range s.Connections {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := s.send(ctx, &next); err != nil {
				cancel(err)
			}
		}()
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (s *Source) send(ctx context.Context, next *atomic.Int64) error {
	var c *client
	for ctx.Err() == nil {
		n := int(next.Add(1)) - 1
		if n >= s.Messages {
			break
		}
		if c == nil {
			var err error
			for tries := 0; ; tries++ {
				if c, err = dial(ctx, s.Local, s.Addr); err == nil {
					break
				}
				if !errors.Is(err, errNoGreeting) || tries >= s.Again || ctx.Err() != nil {
					return err
				}
			}
		}
		reply, err := c.message(parameters(s.From, s.MailParams), s.recipients(n), s.Body(n))
		if err != nil {
			c.Close()
			return fmt.Errorf("message %d: %w", n, err)
		}
		if s.OnAccepted != nil {
			s.OnAccepted(n, reply, time.Now())
		}
		if !s.Reuse {
			if err := c.quit(); err != nil {
				return err
			}
			c = nil
		}
	}
	if c != nil {
		return c.quit()
	}
	return nil
}

type client struct {
	net.Conn
	r         *bufio.Reader
	pipelines bool
}

// errNoGreeting: the connection was refused or lost before a 220, as by a server of which
// more is asked than it lets wait.
var errNoGreeting = errors.New("no greeting")

func dial(ctx context.Context, local, addr string) (*client, error) {
	var d net.Dialer
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoGreeting, err)
	}
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	c := &client{Conn: conn, r: bufio.NewReader(conn)}
	if _, err = c.expect("220"); err != nil {
		err = fmt.Errorf("%w: %w", errNoGreeting, err)
	} else {
		_, err = c.command("250", "EHLO source.example\r\n")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *client) command(want, line string) (string, error) {
	if _, err := c.Write([]byte(line)); err != nil {
		return "", err
	}
	return c.expect(want)
}

func (c *client) expect(want string) (string, error) {
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(line, want) {
			return "", fmt.Errorf("got %q, want %s", line, want)
		}
		if len(line) > 4 && strings.TrimRight(line[4:], "\r\n") == "PIPELINING" {
			c.pipelines = true
		}
		if len(line) < 4 || line[3] != '-' {
			return strings.TrimRight(line, "\r\n"), nil
		}
	}
}

// parameters returns an address in brackets, with what stands behind it.
func parameters(address, rest string) string {
	if rest != "" {
		rest = " " + rest
	}
	return "<" + address + ">" + rest
}

func (s *Source) recipients(n int) []string {
	if s.ToAll == nil {
		return []string{parameters(s.To(n), s.RcptParams)}
	}
	list := s.ToAll(n)
	for i := range list {
		list[i] = parameters(list[i], s.RcptParams)
	}
	return list
}

// together is how many RCPT commands wait for their answers: those fit into the socket's
// buffer, so that neither side waits for the other.
const together = 100

func (c *client) message(from string, to []string, body []byte) (string, error) {
	if _, err := c.command("250", "MAIL FROM:"+from+"\r\n"); err != nil {
		return "", err
	}
	at := 1
	if c.pipelines {
		at = together
	}
	for some := range slices.Chunk(to, at) {
		if _, err := c.Write([]byte("RCPT TO:" + strings.Join(some, "\r\nRCPT TO:") + "\r\n")); err != nil {
			return "", err
		}
		for range some {
			if _, err := c.expect("250"); err != nil {
				return "", err
			}
		}
	}
	if _, err := c.command("354", "DATA\r\n"); err != nil {
		return "", err
	}
	out := net.Buffers{body, []byte(".\r\n")} // one write, without a copy
	if _, err := out.WriteTo(c.Conn); err != nil {
		return "", err
	}
	return c.expect("250")
}

func (c *client) quit() error {
	defer c.Close()
	_, err := c.command("221", "QUIT\r\n")
	return err
}
