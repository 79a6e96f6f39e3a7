package nameserver

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
)

func TestNameServersFromAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	now := time.Unix(1795220010, 0)
	cfg := Config{Conf: file, Now: func() time.Time { return now }}
	var l serverList
	if _, err := l.get(&cfg); err == nil {
		t.Error("no error for a file that is not there")
	}
	write("nameserver 192.0.2.1\nnameserver 2001:db8::1\n")
	check := func(want ...string) {
		t.Helper()
		if got, err := l.get(&cfg); err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	check("192.0.2.1:53", "[2001:db8::1]:53")
	write("# nothing\n")
	check("192.0.2.1:53", "[2001:db8::1]:53")
	now = now.Add(confPeriod)
	check("127.0.0.1:53")
	assert.Must(t, os.Remove(file))
	now = now.Add(confPeriod)
	check("127.0.0.1:53")
	l = serverList{}
	cfg.Server = "192.0.2.7"
	check("192.0.2.7:53")
}

// Of many servers that know nothing the first Most are asked, each Attempts times; one that answers ends
// the question.
func TestAsManyServersAreAskedAsAreToBe(t *testing.T) {
	var asked [5]atomic.Int32
	var addrs []string
	for i := range asked {
		c := assert.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
		addrs = append(addrs, c.LocalAddr().String())
		s := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			asked[i].Add(1)
			rcode := dns.RcodeServerFailure
			if i == 1 && q.Question[0].Name == "known.example." {
				rcode = dns.RcodeNameError
			}
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, rcode))
		})}
		go func() { _ = s.ActivateAndServe() }()
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	for name, want := range map[string]struct {
		asked [5]int32
		err   bool
	}{
		"known.example.":                       {[5]int32{1, 1}, false},
		"unknown.example.":                     {[5]int32{2, 2, 2}, true},
		strings.Repeat("a.", 127) + "example.": {[5]int32{}, false},
	} {
		for i := range asked {
			asked[i].Store(0)
		}
		c := New(Config{Server: "given", Total: time.Minute, Most: 3})
		c.servers.servers = addrs
		m, err := c.Exchange(context.Background(), name, dns.TypeA)
		var got [5]int32
		for i := range asked {
			got[i] = asked[i].Load()
		}
		if got != want.asked || (err != nil) != want.err || err == nil && m.Rcode != dns.RcodeNameError {
			t.Errorf("%.20s: asked %v, want %v; %v", name, got, want.asked, err)
		}
	}
}
