package tasmtp

import (
	"fmt"
	"net"
	"testing"
)

func TestHostForms(t *testing.T) {
	cases := map[string]struct{ channel, host, want string }{
		"name":                     {"smtp", "Example.TEST", "mx example.test 25"},
		"final dot":                {"smtp", "example.test.", "mx example.test 25"},
		"name and port":            {"smtp", "example.test:2525", "example.test 2525"},
		"name in brackets":         {"smtp", "[example.test]", "example.test 25"},
		"name in brackets, port":   {"smtp", "[example.test]:26", "example.test 26"},
		"IPv4":                     {"smtp", "[192.0.2.1]", "192.0.2.1 25"},
		"IPv4 and port":            {"smtp", "[192.0.2.1]:26", "192.0.2.1 26"},
		"IPv4 without brackets":    {"smtp", "192.0.2.1", "192.0.2.1 25"},
		"IPv6":                     {"smtp", "[2001:db8::1]", "2001:db8::1 25"},
		"IPv6 with RFC 5321's tag": {"smtp", "[IPv6:2001:db8::1]:26", "2001:db8::1 26"},
		"IPv6 without brackets":    {"smtp", "2001:db8::1", "2001:db8::1 25"},
		"mapped IPv4":              {"smtp", "[::ffff:192.0.2.1]", "192.0.2.1 25"},
		"smtpx":                    {"smtpx", "example.test", "example.test 25"},
		"a channel like smtp":      {"smtp-slow", "example.test", "mx example.test 25"},
		"IDN":                      {"smtp", "bücher.example", "mx xn--bcher-kva.example 25"},
		"lmtp":                     {"lmtp", "example.test:2003", "lmtp example.test 2003"},
		"lmtp, no port":            {"lmtp", "example.test", "lmtp example.test 24"},
		"lmtp, socket":             {"lmtp", "unix:/run/Lmtp.sock", "lmtp unix /run/Lmtp.sock"},
		"lmtp, relative path":      {"lmtp", "unix:lmtp.sock", `the routing table has a host that cannot be: "unix:lmtp.sock": a socket's path begins with /`},
		"name that cannot exist":   {"smtp", "a..b", `domain "a..b": empty label in the domain`},
		"brackets in brackets":     {"smtp", "[[::1]]", `the routing table has a host that cannot be: "[[::1]]": neither port nor end after ]`},
		"empty":                    {"smtp", "", `the routing table has a host that cannot be: "": no name`},
		"bracket open":             {"smtp", "[192.0.2.1", `the routing table has a host that cannot be: "[192.0.2.1": [ without ]`},
		"text after bracket":       {"smtp", "[192.0.2.1]x", `the routing table has a host that cannot be: "[192.0.2.1]x": neither port nor end after ]`},
		"port zero":                {"smtp", "example.test:0", `the routing table has a host that cannot be: "example.test:0": no port: "0"`},
		"port too big":             {"smtp", "example.test:65536", `the routing table has a host that cannot be: "example.test:65536": no port: "65536"`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, err := parseDestination(c.channel, c.host, 25)
			got := d.words()
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func (d destination) words() string {
	s := ""
	if d.lmtp {
		s = "lmtp "
	}
	if d.mx {
		s += "mx "
	}
	switch {
	case d.unix != "":
		return s + "unix " + d.unix
	case d.addr.IsValid():
		s += d.addr.String()
	}
	return s + d.name + fmt.Sprintf(" %d", d.port)
}

func FuzzDestination(f *testing.F) {
	for _, s := range []string{"a.test", "[::1]:25", "a:1", "unix:/x", "[", "]", ":", "[]:1"} {
		f.Add("smtp", s)
		f.Add("lmtp", s)
	}
	f.Fuzz(func(t *testing.T, channel, host string) {
		d, err := parseDestination(channel, host, 25)
		if err != nil {
			return
		}
		n := 0
		for _, set := range []bool{d.name != "", d.addr.IsValid(), d.unix != ""} {
			if set {
				n++
			}
		}
		if n != 1 || d.mx && d.name == "" || d.port < 1 || d.port > 65535 {
			t.Errorf("%q: got %+v", host, d)
		}
	})
}

func TestRemoteIsNamedAsInReports(t *testing.T) {
	local := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 40000}
	cases := map[string]struct {
		t     target
		local net.Addr
		want  string
	}{
		"address":       {target{"tcp", "192.0.2.1:25", ""}, local, "X-IP-addr; [192.0.2.1] (192.0.2.1|25|192.0.2.9|40000)"},
		"name":          {target{"tcp", "192.0.2.1:25", "mx.test"}, local, "dns; mx.test (192.0.2.1|25|192.0.2.9|40000)"},
		"not connected": {target{"tcp", "[2001:db8::1]:25", "mx.test"}, nil, "dns; mx.test (2001:db8::1|25)"},
		"unix":          {target{"unix", "/run/lmtp.sock", ""}, local, "x-unix; /run/lmtp.sock"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := c.t.remote(c.local); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
