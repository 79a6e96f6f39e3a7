package smtpserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
	"zmailer/internal/stage/smtpserver/policy/greylist"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/internal/table"
	"zmailer/internal/wire/milter"
)

func load(t *testing.T, lines ...string) (*config.Config, Config, error) {
	t.Helper()
	dir := files(t, map[string]string{"zmailer.conf": "HOSTNAME=mx.example.org\n" + strings.Join(lines, "\n") + "\n"})
	c, err := config.Load(filepath.Join(dir, "zmailer.conf"))
	if err != nil {
		return nil, Config{}, err
	}
	got, err := ConfigFrom(c)
	return c, got, err
}

func TestSettingsComeFromTheConfiguration(t *testing.T) {
	c, got, err := load(t, "POSTOFFICE=/p", "SYNC=strict", `ROUTERDIRS="router2 router3"`, "SMTPPRIORITY=2", `SMTPLISTEN="127.0.0.1:25 [::1]:25"`,
		`RELAYNETS="192.0.2.77/24, 2001:db8::1"`, "MAXSIZE=10k", "MAXRCPT=5", "SMTPMEMORY=9M",
		"AUTH=file:users", "AUTHPLAINTEXT=yes", "AUTHMX=yes", "AUTHFAILURES=off", "SMTPCONNECTIONS=7", "SMTPPERADDRESS=3",
		"SMTPCONNECTRATE=60/1m", "SMTPMESSAGERATE=5/1h", "SMTPRCPTRATE=50/1h", "SMTPSENDERMESSAGERATE=6/1h", "SMTPSENDERRCPTRATE=7/1h", "RATELIMITS=rates", "SMTPERRORS=4", "LIMITSEXEMPT=none", "MINFREE=5M", "MINFILES=9", "MAXLOAD=8", "SMTPBARELF=accept",
		"HEADERNETS=192.0.2.0/24", "RULESEXEMPT=192.0.2.0/24", "REINJECTLISTEN=127.0.0.1:10025", "REINJECTNETS=192.0.2.0/24", "HEADERFROM=login", "BODYRULESSIZE=3k", `CHECKS="spf dkim dmarc"`, "RESOLVER=127.0.0.1:53", "CHECKTIME=3s", `MILTERS="unix:/m inet:localhost:1, { inet:localhost:2, connect_timeout=4s, command_timeout=5 content_timeout=1m, default_action=quarantine }"`, "MILTERTIME=1s", "MILTERCONTENTTIME=2m", "MILTERTROUBLE=accept",
		`LOCALNAMES="localnames db:names"`, "SENDERLOGIN=senders", "LOOKUPTIMEOUT=7s", "ETRNNETS=192.0.2.0/24",
		"RCPTCHECK=yes", "RCPTCHECKTIME=2s", "RCPTCHECKKEEP=1h", "RCPTCHECKTROUBLE=defer", "ADDRESSVERIFYENTRIES=8",
		`DNSBL_SITES="zen.example=127.0.0.[2..11]*3 allow.example*-2"`, "DNSBL_THRESHOLD=3", "DNSBL_ACTION=ignore", "DNSBL_TIMEOUT=4s",
		"PREGREETWAIT=6s", "PREGREETACTION=drop", "PREGREETKEEP=2h", "GREYLIST=rules", "GREYLISTDELAY=1m", "GREYLISTRETRY=1h", "GREYLISTKEEP=2d", "GREYLISTALLOW=0", "GREYLISTENTRIES=9", `GREYLISTEXEMPT="spf dnswl"`)
	assert.Must(t, err)
	net24 := netip.MustParsePrefix("192.0.2.0/24")
	want := Config{
		PostOffice: "/p", Strict: true, Hostname: "mx.example.org", RouterDir: "router3",
		Ports:         Ports{Listen: map[session.Role][]string{session.RoleMX: {"127.0.0.1:25", "[::1]:25"}, session.RoleReinject: {"127.0.0.1:10025"}}},
		Pregreet:      Pregreet{Wait: 6 * time.Second, Action: "drop", Keep: 2 * time.Hour},
		Times:         Times{MinRate: DefaultMinRate},
		Clients:       Clients{Resolver: "127.0.0.1:53", HeaderNets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, RulesExempt: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, ReinjectNets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		BodyRulesSize: 3 << 10,
		Users:         UsersConfig{Source: "file:users", Dir: c.Dir, Plaintext: true, MX: true},
		Limits: LimitsConfig{Config: limits.Config{
			PerAddress: 3, Connections: limits.Rate{Count: 60, Per: time.Minute}, Messages: limits.Rate{Count: 5, Per: time.Hour},
			Recipients: limits.Rate{Count: 50, Per: time.Hour}, SenderMessages: limits.Rate{Count: 6, Per: time.Hour}, SenderRecipients: limits.Rate{Count: 7, Per: time.Hour}, MinFree: 5 << 20, MinFiles: 9, MaxLoad: 8,
		}, MaxSize: 10 << 10, MaxRecipients: 5, MaxRecipientsUnauth: 1000, Memory: 9 << 20, MaxConnections: 7, Errors: 4, AcceptBareLF: true},
		Filters: Filters{
			Checks: checks.Config{SPF: true, DKIM: true, DMARC: true, Server: "127.0.0.1:53", Timeout: 3 * time.Second},
			Milters: []content.Milter{
				{Config: milter.Config{Network: "unix", Address: "/m", Timeout: time.Second, ContentTimeout: 2 * time.Minute}, Trouble: content.TroubleAccept},
				{Config: milter.Config{Network: "tcp", Address: "localhost:1", Timeout: time.Second, ContentTimeout: 2 * time.Minute}, Trouble: content.TroubleAccept},
				{Config: milter.Config{Network: "tcp", Address: "localhost:2", Timeout: 5 * time.Second, ConnectTimeout: 4 * time.Second, ContentTimeout: time.Minute}, Trouble: content.TroubleQuarantine},
			},
		},
		Access: policy.Config{
			Dir: c.Dir, LocalNamesFile: filepath.Join(c.Dir, "localnames"), LocalNames: []string{"localnames", "db:names"}, SenderLogin: []string{"senders"}, RateLimits: []string{"rates"}, HeaderFrom: "login",
			Source:     table.Options{Timeout: 7 * time.Second, Keep: table.DefaultTimeout},
			Subaddress: "+", RelayNets: []netip.Prefix{net24, netip.MustParsePrefix("2001:db8::1/128")}, ETRNNets: []netip.Prefix{net24},
			Resolver: "127.0.0.1:53",
			DNSBL: policy.DNSBL{Threshold: 3, Timeout: 4 * time.Second, Sites: []dnslist.Site{
				assert.Get(dnslist.ParseSite("zen.example=127.0.0.[2..11]*3"))(t), assert.Get(dnslist.ParseSite("allow.example*-2"))(t),
			}},
			Greylist: policy.Greylist{On: true, RulesOnly: true, ExemptSPF: true, ExemptDNSWL: true, Config: greylist.Config{
				Delay: time.Minute, Retry: time.Hour, Keep: 48 * time.Hour, Entries: 9,
			}},
			RcptCheck: &policy.RcptCheck{Defer: true, Options: rcptcheck.Options{Time: 2 * time.Second, Keep: time.Hour, Env: []string{"POSTOFFICE=/p", "ZCONFIG=" + c.File, "ZCONFIGOF=smtpserver"}}},
			Probe: &rcptcheck.ProbeOptions{
				PositiveExpire: rcptcheck.DefaultPositiveExpire, PositiveRefresh: rcptcheck.DefaultPositiveRefresh, NegativeExpire: rcptcheck.DefaultNegativeExpire,
				NegativeRefresh: rcptcheck.DefaultNegativeRefresh, Wait: rcptcheck.DefaultProbeWait, Most: 8, Count: 300, Per: time.Minute,
			},
		},
	}
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	sites := cmp.Comparer(func(a, b dnslist.Site) bool { return a == b })
	if d := cmp.Diff(want, got, prefixes, sites, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestOnlyLoopbackIsListenedToByDefault(t *testing.T) {
	_, got, err := load(t)
	if err != nil || !cmp.Equal([]string{"127.0.0.1:2525"}, got.Listen[session.RoleMX]) {
		t.Errorf("%q, %v", got.Listen, err)
	}
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "192.0.2.1": false, "fe80::1%lo": false,
	} {
		assert.Equal(t, session.Contains(got.Access.RelayNets, netip.MustParseAddr(addr)), want, addr)
	}
}

func TestBadSettingIsNamedWithItsLine(t *testing.T) {
	for _, line := range []string{"SMTPLISTEN=2525", "LMTPLISTEN=lmtp", "TLSKEY=key", "RELAYNETS=10.0.0.0/99", "RELAYNETS=everybody", "AUTH=nis:x", "LIMITSEXEMPT=all",
		"ETRNNETS=here", "HEADERNETS=here", "HEADERFROM=login", "HEADERFROM=mine", "RULESEXEMPT=me", "REINJECTLISTEN=10025", "REINJECTNETS=me", "BODYRULESSIZE=big", "SENDERLOGIN=what:x", "RATELIMITS=what:x", "SMTPSENDERRCPTRATE=many", "RCPTCHECK=sometimes", "RCPTCHECKTIME=0",
		"CHECKS=spv", "CHECKS=dmarc", "MILTERS=/run/x", "MILTERTROUBLE=maybe", `MILTERS="{ inet:localhost:1, x=y }"`, "CHECKTIME=soon"} {
		_, _, err := load(t, line)
		if bad := (*config.Error)(nil); !errors.As(err, &bad) || bad.Line != 2 {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// With the built-in file in the place of one that cannot be read, every domain of ours
// would be answered 550.
func TestUnusableConfigurationIsNamed(t *testing.T) {
	busy := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer busy.Close()
	r := start(t, nil)
	here := Ports{Listen: on(session.RoleMX, anyPort)}
	dir := files(t, map[string]string{"bad": "example.org\nno..domain\n"})
	bad := filepath.Join(dir, "bad")
	for name, tt := range map[string]struct {
		c    Config
		code int
		file string // of the *config.Error
	}{
		"no postoffice":                    {Config{PostOffice: "/nonexistent", Ports: here}, config.ExitConfig, "/nonexistent"},
		"no directory":                     {Config{PostOffice: dir, Ports: here}, config.ExitConfig, dir},
		"busy address":                     {Config{PostOffice: r.dir, Ports: Ports{Listen: on(session.RoleMX, busy.Addr().String())}}, 1, ""},
		"no address":                       {Config{PostOffice: r.dir}, 1, ""},
		"localnames is a directory":        {Config{PostOffice: r.dir, Access: policy.Config{LocalNamesFile: dir}}, config.ExitConfig, dir},
		"localnames has a bad line":        {Config{PostOffice: r.dir, Access: policy.Config{LocalNamesFile: bad}}, config.ExitConfig, bad},
		"a directory in LOCALNAMES":        {Config{PostOffice: r.dir, Access: policy.Config{LocalNames: []string{dir}}}, config.ExitConfig, dir},
		"a file with a bad line is listed": {Config{PostOffice: r.dir, Access: policy.Config{LocalNames: []string{bad}}}, config.ExitConfig, bad},
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(context.Background(), tt.c)
			assert.Equal(t, config.Exit(err), tt.code, "exit code of %v", err)
			if bad := (*config.Error)(nil); tt.file != "" && (!errors.As(err, &bad) || bad.File != tt.file) {
				t.Errorf("got %v, want an error of %s", err, tt.file)
			}
		})
	}
}

// Op1: a rule about the result of a check that CHECKS does not have is warned about with its line.
func TestOp1RuleWithoutItsCheckIsWarnedAbout(t *testing.T) {
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "access"), []byte("accept client=192.0.2.1\nreject dmarc=fail policy=reject\ndefer spf=temperror\n"), 0o600))
	for checks, want := range map[string][]int{"": {2, 3}, "spf dkim dmarc": nil, "spf": {2}} {
		file := filepath.Join(dir, "zmailer.conf")
		assert.Must(t, os.WriteFile(file, []byte("POSTOFFICE="+t.TempDir()+"\nSMTPLISTEN=127.0.0.1:0\nCHECKS=\""+checks+"\"\n"), 0o600))
		bad, warnings := config.Sort(CheckConfig(assert.Get(config.Load(file))(t)))
		assert.Must(t, bad)
		var got []int
		for _, err := range config.Errors(warnings) {
			if w := (*config.Error)(nil); errors.As(err, &w) {
				got = append(got, w.Line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("CHECKS=%q: warned of lines %v, want %v", checks, got, want)
		}
	}
}
