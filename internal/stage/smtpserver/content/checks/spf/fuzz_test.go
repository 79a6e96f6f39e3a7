package spf

import (
	"context"
	"net"
	"net/netip"
	"testing"
)

// fixed is a DNS in which every name has the same record.
type fixed struct {
	text  string
	asked *int
}

func (f fixed) LookupTXT(context.Context, string) ([]string, error) {
	*f.asked++
	return []string{f.text}, nil
}

func (f fixed) LookupMX(context.Context, string) ([]*net.MX, error) {
	*f.asked++
	return []*net.MX{{Host: "mx.example.org."}, {Host: "."}}, nil
}

func (f fixed) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	*f.asked++
	return nil, &net.DNSError{IsNotFound: true}
}

func (f fixed) LookupAddr(context.Context, string) ([]string, error) {
	*f.asked++
	return []string{"host.example.org."}, nil
}

// Whatever a domain publishes, there is a result after a bounded number of questions.
func FuzzRecord(f *testing.F) {
	for _, text := range []string{"v=spf1 a mx/24//64 ptr:%{p} exists:%{ir}.%{l1r+}._spf.%{d} include:%{o} -all", "v=spf1 redirect=%{S}.example.org exp=%{h}.x",
		"v=spf1 ip4:192.0.2.0/24 ip6:2001:db8::/32 ~all", "v=spf1 a:%%%_%-.x.org x=%{v}"} {
		f.Add(text, "192.0.2.1", "ann@example.org")
		f.Add(text, "2001:db8::1", "example.org")
	}
	f.Fuzz(func(t *testing.T, text, client, sender string) {
		addr, err := netip.ParseAddr(client)
		if err != nil {
			return
		}
		asked := 0
		switch r := Check(t.Context(), fixed{text, &asked}, addr, "helo.example", sender); r {
		case None, Neutral, Pass, Fail, SoftFail, TempError, PermError:
		default:
			t.Errorf("result %q", r)
		}
		if most := 1 + maxTerms*(1+maxHosts) + 1 + maxHosts; asked > most {
			t.Errorf("%d questions", asked)
		}
	})
}
