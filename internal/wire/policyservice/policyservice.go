// Package policyservice is the client side of Postfix's policy delegation protocol
// (SMTPD_POLICY_README): a request of lines name=value that an empty line ends, and a reply
// that has a line action=... . Connections are used again.
//
// It owns nothing on disk, and nothing survives a crash.
//
// Diagnostics: an error of Ask means that the service gave no answer that can be used: it
// cannot be reached, did not answer in time, or sent something else. While a service fails,
// it is tried every few seconds, and Ask returns the last error at once in between. Parse's
// error names what is expected.
package policyservice

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultTimeout is that of Postfix's smtpd_policy_service_timeout.
	DefaultTimeout = 100 * time.Second
	// maxIdle and maxAge are those of smtpd_policy_service_max_idle and _max_ttl.
	maxIdle = 300 * time.Second
	maxAge  = 1000 * time.Second
	// maxReply bounds a reply, and maxLines its lines.
	maxReply = 16 << 10
	maxLines = 100
	// maxConns bounds the connections to one service. Further requests wait.
	maxConns = 100
	// tryDelay is smtpd_policy_service_retry_delay: a service that is restarted is back then.
	tryDelay = time.Second
	// pause is how long a service that fails is left alone.
	pause = 5 * time.Second
)

// Attr is one line of a request.
type Attr struct{ Name, Value string }

// Endpoint is where a service listens.
type Endpoint struct{ Network, Addr string }

// Parse reads inet:HOST:PORT or unix:/PATH.
func Parse(text string) (Endpoint, error) {
	kind, addr, _ := strings.Cut(text, ":")
	switch kind {
	case "inet":
		if !strings.Contains(addr, ":") {
			addr = "127.0.0.1:" + addr // as Postfix has inet:PORT
		}
		if host, port, err := net.SplitHostPort(addr); err == nil && host != "" && port != "" {
			return Endpoint{"tcp", addr}, nil
		}
	case "unix":
		if filepath.IsAbs(addr) {
			return Endpoint{"unix", addr}, nil
		}
	}
	return Endpoint{}, fmt.Errorf("%q is no policy service: want inet:HOST:PORT or unix:/PATH", text)
}

// Client asks one service. It may be used by many goroutines.
type Client struct {
	at      Endpoint
	timeout time.Duration
	places  chan struct{}

	mu     sync.Mutex
	idle   []*conn // the one used last is at the end
	closed bool
	failed error     // of the last request; nil: it was answered
	until  time.Time // while failed is returned at once
}

type conn struct {
	net.Conn
	r    *bufio.Reader
	made time.Time
	used time.Time
}

// New makes a Client; no connection is made yet. A timeout of 0 is DefaultTimeout.
func New(at Endpoint, timeout time.Duration) *Client {
	return &Client{at: at, timeout: cmp.Or(timeout, DefaultTimeout), places: make(chan struct{}, maxConns)}
}

// Close ends the idle connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, k := range c.idle {
		_ = k.Close() // nothing is under way on it
	}
	c.idle = nil
}

// Ask returns the action that the service answers.
func (c *Client) Ask(ctx context.Context, request []Attr) (string, error) {
	c.mu.Lock()
	failed, until := c.failed, c.until
	if failed != nil && time.Now().After(until) {
		c.until = time.Now().Add(pause) // this request tries it; the others do not wait
	}
	c.mu.Unlock()
	if failed != nil && time.Now().Before(until) {
		return "", failed
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	action, err := c.ask(limited, encode(request))
	if ctx.Err() != nil && err != nil {
		return "", err // the session ended
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = nil; err != nil {
		c.failed = fmt.Errorf("policy service %s: %w", c.at.Addr, err)
		c.until = time.Now().Add(pause)
	}
	return action, c.failed
}

// encode writes a request. Values have no line ends.
func encode(request []Attr) []byte {
	var b []byte
	for _, a := range request {
		b = append(append(append(b, a.Name...), '='), clean(a.Value)...)
		b = append(b, '\n')
	}
	return append(b, '\n')
}

func clean(value string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, value)
}

// ask makes a request, a second time if the connection was closed: the service may have ended
// it while it was idle, or is being restarted.
func (c *Client) ask(ctx context.Context, request []byte) (string, error) {
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		return "", fmt.Errorf("all %d connections are in use: %w", maxConns, ctx.Err())
	}
	for try := 1; ; try++ {
		k, old, err := c.connect(ctx, try > 1)
		if err == nil {
			var action string
			if action, err = k.exchange(ctx, request); err == nil {
				c.keep(k)
				return action, nil
			}
			_ = k.Close() // it is of no use any more
		}
		var timeout net.Error
		if try == 2 || errors.Is(err, errReply) || errors.As(err, &timeout) && timeout.Timeout() {
			return "", err
		}
		if old {
			continue
		}
		select {
		case <-time.After(tryDelay):
		case <-ctx.Done():
			return "", err
		}
	}
}

// connect takes an idle connection, or makes one.
func (c *Client) connect(ctx context.Context, fresh bool) (k *conn, old bool, err error) {
	now := time.Now()
	c.mu.Lock()
	for len(c.idle) > 0 && !fresh {
		k, c.idle = c.idle[len(c.idle)-1], c.idle[:len(c.idle)-1]
		if now.Sub(k.used) < maxIdle && now.Sub(k.made) < maxAge {
			c.mu.Unlock()
			return k, true, nil
		}
		_ = k.Close() // nothing is under way on it
	}
	c.mu.Unlock()
	var d net.Dialer
	n, err := d.DialContext(ctx, c.at.Network, c.at.Addr)
	if err != nil {
		return nil, false, err
	}
	return &conn{Conn: n, r: bufio.NewReaderSize(n, 1<<10), made: now}, false, nil
}

// keep makes a connection idle, or closes it if the service sent more than its answer.
func (c *Client) keep(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || k.r.Buffered() > 0 {
		_ = k.Close() // its answer was read
		return
	}
	k.used = time.Now()
	c.idle = append(c.idle, k)
}

// errReply is an answer that is none.
var errReply = errors.New("unusable answer")

// exchange sends a request and reads the answer.
func (k *conn) exchange(ctx context.Context, request []byte) (action string, err error) {
	until, _ := ctx.Deadline()
	if err := k.SetDeadline(until); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = k.SetDeadline(time.Unix(1, 0)) }) // else it ends later
	defer stop()
	if _, err := k.Write(request); err != nil {
		return "", err
	}
	left, found := maxReply, false
	for range maxLines {
		line, err := readLine(k.r, &left)
		if err != nil {
			return "", err
		}
		if line == "" {
			if !found {
				return "", fmt.Errorf("%w: it has no action=", errReply)
			}
			return action, nil
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return "", fmt.Errorf("%w: %.60q is not name=value", errReply, line)
		}
		if strings.TrimSpace(name) == "action" && !found {
			action, found = strings.TrimSpace(value), true
		}
	}
	return "", fmt.Errorf("%w: it has more than %d lines", errReply, maxLines)
}

// readLine reads a line within the bound of the reply.
func readLine(r *bufio.Reader, left *int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if *left -= len(part); *left < 0 {
			return "", fmt.Errorf("%w: it is longer than %d bytes", errReply, maxReply)
		}
		switch {
		case err == nil:
			return strings.TrimRight(string(line), "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return "", fmt.Errorf("%w: it ends in the middle", errReply)
		default:
			return "", err
		}
	}
}
