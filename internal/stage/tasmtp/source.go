package tasmtp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/agent"
)

// Source is an address of ours that connections are made from.
type Source struct {
	Addr netip.Addr
	Helo string // our name there; "": that of the zone
}

// source is one in use.
type source struct {
	addr   netip.Addr
	helo   string
	warned atomic.Bool // that it cannot be used
}

// origin is where a message's connections come from, for each family of addresses.
// The zero value leaves it to the system.
type origin struct{ v4, v6 *source }

// has reports whether a connection from a source can be used.
func (o origin) has(s *source) bool { return s == o.v4 || s == o.v6 }

// zone is the sources that an agent may use.
type zone struct{ v4, v6 []*source }

func newZone(list []Source, helo string) (z zone, err error) {
	for _, s := range list {
		name := helo
		if s.Helo != "" {
			if name, err = helloName(s.Helo); err != nil {
				return z, fmt.Errorf("source %s: %w", s.Addr, err)
			}
		}
		family := &z.v4
		if s.Addr.Is6() {
			family = &z.v6
		}
		*family = append(*family, &source{addr: s.Addr, helo: name})
	}
	return z, nil
}

// of returns a message's origin. It is the same for all attempts of the message, in this
// life of the agent and in later ones (Z16), unless a rule on replies asked for the
// next one; other messages have others.
func (z *zone) of(d *agent.Delivery, rcpts []*agent.Recipient) (o origin) {
	if len(z.v4) == 0 && len(z.v6) == 0 {
		return o
	}
	n := d.ID().Turn() + uint64(moves(d, rcpts))
	if len(z.v4) > 0 {
		o.v4 = z.v4[n%uint64(len(z.v4))]
	}
	if len(z.v6) > 0 {
		o.v6 = z.v6[n%uint64(len(z.v6))]
	}
	return o
}

// source returns the one to use towards a target; false: the zone has none of its family.
func (o origin) source(t target) (*source, bool) {
	host, err := netip.ParseAddrPort(t.address)
	if err != nil || o == (origin{}) {
		return nil, true
	}
	s := o.v4
	if host.Addr().Is6() {
		s = o.v6
	}
	return s, s != nil
}

// bind has a dialer connect from a source. The port is chosen when the other end is
// known, so that one source serves many connections.
func (s *source) bind(d *net.Dialer) {
	d.LocalAddr = &net.TCPAddr{IP: s.addr.AsSlice(), Zone: s.addr.Zone()}
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			// Without it there are fewer ports, and that is all.
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		})
	}
}

// unusable reports whether an error is one of bind(2): the trouble is ours, not the host's.
func unusable(err error) bool {
	call := (*os.SyscallError)(nil)
	return errors.As(err, &call) && call.Syscall == "bind"
}

// sourceRefusal returns the result of a source that cannot be used. Other sources are not
// tried: a message keeps its own.
func (r *connector) sourceRefusal(s *source, err error) *refusal {
	if !s.warned.Swap(true) {
		r.log.Error("source-unusable", "source", s.addr, "reason", cause(err),
			"advice", "give the address to an interface of this machine, or take it out of sources= in scheduler.conf; mail from it waits")
	}
	return &refusal{code: badSetup, weight: weightOurs, reply: fmt.Sprintf("source %s cannot be used on this machine: %v", s.addr, cause(err))}
}

// noSource returns the result of a target that the zone has no address for.
func noSource(t target) *refusal {
	return &refusal{code: status.Code{Class: 4, Subject: 3, Detail: 5}, weight: weightOurs,
		reply: "no source of the zone is of the family of " + t.address}
}

// Zone reads the environment that the scheduler sets for a zone: SOURCES, addresses
// separated by commas, each with =NAME for our name there, and HELO, our name in the zone. Its errors
// are *config.Error.
func (c *Config) Zone(getenv func(string) string) error {
	if err := c.Security.clause(getenv); err != nil {
		return err
	}
	for word := range strings.FieldsFuncSeq(getenv("SOURCES"), func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		text, name, _ := strings.Cut(word, "=")
		addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if err != nil {
			return &config.Error{File: "environment", Reason: "SOURCES: " + word + " is no address", Err: err}
		}
		if name != "" {
			if _, err := helloName(name); err != nil {
				return &config.Error{File: "environment", Reason: "SOURCES: " + word + ": the name cannot be used", Err: err}
			}
		}
		c.Sources = append(c.Sources, Source{Addr: addr.Unmap(), Helo: name})
	}
	if c.Helo = getenv("HELO"); c.Helo != "" {
		if _, err := helloName(c.Helo); err != nil {
			return &config.Error{File: "environment", Reason: "HELO: " + c.Helo + " cannot be used", Err: err}
		}
	}
	return nil
}
