package auth

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/internal/run/config"
)

const (
	// dovecotLine is the longest line of Dovecot's that is read. Bytes.
	dovecotLine = 16 << 10
	// dovecotOthers is how many lines its greeting may have, and how many may come before an answer.
	dovecotOthers = 100
	// dovecotTime is how long Dovecot may take to greet.
	dovecotTime = 5 * time.Second
	// dovecotKeep is how long its list of mechanisms holds; dovecotAgain, when it is asked
	// again after it did not answer.
	dovecotKeep, dovecotAgain = time.Minute, 5 * time.Second
)

// dovecot speaks Dovecot's authentication protocol as a client
// (doc.dovecot.org, "Dovecot Authentication Protocol v1.2"), each exchange on a connection
// of its own.
type dovecot struct {
	socket string
	o      Options
	away   *config.Outage
	deaf   atomic.Bool // it did not greet when it was asked last

	mu         sync.Mutex
	mechanisms []string
	until      time.Time
	asking     bool
	down       bool
}

func newDovecot(socket string, o Options, away *config.Outage) *dovecot {
	return &dovecot{socket: socket, o: o, away: away, mechanisms: []string{Plain, Login}}
}

// Mechanisms implements Backend: those of ours that Dovecot has. If it does not answer,
// those that it had; a client that tries one gets a temporary failure.
func (d *dovecot) Mechanisms(ctx context.Context) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := d.o.Now(); d.asking || now.Before(d.until) {
		return d.mechanisms
	}
	d.asking = true
	d.mu.Unlock()
	found, err := d.ask(ctx)
	d.mu.Lock()
	d.asking = false
	if err != nil {
		if !d.down {
			d.o.Log.Error("auth-trouble", "source", "dovecot:"+d.socket, "reason", err, "advice", "clients are deferred")
		}
		d.down, d.until = true, d.o.Now().Add(dovecotAgain)
		return d.mechanisms
	}
	if d.down {
		d.o.Log.Info("auth-recovered", "source", "dovecot:"+d.socket)
	}
	d.down, d.mechanisms, d.until = false, found, d.o.Now().Add(dovecotKeep)
	return d.mechanisms
}

func (d *dovecot) ask(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, dovecotTime)
	defer cancel()
	c, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.mechanisms, nil
}

// Start implements Backend.
func (d *dovecot) Start(ctx context.Context, mechanism string, p Peer) (Exchange, error) {
	if !known(mechanism) {
		return nil, ErrMechanism
	}
	greet, cancel := context.WithTimeout(ctx, dovecotTime)
	defer cancel()
	c, err := d.connect(greet)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(c.mechanisms, mechanism) {
		c.Close()
		return nil, ErrMechanism
	}
	c.mechanism, c.peer, c.away = mechanism, p, d.away
	return c, nil
}

// known reports whether we pass a mechanism on. Channel binding would need our TLS channel.
func known(mechanism string) bool { return rank(mechanism) > 0 }

// rank is the place of a mechanism among those that are offered; 0: it is not.
func rank(mechanism string) int {
	if strings.HasPrefix(mechanism, "SCRAM-SHA-") && !strings.HasSuffix(mechanism, "-PLUS") {
		return 1
	}
	return 1 + slices.Index([]string{"\x00", Plain, Login, "CRAM-MD5", "DIGEST-MD5", OAuthBearer, XOAuth2}, mechanism)
}

// dovecotExchange is a connection to Dovecot and the one request on it, whose number is 1.
type dovecotExchange struct {
	conn       net.Conn
	r          *bufio.Reader
	mechanisms []string
	mechanism  string
	peer       Peer
	away       *config.Outage
	begun      bool
	user       string
	claimed    string
}

// connect reads Dovecot's handshake: its version, mechanisms, DONE.
func (d *dovecot) connect(ctx context.Context) (c *dovecotExchange, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("ask Dovecot at %s: %w", d.socket, err)
			d.deaf.Store(true)
			d.away.Failed(err)
		} else if d.deaf.Swap(false) {
			d.away.Answers() // a Dovecot that greets may still fail to decide about anyone
		}
	}()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", d.socket)
	if err != nil {
		return nil, err
	}
	c = &dovecotExchange{conn: conn, r: bufio.NewReaderSize(conn, dovecotLine)}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := c.send(ctx, fmt.Sprintf("VERSION\t1\t1\nCPID\t%d\n", os.Getpid())); err != nil {
		return nil, err
	}
	version := false
	for range dovecotOthers {
		f, err := c.line(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case f[0] == "VERSION":
			if version = len(f) > 1 && f[1] == "1"; !version {
				return nil, errors.New("unknown protocol version")
			}
		case f[0] == "MECH" && len(f) > 1:
			if name := strings.ToUpper(f[1]); known(name) && !slices.Contains(f[2:], "private") {
				c.mechanisms = append(c.mechanisms, name)
			}
		case f[0] == "DONE" && !version:
			return nil, errors.New("no protocol version")
		case f[0] == "DONE":
			slices.SortStableFunc(c.mechanisms, func(a, b string) int { return cmp.Or(rank(a)-rank(b), strings.Compare(b, a)) })
			return c, nil
		}
	}
	return nil, errors.New("the handshake does not end")
}

func (c *dovecotExchange) send(ctx context.Context, text string) error {
	limit, _ := ctx.Deadline() // none: the zero time, which is none
	if err := c.conn.SetDeadline(limit); err != nil {
		return err
	}
	_, err := c.conn.Write([]byte(text))
	return err
}

// line reads one line, split at its tabs.
func (c *dovecotExchange) line(ctx context.Context) ([]string, error) {
	limit, _ := ctx.Deadline()
	if err := c.conn.SetDeadline(limit); err != nil {
		return nil, err
	}
	b, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return strings.Split(string(b[:len(b)-1]), "\t"), nil
}

// Next implements Exchange.
func (c *dovecotExchange) Next(ctx context.Context, response []byte) ([]byte, bool, error) {
	challenge, done, err := c.next(ctx, response)
	return challenge, done, answered(c.away, err)
}

func (c *dovecotExchange) next(ctx context.Context, response []byte) ([]byte, bool, error) {
	line := "CONT\t1\t" + base64.StdEncoding.EncodeToString(response) + "\n"
	if !c.begun {
		c.begun = true
		line = c.request(response)
	}
	if err := c.send(ctx, line); err != nil {
		return nil, false, fmt.Errorf("ask Dovecot: %w", err)
	}
	for range dovecotOthers {
		f, err := c.line(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("ask Dovecot: %w", err)
		}
		a, ok := parseAnswer(f)
		if !ok {
			continue // what a newer Dovecot may say
		}
		if a.user != "" {
			c.claimed = a.user
		}
		switch {
		case a.verb == "CONT":
			return a.challenge, false, nil
		case a.verb == "FAIL" && a.temporary:
			return nil, false, errors.New("ask Dovecot: temporary failure; see Dovecot's log")
		case a.verb == "FAIL":
			return nil, false, ErrRefused
		case a.user == "":
			return nil, false, errors.New("ask Dovecot: it accepts without a user name")
		}
		c.user = a.user
		return nil, true, nil
	}
	return nil, false, errors.New("ask Dovecot: its lines are no answer")
}

// request begins the authentication. resp has to be the last parameter.
func (c *dovecotExchange) request(response []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "AUTH\t1\t%s\tservice=smtp\tnologin", c.mechanism)
	if c.peer.Local.IsValid() {
		fmt.Fprintf(&b, "\tlip=%s\tlport=%d", c.peer.Local.Addr().Unmap().WithZone(""), c.peer.Local.Port())
	}
	if c.peer.Remote.IsValid() {
		fmt.Fprintf(&b, "\trip=%s\trport=%d", c.peer.Remote.Addr().Unmap().WithZone(""), c.peer.Remote.Port())
	}
	if c.peer.TLS {
		b.WriteString("\tsecured=tls\ttls=TLS")
	}
	if response != nil {
		b.WriteString("\tresp=" + base64.StdEncoding.EncodeToString(response))
	}
	return b.String() + "\n"
}

func (c *dovecotExchange) User() string    { return c.user }
func (c *dovecotExchange) Claimed() string { return c.claimed }

// Close implements Exchange: Dovecot forgets the request with its connection.
func (c *dovecotExchange) Close() { _ = c.conn.Close() }

// answer is Dovecot's answer to request 1.
type answer struct {
	verb      string // OK, CONT or FAIL
	challenge []byte
	user      string
	temporary bool
}

// parseAnswer reads a line; ok is false if it is no answer to our request.
func parseAnswer(f []string) (a answer, ok bool) {
	if len(f) < 2 {
		return answer{}, false
	}
	if n, err := strconv.ParseUint(f[1], 10, 32); err != nil || n != 1 {
		return answer{}, false
	}
	switch a.verb = f[0]; a.verb {
	case "CONT":
		if len(f) < 3 {
			return a, true
		}
		var err error
		a.challenge, err = base64.StdEncoding.DecodeString(f[2])
		return a, err == nil
	case "OK", "FAIL":
		for _, p := range f[2:] {
			key, value, _ := strings.Cut(p, "=")
			switch {
			case key == "user":
				a.user = tabUnescape(value)
			case key == "temp", key == "code" && value == "temp_fail":
				a.temporary = true
			}
		}
		return a, true
	}
	return answer{}, false
}

// tabUnescape undoes how Dovecot writes what would end a word.
func tabUnescape(s string) string {
	return strings.NewReplacer("\x010", "\x00", "\x011", "\x01", "\x01t", "\t", "\x01r", "\r", "\x01n", "\n").Replace(s)
}
