package smtpserver

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zmailer/internal/config"
)

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "zmailer.conf")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSettingsComeFromTheConfiguration(t *testing.T) {
	c := load(t, "POSTOFFICE=/p\nHOSTNAME=mx.example.org\nSYNC=strict\nROUTERDIRS=\"router2 router3\"\nSMTPPRIORITY=2\nSMTPLISTEN=\"127.0.0.1:25 [::1]:25\"\n"+
		"RELAYNETS=\"192.0.2.77/24, 2001:db8::1\"\nMAXSIZE=10k\nMAXRCPT=5\n")
	got, err := ConfigFrom(c)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		PostOffice: "/p", Strict: true, Hostname: "mx.example.org", LocalNames: filepath.Join(c.Dir, "localnames"),
		RouterDir: "router3",
		Listen:    []string{"127.0.0.1:25", "[::1]:25"},
		RelayNets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128")},
		MaxSize:   10 << 10, MaxRecipients: 5, MaxConnections: DefaultMaxConnections, MinRate: DefaultMinRate,
	}
	want.Access = got.Access   // TestAccessSettingsComeFromTheConfiguration
	want.Filters = got.Filters // TestFilterSettingsComeFromTheConfiguration
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if d := cmp.Diff(want, got, prefixes, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestOnlyLoopbackIsListenedToUnlessTold(t *testing.T) {
	got, err := ConfigFrom(load(t, "HOSTNAME=mx.example.org\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"127.0.0.1:2525"}, got.Listen); d != "" {
		t.Error(d)
	}
	r := newRelay(got.RelayNets, got.Hostname, "", nil)
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "192.0.2.1": false, "fe80::1%lo": false,
	} {
		if got := r.trusts(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
}

func TestBadSettingIsNamedWithItsLine(t *testing.T) {
	for _, line := range []string{"SMTPLISTEN=2525", "RELAYNETS=10.0.0.0/99", "RELAYNETS=everybody"} {
		_, err := ConfigFrom(load(t, "HOSTNAME=x\n"+line+"\n"))
		if bad := (*config.Error)(nil); !errors.As(err, &bad) || bad.Line != 2 {
			t.Errorf("%s: %v", line, err)
		}
	}
}
