package smtpserver

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
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
		PostOffice: "/p", Strict: true, Hostname: "mx.example.org",
		RouterDir: "router3",
		Listen:    []string{"127.0.0.1:25", "[::1]:25"},
		MaxSize:   10 << 10, MaxRecipients: 5, MaxRecipientsUnauth: 1000, MaxConnections: DefaultMaxConnections, MinRate: DefaultMinRate,
	}
	want.Access = got.Access                        // TestAccessSettingsComeFromTheConfiguration
	want.Filters = got.Filters                      // TestFilterSettingsComeFromTheConfiguration
	want.Users, want.Limits = got.Users, got.Limits // TestLimitsComeFromTheConfiguration
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if d := cmp.Diff(want, got, prefixes, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestLimitsComeFromTheConfiguration(t *testing.T) {
	c := load(t, "HOSTNAME=mx.example.org\nAUTH=file:users\nAUTHPLAINTEXT=yes\nAUTHFAILURES=off\nSMTPCONNECTIONS=7\nSMTPPERADDRESS=3\n"+
		"SMTPCONNECTRATE=60/1m\nSMTPMESSAGERATE=5/1h\nSMTPRCPTRATE=50/1h\nSMTPERRORS=4\nLIMITSEXEMPT=none\nMINFREE=5M\nMINFILES=9\nMAXLOAD=8\nSMTPBARELF=accept\n")
	got, err := ConfigFrom(c)
	if err != nil {
		t.Fatal(err)
	}
	want := LimitsConfig{Config: limits.Config{
		PerAddress: 3, Connections: limits.Rate{Count: 60, Per: time.Minute}, Messages: limits.Rate{Count: 5, Per: time.Hour},
		Recipients: limits.Rate{Count: 50, Per: time.Hour}, MinFree: 5 << 20, MinFiles: 9, MaxLoad: 8,
	}, Errors: 4, AcceptBareLF: true}
	if d := cmp.Diff(want, got.Limits, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(UsersConfig{Source: "file:users", Dir: c.Dir, Plaintext: true}, got.Users); d != "" || got.MaxConnections != 7 {
		t.Error(d, got.MaxConnections)
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
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "192.0.2.1": false, "fe80::1%lo": false,
	} {
		if got := session.Contains(got.Access.RelayNets, netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
}

func TestBadSettingIsNamedWithItsLine(t *testing.T) {
	for _, line := range []string{"SMTPLISTEN=2525", "RELAYNETS=10.0.0.0/99", "RELAYNETS=everybody",
		"AUTH=ldap:x", "LIMITSEXEMPT=all"} {
		_, err := ConfigFrom(load(t, "HOSTNAME=x\n"+line+"\n"))
		if bad := (*config.Error)(nil); !errors.As(err, &bad) || bad.Line != 2 {
			t.Errorf("%s: %v", line, err)
		}
	}
}
