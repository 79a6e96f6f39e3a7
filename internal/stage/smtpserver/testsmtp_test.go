package smtpserver

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/dnslist"
	"zmailer/internal/stage/smtpserver/policy/greylist"
	"zmailer/internal/stage/smtpserver/session"
)

// A trial shows the decision that the server makes on the same input, and leaves nothing on
// the disk.
func TestTrialDecidesAsTheServer(t *testing.T) {
	_, server := checkstest.Serve(t, append([]string{`good.test. 60 TXT "v=spf1 ip4:198.51.100.7 -all"`, "11.100.51.198.bl.test. 60 A 127.0.0.2"}, policyZone...)...)
	dir := files(t, map[string]string{"access": "reject client=198.51.100.8 : \"554 5.7.1 you\"\nwarn_if_reject reject helo=warned.test\nreject spf=fail\n" +
		"freeze from=hold@good.test\naccept from=known@good.test\n", "localnames": "here.test\n", "header-rules": "/^Subject: bad/ REJECT no such subject\n"})
	var c Config
	r := start(t, func(cfg *Config) {
		cfg.XClientNets = loopback
		cfg.Access = policy.Config{Dir: dir, LocalNamesFile: filepath.Join(dir, "localnames"), Resolver: server,
			DNSBL:    policy.DNSBL{Sites: []dnslist.Site{assert.Get(dnslist.ParseSite("bl.test*2"))(t)}, Threshold: 2, Enforce: true, Timeout: 5 * time.Second},
			Greylist: policy.Greylist{On: true, ExemptSPF: true, Config: greylist.Config{Delay: time.Hour, Retry: 24 * time.Hour, Keep: 24 * time.Hour, Entries: 100}}}
		cfg.Filters.Checks = checks.Config{SPF: true, Server: server}
		cfg.Resolver = server
		c = *cfg
	})
	for name, tt := range map[string]struct{ client, from, subject, want, by string }{
		"a rule":                 {"198.51.100.8", "a@good.test", "x", "554 5.7.1", "access:1"},
		"a DNS list":             {"198.51.100.11", "a@onlya.test", "x", "550 5.7.1", "dnsbl"},
		"the greylist":           {"198.51.100.12", "a@onlya.test", "x", "450 4.2.0", "greylist"},
		"exempt by SPF":          {"198.51.100.7", "a@good.test", "x", "250", "default"},
		"a rule for the content": {"198.51.100.13", "known@good.test", "x", "550 5.7.1", "access:3"},
		"a rule for the header":  {"198.51.100.7", "a@good.test", "bad", "550 5.7.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			from := assert.Get(address.Parse("<" + tt.from + ">"))(t)
			report := assert.Get(Try(context.Background(), c, Trial{Client: netip.MustParseAddr(tt.client), Helo: "client.example.net", Role: session.RoleMX,
				From: from, To: address.Mailbox{Local: "b", Domain: "here.test"}, Message: []byte("Subject: " + tt.subject + "\n\nhi\n")}))(t)
			if refused := tt.want[0] != '2'; report.Refused != refused || refused && !strings.Contains(report.Verdict, tt.want) || tt.by != "" && report.By != tt.by {
				t.Errorf("got %+v", report)
			}
			p := r.as(tt.client, "")
			defer p.Close()
			p.say("MAIL FROM:<"+tt.from+">", "250")
			p.send("RCPT TO:<b@here.test>\r\n")
			reply := p.reply()
			if reply[0] == '2' {
				p.say("DATA", "354")
				p.send("Subject: " + tt.subject + "\r\n\r\nhi\r\n.\r\n")
				reply = p.reply()
			}
			if !strings.HasPrefix(reply, tt.want) {
				t.Errorf("the server: %s", reply)
			}
		})
	}
	// Only the server's own test is remembered.
	disk := assert.Get(durable.NewOS(r.dir))(t)
	defer disk.Close()
	r.ended()
	l := greylist.Open(greylist.Config{FS: disk, Delay: time.Hour, Retry: 24 * time.Hour, Keep: 24 * time.Hour, Entries: 100})
	waiting, _, _ := l.Sizes()
	assert.Equal(t, waiting, 1)
	assert.Equal(t, len(r.names(postoffice.Clients)) > 0, true)
}

// A user's From field, and what rules do with an accepted message, are shown as well.
func TestTrialShowsFromFieldAndFilter(t *testing.T) {
	dir := files(t, map[string]string{"localnames": "here.test\n", "header-rules": "/^Subject: scan/ FILTER smtp:[127.0.0.1]:10025\n/^Subject: move/ REDIRECT b@here.test\n"})
	c := Config{Hostname: "mx.example.org", Access: policy.Config{Dir: dir, LocalNamesFile: filepath.Join(dir, "localnames"), HeaderFrom: policy.FromSender}}
	for message, want := range map[string]struct{ step, by string }{
		"From: a@good.test\nSubject: scan\n\n":     {"filter smtp:[127.0.0.1]:10025", "default"},
		"From: a@good.test\nSubject: move\n\n":     {"redirect to b@here.test", "default"},
		"From: boss@good.test\nSubject: hello\n\n": {"reject: 550 5.7.1", "headerfrom"},
	} {
		report := assert.Get(Try(context.Background(), c, Trial{Client: netip.MustParseAddr("198.51.100.7"), Role: session.RoleMX, User: "a",
			From: address.Mailbox{Local: "a", Domain: "good.test"}, To: address.Mailbox{Local: "b", Domain: "here.test"}, Message: []byte(message)}))(t)
		found := slices.ContainsFunc(report.Steps, func(s TrialStep) bool { return strings.HasPrefix(s.Result, want.step) })
		if !found || report.By != want.by {
			t.Errorf("%q: got %+v, want %v", message, report, want)
		}
	}
}
