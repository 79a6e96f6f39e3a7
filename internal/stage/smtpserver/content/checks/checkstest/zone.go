// Package checkstest has what tests of checks need: a name server on loopback and keys
// that sign messages. DNS does not leave the machine.
package checkstest

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
)

// Zone is a name server on loopback. A name that is not in it does not exist; one that
// begins with broken. is answered SERVFAIL, one with silent. not at all.
type Zone struct {
	mu      sync.Mutex
	records []dns.RR
	asked   []string
}

// Serve starts a name server and gives its address.
func Serve(t testing.TB, lines ...string) (*Zone, string) {
	t.Helper()
	return ServeAt(t, "127.0.0.1:0", lines...)
}

// ServeAt starts a name server at an address of this machine.
func ServeAt(t testing.TB, addr string, lines ...string) (*Zone, string) {
	t.Helper()
	z := &Zone{}
	for _, l := range lines {
		rr, err := dns.NewRR(l)
		assert.Must(t, err)
		z.records = append(z.records, rr)
	}
	var pc net.PacketConn
	var tcp net.Listener
	for tries := 0; tcp == nil; tries++ {
		var err error
		if pc, err = net.ListenPacket("udp", addr); err != nil {
			t.Fatal(err)
		}
		// A port that is free for one may be somebody's for the other.
		if tcp, err = net.Listen("tcp", pc.LocalAddr().String()); err != nil {
			_ = pc.Close()
			if tries == 10 || !strings.HasSuffix(addr, ":0") {
				t.Fatal(err)
			}
		}
	}
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: z}, {Listener: tcp, Handler: z}} {
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		done := make(chan error, 1)
		go func() { done <- s.ActivateAndServe() }()
		<-up
		t.Cleanup(func() {
			assert.NoError(t, s.Shutdown())
			<-done
		})
	}
	return z, pc.LocalAddr().String()
}

// ServeDNS implements dns.Handler.
func (z *Zone) ServeDNS(w dns.ResponseWriter, ask *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	q := ask.Question[0]
	z.asked = append(z.asked, dns.TypeToString[q.Qtype]+" "+q.Name)
	m := new(dns.Msg).SetReply(ask)
	switch {
	case strings.Contains(q.Name, "silent."):
		return
	case strings.Contains(q.Name, "broken."):
		m.Rcode = dns.RcodeServerFailure
	default:
		m.Rcode = dns.RcodeNameError
		for _, rr := range z.records {
			if strings.EqualFold(rr.Header().Name, q.Name) {
				m.Rcode = dns.RcodeSuccess
				if rr.Header().Rrtype == q.Qtype {
					m.Answer = append(m.Answer, rr)
				}
			}
		}
	}
	if _, tcp := w.RemoteAddr().(*net.TCPAddr); !tcp {
		m.Truncate(dns.MinMsgSize)
	}
	_ = w.WriteMsg(m) // the client asks again
}

// Count returns how many questions came.
func (z *Zone) Count() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return len(z.asked)
}
