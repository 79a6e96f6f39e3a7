package smtpserver

import (
	"net"
	"testing"

	"github.com/miekg/dns"
)

// startZone serves records, NAME to "TYPE VALUE", on loopback until the test ends; it
// gives its host:port.
func startZone(t *testing.T, records map[string]string) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		text, ok := records[q.Question[0].Name]
		if !ok {
			m.Rcode = dns.RcodeNameError
		} else if rr, err := dns.NewRR(q.Question[0].Name + " 60 IN " + text); err == nil && rr.Header().Rrtype == q.Question[0].Qtype {
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m)
	})
	started := make(chan struct{})
	s := &dns.Server{PacketConn: conn, Handler: answer, NotifyStartedFunc: func() { close(started) }}
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return conn.LocalAddr().String()
}
