// Package milter asks mail filters that speak Sendmail's milter protocol (versions 2 to
// 6) about clients, senders, recipients and messages, and returns what they want to be
// changed.
//
//	s, err := milter.Open(ctx, cfg)
//	a, err := s.Connect(...) // then Helo, Mail, Rcpt, Data
//	a, changes, err := s.Content(fields, body, newBody, macros)
//
// It offers everything that Postfix offers, and like Postfix sends macros also for steps that
// the filter has left out. A new body goes to a writer as it comes and is never in memory.
//
// It owns nothing on disk.
//
// Diagnostics: every error is trouble with the filter, not with the message: it cannot be
// reached, is too slow, or sends what the protocol does not allow. The session is closed then.
// ErrTooMuch means that it wants to change more than it may.
package milter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strings"
	"time"
)

// Config names a filter.
type Config struct {
	Network, Address string
	Timeout          time.Duration // of each step; 0: 30 s
	ConnectTimeout   time.Duration // to connect and to agree on the protocol; 0: Timeout
	// ContentTimeout is for all that concerns one message's content; 0: 5 minutes. Each time
	// that the filter reports progress (smfi_progress) it begins anew, at most maxProgress
	// times as long in all.
	ContentTimeout time.Duration
	Now            func() time.Time
}

const (
	defaultTimeout        = 30 * time.Second
	defaultContentTimeout = 5 * time.Minute
	// maxProgress is how many times its time limit a filter gets in all for reporting progress: the
	// client that waits gives up after ten minutes (RFC 5321 section 4.5.3.2.6), and a filter
	// that never ends must not hold its connection for ever.
	maxProgress = 12
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
	Shutdown               // 421: the connection of the client is to be closed
	skip                   // of the body no more is wanted
)

// Answer is a filter's decision, with a reply if it gives one.
type Answer struct {
	Action Action
	Code   int    // of the reply; 0: that of the action
	Status string // enhanced code, "5.7.1"; "": that of the action
	Text   string
	More   string // further lines of the reply (smfi_setmlreply), separated by LF
}

// Macros are names and values for a filter, "{client_addr}", "192.0.2.1": all that are known,
// of which each step gets its own. Empty values are left out.
type Macros []string

func (m Macros) value(name string) string {
	for i := 0; i+1 < len(m); i += 2 {
		if m[i] == name {
			return m[i+1]
		}
	}
	return ""
}

// ErrTooMuch means that a filter asks for more changes than are kept.
var ErrTooMuch = errors.New("the filter wants to change too much")

// Session is a connection to a filter, for one connection of a client. It is used by one
// goroutine.
type Session struct {
	cfg   Config
	wire  *wire
	steps uint32            // what the filter leaves out, does not answer, or wants
	lists map[byte][]string // macros of the stages for which the filter has named some
	began bool              // a message is open at the filter
	limit time.Time         // of the content; zero: none is under way
	last  time.Time         // when limit cannot be lengthened any more
}

// Open connects to a filter and agrees on the protocol. When ctx is done the connection
// is over, whatever step is under way.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.ContentTimeout = cmp.Or(cfg.ContentTimeout, defaultContentTimeout)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, cfg.Timeout)
	deadline := cfg.Now().Add(cfg.ConnectTimeout)
	to := net.Dialer{Timeout: cfg.ConnectTimeout}
	c, err := to.DialContext(ctx, cfg.Network, cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("milter %s: %w", cfg.Name(), err)
	}
	s := newSession(ctx, cfg, c)
	if err := s.negotiate(deadline); err != nil {
		_ = s.wire.close() // nothing was sent that could be lost
		return nil, s.trouble(err)
	}
	return s, nil
}

func newSession(ctx context.Context, cfg Config, c net.Conn) *Session {
	return &Session{cfg: cfg, wire: newWire(ctx, c)}
}

// negotiate offers everything; the filter chooses what it wants.
func (s *Session) negotiate(deadline time.Time) error {
	w := s.wire
	at := w.begin(cmdNegotiate)
	for _, n := range []uint32{newest, allActions, allSteps} {
		w.out = binary.BigEndian.AppendUint32(w.out, n)
	}
	w.end(at)
	if err := w.flush(deadline); err != nil {
		return err
	}
	code, n, err := w.next(deadline)
	if err != nil {
		return err
	}
	data, err := w.read(n)
	if err != nil {
		return err
	}
	if code != cmdNegotiate || n < 12 {
		return fmt.Errorf("%w: packet %q of %d bytes in place of the options", errProtocol, code, n)
	}
	version, actions, steps := binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:]), binary.BigEndian.Uint32(data[8:])
	known, missing := stepsOf(version)
	switch {
	case version < oldest || version > newest:
		return fmt.Errorf("%w: version %d is none of %d to %d", errProtocol, version, oldest, newest)
	case actions&^allActions != 0:
		return fmt.Errorf("%w: the filter wants actions 0x%x, offered were 0x%x", errProtocol, actions, allActions)
	}
	// What its version does not have is switched off, as Postfix does.
	s.steps = steps&known | missing
	return s.symbols(data[12:])
}

// symbols reads the lists of macros of a filter (SMFIF_SETSYMLIST): number of the stage, names.
func (s *Session) symbols(data []byte) error {
	for len(data) > 0 {
		if len(data) < 5 {
			return fmt.Errorf("%w: a list of macros is cut", errProtocol)
		}
		stage := binary.BigEndian.Uint32(data)
		names, rest, ok := bytes.Cut(data[4:], []byte{0})
		if !ok || stage >= uint32(len(symbolStages)) {
			return fmt.Errorf("%w: a list of macros for stage %d", errProtocol, stage)
		}
		if s.lists == nil {
			s.lists = map[byte][]string{}
		}
		s.lists[symbolStages[stage]] = strings.FieldsFunc(string(names), func(r rune) bool { return r == ' ' || r == ',' || r == '\t' })
		data = rest
	}
	return nil
}

// Close ends the connection.
func (s *Session) Close() error {
	s.packet(cmdQuit)
	_ = s.wire.flush(s.deadline()) // the filter may be gone
	return s.wire.close()
}

// Connect introduces the client: its name, or its address in brackets.
func (s *Session) Connect(name string, client netip.AddrPort, m Macros) (Answer, error) {
	return s.do(atConnect, m, func(w *wire) {
		w.text(name)
		a := client.Addr().Unmap().WithZone("")
		switch {
		case !a.IsValid():
			w.out = append(w.out, 'U')
			return
		case a.Is6():
			w.out = append(w.out, '6')
		default:
			w.out = append(w.out, '4')
		}
		w.out = binary.BigEndian.AppendUint16(w.out, client.Port())
		w.text(a.String())
	})
}

// Helo passes on the name in the client's greeting.
func (s *Session) Helo(name string, m Macros) (Answer, error) {
	return s.do(atHelo, m, func(w *wire) { w.text(name) })
}

// Mail begins a message. from has no brackets.
func (s *Session) Mail(from string, params []string, m Macros) (Answer, error) {
	if err := s.Abort(); err != nil {
		return Answer{}, err
	}
	s.began = true
	a, err := s.do(atMail, m, func(w *wire) { arguments(w, from, params) })
	s.began = err == nil && a.Action == Continue
	return a, err
}

// Rcpt names a recipient; the filter's decision is about that one, except for Accept and
// Discard.
func (s *Session) Rcpt(to string, params []string, m Macros) (Answer, error) {
	a, err := s.do(atRcpt, m, func(w *wire) { arguments(w, to, params) })
	if err != nil || a.Action == Accept || a.Action == Discard {
		s.began = false
	}
	return a, err
}

// RefusedRcpt names a recipient that was refused, to a filter that wants to see those; its
// answer is of no importance. Macros have the reason: {rcpt_mailer} is "error", {rcpt_host}
// the enhanced status code and {rcpt_addr} the text.
func (s *Session) RefusedRcpt(to string, params []string, m Macros) error {
	if s.steps&wantsRefused == 0 {
		return nil
	}
	_, err := s.do(atRcpt, m, func(w *wire) { arguments(w, to, params) })
	return err
}

// Data passes on DATA, or the first BDAT.
func (s *Session) Data(m Macros) (Answer, error) {
	a, err := s.do(atData, m, func(*wire) {})
	if err != nil || a.Action == Accept || a.Action == Discard {
		s.began = false
	}
	return a, err
}

// Unknown passes on a command that the server does not know.
func (s *Session) Unknown(line string, m Macros) (Answer, error) {
	return s.do(atUnknown, m, func(w *wire) { w.text(line) })
}

// arguments appends an address in brackets, and parameters.
func arguments(w *wire, addr string, params []string) {
	w.text("<" + addr + ">")
	for _, p := range params {
		w.text(p)
	}
}

// Abort ends a message that has not come to its end.
func (s *Session) Abort() error {
	if !s.began {
		return nil
	}
	s.began = false
	s.packet(cmdAbort)
	return nil // it is sent with the next step
}

func (s *Session) packet(command byte) { s.wire.end(s.wire.begin(command)) }

// do sends the macros of a step and the step, and reads the answer, each as far as the
// filter wants it.
func (s *Session) do(at step, m Macros, data func(*wire)) (Answer, error) {
	s.macros(at.command, m)
	if s.steps&at.leave != 0 {
		return Answer{}, nil
	}
	begin := s.wire.begin(at.command)
	data(s.wire)
	s.wire.end(begin)
	if s.steps&at.silent != 0 {
		if len(s.wire.out) < flushAt {
			return Answer{}, nil
		}
		if err := s.wire.flush(s.deadline()); err != nil {
			return Answer{}, s.trouble(err)
		}
		return Answer{}, nil
	}
	a, err := s.await(at)
	if err != nil {
		return Answer{}, s.trouble(err)
	}
	return a, nil
}

// macros sends the macros of a stage.
func (s *Session) macros(command byte, m Macros) {
	names, listed := s.lists[command]
	if !listed {
		names = defaultMacros[command]
	}
	at := -1
	for _, name := range names {
		value := m.value(name)
		if value == "" {
			continue
		}
		if at < 0 {
			at = s.wire.begin(cmdMacros)
			s.wire.out = append(s.wire.out, command)
		}
		s.wire.text(name)
		s.wire.text(value)
	}
	if at >= 0 {
		s.wire.end(at)
	}
}

// await sends what was written and reads the answer to a step that changes nothing.
func (s *Session) await(at step) (Answer, error) {
	if err := s.wire.flush(s.deadline()); err != nil {
		return Answer{}, err
	}
	last := s.cfg.Now().Add(maxProgress * s.cfg.Timeout)
	for deadline := s.deadline(); ; {
		code, n, err := s.wire.next(deadline)
		if err != nil {
			return Answer{}, err
		}
		data, err := s.wire.read(n)
		if err != nil {
			return Answer{}, err
		}
		if code == ansProgress {
			s.progress()
			if deadline = s.deadline(); deadline.After(last) {
				deadline = last
			}
			continue
		}
		a, ok, err := answer(code, data)
		switch {
		case err != nil:
			return Answer{}, err
		case !ok, a.Action == skip && at.command != cmdBody:
			return Answer{}, fmt.Errorf("%w: %q is no answer to %q", errProtocol, code, at.command)
		}
		return a, nil
	}
}

// deadline returns when the next read or write has to be done: a step of its own has its
// own time, those of a content share one.
func (s *Session) deadline() time.Time {
	if !s.limit.IsZero() {
		return s.limit
	}
	return s.cfg.Now().Add(s.cfg.Timeout)
}

// progress begins the time for a content anew.
func (s *Session) progress() {
	if s.limit.IsZero() {
		return
	}
	if s.limit = s.cfg.Now().Add(s.cfg.ContentTimeout); s.limit.After(s.last) {
		s.limit = s.last
	}
}

func (s *Session) trouble(err error) error { return fmt.Errorf("milter %s: %w", s.cfg.Name(), err) }
