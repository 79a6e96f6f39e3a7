// Package milter asks mail filters that speak Sendmail's milter protocol (versions 2 to
// 6) about clients, senders, recipients and messages, and gives back what they want to be
// changed. go-milter speaks the protocol; a new body is led past it, so that its length
// is not in memory.
//
//	s, err := milter.Open(ctx, cfg)
//	a, err := s.Connect(...) // then Helo, Mail, Rcpt
//	a, changes, err := s.Content(fields, body, newBody, macros)
//
// It owns nothing on disk.
//
// Diagnostics: every error is trouble with the filter, not with the message: it cannot be
// reached, is too slow, or sends what the protocol does not allow. The session is closed then.
// ErrTooMuch means that it wants to change more than it may.
package milter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strings"
	"time"

	"github.com/emersion/go-milter"
)

// Config names a filter.
type Config struct {
	Network, Address string
	Timeout          time.Duration // of each step, connecting too; 0: 30 s
	ContentTimeout   time.Duration // of all that concerns one message's content; 0: 5 minutes
	Now              func() time.Time
}

const (
	defaultTimeout        = 30 * time.Second
	defaultContentTimeout = 5 * time.Minute
)

// Name returns how the filter is called in the log and in settings.
func (c Config) Name() string {
	if c.Network == "unix" {
		return "unix:" + c.Address
	}
	return "inet:" + c.Address
}

// Parse reads a filter's address: unix:/path or inet:host:port.
func Parse(s string) (Config, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "unix":
		if path.IsAbs(rest) {
			return Config{Network: "unix", Address: rest}, nil
		}
	case "inet":
		if host, port, err := net.SplitHostPort(rest); err == nil && host != "" && port != "" {
			return Config{Network: "tcp", Address: rest}, nil
		}
	}
	return Config{}, fmt.Errorf("%s is no filter, like unix:/run/rspamd/milter.sock or inet:127.0.0.1:11332", s)
}

// Action is a filter's decision.
type Action uint8

const (
	Continue Action = iota // it has no objection so far
	Accept                 // it takes it and wants to hear no more
	Reject                 // 5xx
	TempFail               // 4xx
	Discard                // the message is to be taken and thrown away
)

// Answer is a filter's decision, with a reply if it gives one.
type Answer struct {
	Action Action
	Code   int    // of the reply; 0: that of the action
	Status string // enhanced code, "5.7.1"; "": that of the action
	Text   string
}

// Macros are names and values for a filter, "{client_addr}", "192.0.2.1"; empty values
// are left out.
type Macros []string

// ErrTooMuch means that a filter asks for more changes than are kept.
var ErrTooMuch = errors.New("the filter wants to change too much")

// Session is a connection to a filter, for one connection of a client. It is used by one
// goroutine.
type Session struct {
	cfg    Config
	client *milter.ClientSession
	frames *frames
	began  bool // a message is open at the filter
}

// What we let a filter do and leave out. Not offered: adding recipients with parameters
// and skipping the rest of a body, which go-milter does not know.
const (
	actions2 = milter.OptAddHeader | milter.OptChangeBody | milter.OptAddRcpt | milter.OptRemoveRcpt |
		milter.OptChangeHeader | milter.OptQuarantine
	actions6  = actions2 | milter.OptChangeFrom
	protocol2 = milter.OptNoConnect | milter.OptNoHelo | milter.OptNoMailFrom | milter.OptNoRcptTo |
		milter.OptNoBody | milter.OptNoHeaders | milter.OptNoEOH
	protocol6 = protocol2 | milter.OptNoHeaderReply | milter.OptNoUnknown | milter.OptNoData |
		milter.OptNoConnReply | milter.OptNoHeloReply | milter.OptNoMailReply | milter.OptNoRcptReply |
		milter.OptNoDataReply | milter.OptNoUnknownReply | milter.OptNoEOHReply | milter.OptNoBodyReply |
		milter.OptHeaderLeadingSpace
)

// Open connects to a filter and agrees on the protocol. When ctx is done the connection
// is over, whatever step is under way.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.ContentTimeout = cmp.Or(cfg.ContentTimeout, defaultContentTimeout)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s, err := open(ctx, cfg, actions6, protocol6)
	if errors.Is(err, milter.ErrUnsupportedMilterVersion) {
		// An old one knows neither the later options nor how to be offered them.
		s, err = open(ctx, cfg, actions2, protocol2)
	}
	if err != nil {
		return nil, fmt.Errorf("milter %s: %w", cfg.Name(), err)
	}
	return s, nil
}

func open(ctx context.Context, cfg Config, a milter.OptAction, p milter.OptProtocol) (*Session, error) {
	d := &dialer{ctx: ctx, timeout: cfg.Timeout}
	client, err := milter.NewClientWithOptions(cfg.Network, cfg.Address, milter.ClientOptions{
		Dialer: d, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, ActionMask: a, ProtocolMask: p,
	}).Session()
	if err != nil {
		if d.made != nil {
			// The library leaves it open.
			err = errors.Join(err, d.made.Close())
		}
		return nil, err
	}
	return &Session{cfg: cfg, client: client, frames: d.made}, nil
}

// dialer keeps the connection that it made.
type dialer struct {
	ctx     context.Context
	timeout time.Duration
	made    *frames
}

func (d *dialer) Dial(network, addr string) (net.Conn, error) {
	to := net.Dialer{Timeout: d.timeout}
	c, err := to.DialContext(d.ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.made = newFrames(c)
	d.made.stop = context.AfterFunc(d.ctx, func() { _ = c.Close() }) // a wait for it ends
	return d.made, nil
}

// Close ends the connection.
func (s *Session) Close() error {
	err := s.client.Close()
	// The library leaves it open if its farewell does not get through.
	_ = s.frames.Close()
	return err
}

// Connect introduces the client: its name, or its address in brackets.
func (s *Session) Connect(name string, client netip.AddrPort, m Macros) (Answer, error) {
	family, addr := milter.FamilyUnknown, ""
	if a := client.Addr().Unmap().WithZone(""); a.IsValid() {
		family, addr = milter.FamilyInet, a.String()
		if a.Is6() {
			family = milter.FamilyInet6
		}
	}
	return s.step(milter.CodeConn, m, func() (*milter.Action, error) {
		return s.client.Conn(clean(name), family, client.Port(), addr)
	})
}

// Helo passes on the name in the client's greeting.
func (s *Session) Helo(name string, m Macros) (Answer, error) {
	return s.step(milter.CodeHelo, m, func() (*milter.Action, error) { return s.client.Helo(clean(name)) })
}

// Mail begins a message. from has no brackets.
func (s *Session) Mail(from string, params []string, m Macros) (Answer, error) {
	if err := s.Abort(); err != nil {
		return Answer{}, err
	}
	s.began = true
	a, err := s.step(milter.CodeMail, m, func() (*milter.Action, error) { return s.client.Mail(clean(from), cleaned(params)) })
	s.began = err == nil && a.Action == Continue
	return a, err
}

// Rcpt names a recipient; the filter's decision is about that one, except for Accept and
// Discard.
func (s *Session) Rcpt(to string, params []string, m Macros) (Answer, error) {
	a, err := s.step(milter.CodeRcpt, m, func() (*milter.Action, error) { return s.client.Rcpt(clean(to), cleaned(params)) })
	if err != nil || a.Action == Accept || a.Action == Discard {
		s.began = false
	}
	return a, err
}

// Abort ends a message that has not come to its end.
func (s *Session) Abort() error {
	if !s.began {
		return nil
	}
	s.began = false
	if err := s.client.Abort(); err != nil {
		return s.trouble("abort", err)
	}
	return nil
}

// step sends macros and a command.
func (s *Session) step(code milter.Code, m Macros, command func() (*milter.Action, error)) (Answer, error) {
	if err := s.macros(code, m); err != nil {
		return Answer{}, err
	}
	a, err := command()
	if err != nil {
		return Answer{}, s.trouble("", err)
	}
	return s.answer(a)
}

func (s *Session) macros(code milter.Code, m Macros) error {
	list := make([]string, 0, len(m))
	for i := 0; i+1 < len(m); i += 2 {
		if m[i+1] != "" {
			list = append(list, m[i], clean(m[i+1]))
		}
	}
	if err := s.client.Macros(code, list...); err != nil {
		return s.trouble("", err)
	}
	return nil
}

func (s *Session) trouble(what string, err error) error {
	if s.frames.err != nil {
		err = s.frames.err
	}
	if what != "" {
		return fmt.Errorf("milter %s: %s: %w", s.cfg.Name(), what, err)
	}
	return fmt.Errorf("milter %s: %w", s.cfg.Name(), err)
}

// clean leaves out what would end a string of the protocol.
func clean(s string) string { return strings.ReplaceAll(s, "\x00", "?") }

func cleaned(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = clean(s)
	}
	return out
}
