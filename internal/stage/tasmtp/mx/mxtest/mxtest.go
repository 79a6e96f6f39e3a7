// Package mxtest is a name server for tests: real questions over UDP and TCP on
// 127.0.0.1, answers from a zone's text, and faults on demand.
package mxtest

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"

	"github.com/miekg/dns"
)

// Server answers from its zone. A name that has no record and is above none does
// not exist.
type Server struct {
	Addr string // host:port

	mu      sync.Mutex
	zone    []dns.RR
	faults  map[string]func(m *dns.Msg) bool // by lower-case name with final dot, and type if it counts
	counts  map[string]int                   // "name TYPE" asked
	overTCP int
	lazy    bool
	signed  []string // with final dots
}

// Start serves a zone, in master file format, until the test ends.
func Start(t testing.TB, zone string) *Server {
	t.Helper()
	s := &Server{faults: map[string]func(*dns.Msg) bool{}, counts: map[string]int{}}
	s.SetZone(t, zone)
	tcp, udp := listen(t)
	s.Addr = tcp.Addr().String()
	for _, srv := range []*dns.Server{
		{Listener: tcp, Handler: s.answer(true)},
		{PacketConn: udp, Handler: s.answer(false)},
	} {
		started := make(chan struct{})
		ended := make(chan error, 1)
		srv.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- srv.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			assert.NoError(t, errors.Join(srv.Shutdown(), <-ended))
		})
	}
	return s
}

// listen finds a port that is free for both.
func listen(t testing.TB) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 50 {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		assert.Must(t, err)
		udp, err := net.ListenPacket("udp", tcp.Addr().String())
		if err == nil {
			return tcp, udp
		}
		tcp.Close()
	}
	t.Fatal("no port is free for TCP and UDP")
	return nil, nil
}

// SetZone replaces the zone.
func (s *Server) SetZone(t testing.TB, zone string) {
	t.Helper()
	p := dns.NewZoneParser(strings.NewReader(zone), ".", "zone")
	var rrs []dns.RR
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		rrs = append(rrs, rr)
	}
	assert.Must(t, p.Err())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone = rrs
}

// Fail answers the next n questions about a name, "a.test" or of one type only,
// "a.test AAAA", with a code.
func (s *Server) Fail(name string, code, n int) {
	var mu sync.Mutex
	s.fault(name, func(m *dns.Msg) bool {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return true
		}
		n--
		m.Rcode = code
		return true
	})
}

// Silence leaves questions about a name without an answer.
func (s *Server) Silence(name string) {
	s.fault(name, func(*dns.Msg) bool { return false })
}

// RefuseEDNS answers questions with EDNS about a name as an old server does.
func (s *Server) RefuseEDNS(name string) {
	s.fault(name, func(m *dns.Msg) bool {
		if m.IsEdns0() != nil {
			m.Rcode = dns.RcodeFormatError
		}
		return true
	})
}

// Hold calls f before a question about a name is answered.
func (s *Server) Hold(name string, f func()) {
	s.fault(name, func(*dns.Msg) bool { f(); return true })
}

// Sign makes the server call answers about a name and all below it validated, if nothing
// else is in them.
func (s *Server) Sign(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.signed = append(s.signed, dns.CanonicalName(name))
	}
}

// validated reports whether all owners in an answer are signed.
func (s *Server) validated(m *dns.Msg) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := []string{m.Question[0].Name}
	for _, rr := range m.Answer {
		owners = append(owners, rr.Header().Name)
	}
	return !slices.ContainsFunc(owners, func(owner string) bool {
		return !slices.ContainsFunc(s.signed, func(zone string) bool { return dns.IsSubDomain(zone, owner) })
	})
}

func (s *Server) fault(name string, f func(*dns.Msg) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, qtype, typed := strings.Cut(name, " ")
	name = dns.CanonicalName(name)
	if typed {
		name += " " + qtype
	}
	s.faults[name] = f
}

// Lazy makes the server return an alias without its target.
func (s *Server) Lazy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lazy = true
}

// Asked counts the questions for a name and type, "MX" say.
func (s *Server) Asked(name, qtype string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[dns.CanonicalName(name)+" "+qtype]
}

// OverTCP counts the questions that came by TCP.
func (s *Server) OverTCP() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overTCP
}

func (s *Server) answer(tcp bool) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		name := dns.CanonicalName(q.Question[0].Name)
		qtype := q.Question[0].Qtype
		s.mu.Lock()
		s.counts[name+" "+dns.TypeToString[qtype]]++
		if tcp {
			s.overTCP++
		}
		fault := s.faults[name]
		if f, ok := s.faults[name+" "+dns.TypeToString[qtype]]; ok {
			fault = f
		}
		s.mu.Unlock()

		m := new(dns.Msg).SetReply(q)
		m.RecursionAvailable = true
		if fault != nil {
			// The fault sees whether the question had EDNS.
			m.Extra = q.Extra
			answered := fault(m)
			m.Extra = nil
			if !answered {
				return
			}
		}
		if m.Rcode == dns.RcodeSuccess {
			s.fill(m, name, qtype)
		}
		// RFC 6840 §5.8: only clients that ask get the flag.
		m.AuthenticatedData = q.AuthenticatedData && m.Rcode != dns.RcodeServerFailure && s.validated(m)
		size := dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			size = int(opt.UDPSize())
		}
		if !tcp {
			m.Truncate(size)
		}
		w.WriteMsg(m)
	}
}

// fill puts records into an answer, following aliases unless the server is lazy.
func (s *Server) fill(m *dns.Msg, name string, qtype uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 20 {
		exists, next := false, ""
		for _, rr := range s.zone {
			owner := dns.CanonicalName(rr.Header().Name)
			exists = exists || owner == name || dns.IsSubDomain(name, owner)
			if owner != name {
				continue
			}
			if c, ok := rr.(*dns.CNAME); ok {
				next = dns.CanonicalName(c.Target)
				m.Answer = append(m.Answer, rr)
			} else if rr.Header().Rrtype == qtype {
				m.Answer = append(m.Answer, rr)
			}
		}
		if next == "" || s.lazy {
			if !exists {
				m.Rcode = dns.RcodeNameError
			}
			break
		}
		name = next
	}
	m.Ns = append(m.Ns, &dns.SOA{
		Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60},
		Ns:  "ns.test.", Mbox: "hostmaster.test.", Serial: 1, Minttl: uint32(30 * time.Second / time.Second),
	})
}
