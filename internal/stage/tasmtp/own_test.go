package tasmtp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// conf reads a zmailer.conf.
func conf(t *testing.T, text string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "zmailer.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Net3: what reaches a listener of ours, whatever its address looks like.
func TestNet3OwnAddresses(t *testing.T) {
	cases := map[string]struct {
		listen   string
		port     int
		ours     string
		notOurs  string
		settings string
	}{
		"one address":  {listen: "192.0.2.1:25", port: 25, ours: "192.0.2.1 ::ffff:192.0.2.1", notOurs: "192.0.2.2 127.0.0.1 0.0.0.0 ::1"},
		"another port": {listen: "192.0.2.1:2525", port: 25, notOurs: "192.0.2.1 127.0.0.1"},
		"any, IPv4":    {listen: "0.0.0.0:25", port: 25, ours: "127.0.0.1 127.9.9.9 ::ffff:127.0.0.1 0.0.0.0 ::ffff:0.0.0.0 :: 192.0.2.1", notOurs: "192.0.2.2 2001:db8::1 ::1"},
		"any, IPv6":    {listen: "[::]:25", port: 25, ours: "127.0.0.1 127.9.9.9 ::1 :: 0.0.0.0 192.0.2.1 2001:db8::1", notOurs: "192.0.2.2 2001:db8::2"},
		"no host":      {listen: ":25", port: 25, ours: "127.0.0.1 ::1 192.0.2.1 2001:db8::1", notOurs: "192.0.2.2"},
		"loopback":     {listen: "127.0.0.1:25", port: 25, ours: "127.0.0.1 ::ffff:127.0.0.1 0.0.0.0 ::", notOurs: "127.0.0.2 192.0.2.1"},
		"mapped":       {listen: "[::ffff:127.0.0.1]:25", port: 25, ours: "127.0.0.1 0.0.0.0", notOurs: "127.0.0.2"},
		"by name":      {listen: "localhost:25", port: 25, ours: "127.0.0.1 ::1", notOurs: "192.0.2.1"},
		"submission":   {settings: "SUBMISSIONLISTEN=0.0.0.0:587\nSUBMISSIONSLISTEN=192.0.2.1:465\n", listen: "off", port: 587, ours: "192.0.2.1 127.0.0.1", notOurs: "192.0.2.2"},
		"none":         {listen: "off", port: 25, notOurs: "127.0.0.1 0.0.0.0 192.0.2.1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := own{listeners: ownListeners(conf(t, "SMTPLISTEN="+c.listen+"\n"+c.settings)), now: time.Now, interfaces: func() ([]net.Addr, error) {
				_, a, _ := net.ParseCIDR("192.0.2.1/24")
				_, b, _ := net.ParseCIDR("2001:db8::1/64")
				a.IP, b.IP = net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1")
				return []net.Addr{a, b}, nil
			}}
			for list, want := range map[string]bool{c.ours: true, c.notOurs: false} {
				for _, text := range strings.Fields(list) {
					if got := o.has(netip.MustParseAddr(text), c.port); got != want {
						t.Errorf("%s: got %v, want %v", text, got, want)
					}
				}
			}
		})
	}
}

// Net3: a domain whose MX leads to our own listener fails before anything is connected to,
// and a server that is not better than we are is not tried.
func TestNet3DomainThatLeadsToOurselves(t *testing.T) {
	server := mxtest.Start(t, `
zero.test.    300 IN MX 10 zero.mx.test.
loop.test.    300 IN MX 10 loop.mx.test.
bare.test.    300 IN A  127.0.0.7
behind.test.  300 IN MX 10 loop.mx.test.
behind.test.  300 IN MX 20 good.mx.test.
better.test.  300 IN MX 10 good.mx.test.
better.test.  300 IN MX 20 loop.mx.test.
zero.mx.test. 300 IN A  0.0.0.0
loop.mx.test. 300 IN A  127.0.0.7
good.mx.test. 300 IN A  127.0.0.1
`)
	sink := new(Sink).Start(t, "", "")
	_, port, _ := net.SplitHostPort(sink.Addr())
	text := fmt.Sprintf("SMTPPORT=%s\nSMTPLISTEN=127.0.0.7:%s\nHOSTNAME=here.test\nRESOLVER=%s\n", port, port, server.Addr)
	cfg, err := ConfigFrom(conf(t, text))
	if err != nil {
		t.Fatal(err)
	}
	s := newStation(t, sink.Port(), server.Addr, func(c *Config) { c.Listeners = cfg.Listeners })
	for _, host := range []string{"zero.test", "loop.test", "bare.test", "behind.test"} {
		a := s.one("smtp", host)
		if a.Word != taproto.Error2 || !strings.Contains(a.Text, "loops back to") {
			t.Errorf("%s: got %+v, want a failure", host, a)
		}
	}
	if got := sink.Connects(); got != 0 {
		t.Errorf("%d connections, want none", got)
	}
	if a := s.one("smtp", "better.test"); a.Word != taproto.OK3 {
		t.Errorf("better.test: got %+v", a)
	}
	// The postmaster's own routes are as they are.
	if a := s.one("smtp", "[127.0.0.1]"); a.Word != taproto.OK3 {
		t.Errorf("by address: got %+v", a)
	}
}
