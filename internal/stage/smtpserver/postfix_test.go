package smtpserver

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

// policyZone is the DNS of comparisons with Postfix. 198.51.100.0/24 are clients.
var policyZone = []string{
	"mail.good.test. 60 A 198.51.100.7", "good.test. 60 MX 10 mail.good.test.", "onlya.test. 60 A 192.0.2.9",
	"null.test. 60 MX 0 .", "empty.test. 60 TXT x",
	"7.100.51.198.in-addr.arpa. 60 PTR mail.good.test.",
	"8.100.51.198.in-addr.arpa. 60 PTR forged.good.test.", "forged.good.test. 60 A 192.0.2.1",
	"9.100.51.198.bl.test. 60 A 127.0.0.4", `9.100.51.198.bl.test. 60 TXT "see http://bl.test/9"`,
	"bad.test.rhs.test. 60 A 127.0.1.2", "bad.test. 60 A 192.0.2.1",
	"7.100.51.198.wl.test. 60 A 127.0.5.3",
}

// nameServerAddr is where it is served, an address of this process alone; Postfix asks port 53
// only.
var nameServerAddr = fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&255, max(1, os.Getpid()&255))

var nameServer = nameServerAddr + ":53"

// inNamespace has a program see a resolv.conf with that name server.
func inNamespace(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	writeFile(t, conf, []byte("nameserver "+nameServerAddr+"\noptions timeout:1 attempts:1\n"), 0o644)
	script := `mount --make-rprivate / && mount --bind "$0" /etc/resolv.conf && exec "$@"`
	if out, err := exec.Command("unshare", "-m", "sh", "-c", script, conf, "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace: %v %s", err, out)
	}
	wrapped := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, conf}, cmd.Args...)...)
	wrapped.Env = cmd.Env
	return wrapped
}

// startPolicyPostfix starts a Postfix whose restrictions depend on the recipient.
func startPolicyPostfix(t *testing.T, restrictions map[string]string, settings ...string) string {
	t.Helper()
	rig.Needs(t, peer.PostfixMaster)
	addr, dir := rig.FreeAddr(t), rig.ShortDir(t)
	var table strings.Builder
	var classes []string
	for to, list := range restrictions {
		class := fmt.Sprintf("class%d", len(classes))
		classes = append(classes, class)
		settings = append(settings, class+" = "+list)
		fmt.Fprintf(&table, "%s %s\n", to, class)
	}
	settings = append(settings, "smtpd_restriction_classes = "+strings.Join(classes, " "))
	file := filepath.Join(dir, "restrictions")
	writeFile(t, file, []byte(table.String()), 0o644)
	p := &peer.Postfix{Dir: dir, Listen: addr, RelayHost: "[127.0.0.1]:9", Settings: append([]string{
		"smtpd_error_sleep_time = 0", "smtpd_hard_error_limit = 1000", "smtpd_authorized_xclient_hosts = 127.0.0.0/8",
		"mydestination = here.test", "local_recipient_maps =", "defer_transports = smtp local", "mynetworks = 192.0.2.200",
		"smtpd_client_connection_rate_limit = 0", "smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination",
		"smtpd_recipient_restrictions = check_recipient_access texthash:" + file,
	}, settings...)}
	rig.Postfix(t, p, func(cmd *exec.Cmd) *exec.Cmd { return inNamespace(t, cmd) })
	return addr
}

// Each restriction beside Postfix's on the same input: the reply to RCPT is the same, byte by
// byte. Postfix is the judge.
func TestRestrictionsAnswerAsPostfix(t *testing.T) {
	type input struct{ client, helo, from string }
	good := input{"198.51.100.7", "mail.good.test", "a@good.test"}
	with := func(change func(*input)) input { i := good; change(&i); return i }
	helo := func(s string) input { return with(func(i *input) { i.helo = s }) }
	from := func(s string) input { return with(func(i *input) { i.from = s }) }
	client := func(s string) input { return with(func(i *input) { i.client = s }) }
	dir := files(t, map[string]string{
		"senders": "a@good.test REJECT go away\nonlya.test DEFER later\nbad.test 521 5.3.2 no mail\nx@ OK\nsub.test REJECT\n<> REJECT null\n",
		"helos":   "good.test REJECT\nplain 450 4.7.9 plain name\n", "clients": "198.51.100.9 REJECT you\n198.51.99 DEFER_IF_PERMIT 4.4.4 net\n",
	})
	// Enhanced codes that do not fit what is refused are replaced (smtpd_dsn_fix).
	var codes strings.Builder
	var codedSenders, codedHelos []input
	for i := range 11 {
		fmt.Fprintf(&codes, "c%d@good.test 550 5.1.%d text\nh%d.test 450 4.1.%d text\nr%d@here.test 550 5.1.%d text\n", i, i, i, i, i, i)
		codedSenders, codedHelos = append(codedSenders, from(fmt.Sprintf("c%d@good.test", i))), append(codedHelos, helo(fmt.Sprintf("h%d.test", i)))
	}
	coded := filepath.Join(files(t, map[string]string{"coded": codes.String()}), "coded")
	senders, helos, clients := filepath.Join(dir, "senders"), filepath.Join(dir, "helos"), filepath.Join(dir, "clients")
	restrictions := map[string][]input{
		"reject_invalid_helo_hostname": {good, helo("plain"), helo("-bad.test"), helo("a..b"), helo("1.2.3.4"), helo("[198.51.100.7]"), helo("[1.2.3]"),
			helo("under_score.test"), helo("bad!.test"), helo("[IPv6:2001:db8::1]"), helo("dot.test."), helo("a-.test"), helo("12345"), helo("2001:db8::1"), helo("[a.b.c.d]"), helo("[]"), helo("a.1"), helo("x_"), helo(strings.Repeat("a", 64) + ".test")},
		"reject_non_fqdn_helo_hostname": {good, helo("plain"), helo("dot.test."), helo("[198.51.100.7]"), helo("1.2.3.4"), helo("plain."), helo("a..b")},
		"reject_unknown_helo_hostname":  {good, helo("missing.test"), helo("onlya.test"), helo("good.test"), helo("broken.test"), helo("[198.51.100.7]"), helo("empty.test")},
		"reject_non_fqdn_sender":        {good, from(""), from("a@plain"), from("a"), from("a@[192.0.2.1]"), from("a@b.c")},
		"reject_unknown_sender_domain": {good, from(""), from("a@onlya.test"), from("a@missing.test"), from("a@null.test"), from("a@empty.test"),
			from("a@broken.test"), from("a@here.test"), from("a@[192.0.2.1]"), from("a@below.missing.test")},
		"reject_rbl_client bl.test":                           {good, client("198.51.100.9"), client("198.51.100.10")},
		"reject_rbl_client bl.test=127.0.0.4":                 {client("198.51.100.9")},
		"reject_rbl_client bl.test=127.0.0.[5..9]":            {client("198.51.100.9")},
		"reject_rbl_client broken.test":                       {good},
		"reject_rhsbl_sender rhs.test":                        {good, from("a@bad.test"), from(""), from("a@x.bad.test")},
		"reject_rhsbl_helo rhs.test":                          {good, helo("bad.test"), helo("plain")},
		"permit_dnswl_client wl.test reject":                  {good, client("198.51.100.9")},
		"reject_rhsbl_recipient rhs.test":                     {good},
		"permit_mynetworks reject":                            {good, client("192.0.2.200")},
		"reject_unauth_destination":                           {good},
		"reject_unknown_sender_domain reject":                 {from("a@broken.test"), from("a@missing.test")},
		"check_sender_access texthash:" + senders:             {good, from("b@good.test"), from("a@onlya.test"), from("q@bad.test"), from("x@missing.test"), from("y@deep.sub.test"), from("y@sub.test"), from("")},
		"check_sender_access texthash:" + coded:               codedSenders,
		"check_helo_access texthash:" + coded:                 codedHelos,
		"check_helo_access texthash:" + helos:                 {good, helo("plain"), helo("other.test")},
		"check_client_access texthash:" + clients:             {good, client("198.51.100.9"), client("198.51.99.3")},
		"reject_unknown_client_hostname":                      {client("198.51.100.10")},
		"reject_unknown_reverse_client_hostname":              {client("198.51.100.10")},
		"check_client_access texthash:" + clients + " reject": {client("198.51.99.3")},
	}
	rig.Needs(t, peer.PostfixMaster)
	_, server := checkstest.ServeAt(t, nameServer, policyZone...)
	theirs := map[string]string{}
	var ours strings.Builder
	users := map[string]string{}
	for list := range restrictions {
		user := fmt.Sprintf("case%d@here.test", len(users))
		users[list] = user
		theirs[user] = list
		words := strings.Fields(strings.ReplaceAll(list, "texthash:", "file:"))
		for i := 0; i < len(words); i++ {
			rule := words[i]
			if strings.HasPrefix(words[i], "check_") || strings.Contains(words[i], "bl_") || strings.Contains(words[i], "wl_") {
				i++
				rule += " " + words[i]
			}
			text := ""
			if rule == "reject" {
				text = fmt.Sprintf(` : "554 5.7.1 <%s>: Recipient address rejected: Access denied"`, user)
			}
			fmt.Fprintf(&ours, "%s to=%s%s\n", rule, user, text)
		}
	}
	addr := startPolicyPostfix(t, theirs)
	access := files(t, map[string]string{"access": ours.String(), "localnames": "here.test\n"})
	r := start(t, func(c *Config) {
		c.XClientNets = loopback
		c.Access.RelayNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.200/32")}
		c.Access.Dir, c.Access.LocalNamesFile, c.Access.Resolver = access, filepath.Join(access, "localnames"), server
	})
	ask := func(to string, i input, rcpt string) string {
		p := &running{t: t, addrs: nil}
		c := p.connectFrom(nil, assert.Get(netAddr(to))(t))
		defer c.Close()
		c.expect("220")
		c.say("EHLO client.test", "250")
		c.say("XCLIENT ADDR="+i.client+" NAME=[UNAVAILABLE]", "220")
		c.say("EHLO "+i.helo, "250")
		c.send("MAIL FROM:<" + i.from + ">\r\n")
		if reply := c.reply(); !strings.HasPrefix(reply, "250") {
			return reply
		}
		c.send("RCPT TO:<" + rcpt + ">\r\n")
		return c.reply()
	}
	n := 0
	for list, inputs := range restrictions {
		for _, i := range inputs {
			n++
			want, got := ask(addr, i, users[list]), ask(r.addr, i, users[list])
			if want != got {
				t.Errorf("%s: %+v\nPostfix: %sours:    %s", list, i, want, got)
			}
		}
	}
	t.Logf("%d cases", n)
}

// netAddr returns an address to connect to.
func netAddr(addr string) (net.Addr, error) { return net.ResolveTCPAddr("tcp", addr) }
