package session

import (
	"net/netip"
	"strings"
	"testing"
	"unicode"
)

func TestXFORWARDAttributes(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	unknown := UnknownClient()
	for name, test := range map[string]struct {
		args string // commands, parted by ;
		want Forwarded
		bad  bool
	}{
		"all": {args: "NAME=mx.far.example ADDR=192.0.2.1 PORT=7 PROTO=ESMTPS;HELO=far.example IDENT=S1A source=remote",
			want: Forwarded{at("192.0.2.1:7"), "mx.far.example", "far.example", "ESMTPS", "S1A", "REMOTE"}},
		"IPv6":                         {args: "ADDR=IPV6:2001:db8::1", want: Forwarded{Addr: at("[2001:db8::1]:0")}},
		"port first":                   {args: "PORT=9;ADDR=192.0.2.1", want: Forwarded{Addr: at("192.0.2.1:0")}},
		"unavailable":                  {args: "NAME=[UNAVAILABLE] ADDR=[unavailable] PORT=[UNAVAILABLE]", want: Forwarded{Addr: unknown}},
		"a later one counts":           {args: "ADDR=192.0.2.1 NAME=a;ADDR=[UNAVAILABLE]", want: Forwarded{Addr: unknown, Name: "a"}},
		"local":                        {args: "SOURCE=LOCAL;IDENT=S1A", want: Forwarded{Ident: "S1A", Source: "LOCAL"}},
		"what breaks a Received field": {args: "HELO=x+20(a)+3C[192.0.2.9] IDENT=a+22b PROTO=a+3Bb", want: Forwarded{Addr: unknown, Helo: "x??a??[192.0.2.9]", Ident: "a?b", Protocol: "a?b"}},
		"xtext":                        {args: "IDENT=a+2Eb", want: Forwarded{Addr: unknown, Ident: "a.b"}},
		"a line end":                   {args: "HELO=x+0D+0Ay", bad: true},
		"a NUL":                        {args: "IDENT=x+00", bad: true},
		"half a quote":                 {args: "HELO=x+4", bad: true},
		"too long":                     {args: "HELO=" + strings.Repeat("x", 256), bad: true},
		"a long protocol":              {args: "PROTO=" + strings.Repeat("x", 65), bad: true},
		"no address":                   {args: "ADDR=far.example", bad: true},
		"a zone":                       {args: "ADDR=IPV6:fe80::1%eth0", bad: true},
		"no port":                      {args: "PORT=65536", bad: true},
		"no name":                      {args: "NAME=a(b", bad: true},
		"no source":                    {args: "SOURCE=HERE", bad: true},
		"a user":                       {args: "LOGIN=ann", bad: true},
		"nothing":                      {args: "", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := Forwarded{Addr: UnknownClient()}
			var err error
			for arg := range strings.SplitSeq(test.args, ";") {
				if err == nil {
					err = got.parse(arg)
				}
			}
			if test.bad != (err != nil) || err == nil && got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func FuzzXFORWARD(f *testing.F) {
	for _, seed := range []string{"ADDR=192.0.2.1 NAME=a.b PORT=1 HELO=x IDENT=ann+40b PROTO=SMTP SOURCE=LOCAL", "ADDR=IPV6:::1", "NAME=[UNAVAILABLE]", "=+", "a=+0D"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		v := Forwarded{Addr: UnknownClient()}
		if v.parse(arg) != nil {
			return
		}
		for _, text := range []string{v.Name, v.Helo, v.Protocol, v.Ident, v.Source, v.String()} {
			if len(text) > 3*maxAttribute || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune(" ()<>\"\\;", r) }) {
				t.Errorf("%q", text)
			}
		}
	})
}
