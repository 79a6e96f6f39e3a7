package smtpserver

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

// tries calls f until it returns no error.
func tries(t *testing.T, every time.Duration, f func() error) {
	t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	deadline := time.After(logtest.Patience)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}

// spawn serves each connection by a process whose input and output it is, as Postfix's
// spawn(8) does.
func spawn(t *testing.T, command func() *exec.Cmd) string {
	t.Helper()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f, err := c.(*net.TCPConn).File()
			_ = c.Close()
			if err != nil {
				return
			}
			cmd := command()
			cmd.Stdin, cmd.Stdout, cmd.Stderr = f, f, os.Stderr
			if cmd.Start() == nil {
				t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			}
			_ = f.Close()
		}
	}()
	return l.Addr().String()
}

// serviced runs a server with rules that ask a policy service. Its domain is here.test.
func serviced(t *testing.T, rules string) *running {
	t.Helper()
	dir := files(t, map[string]string{"access": rules, "localnames": "here.test\n"})
	return start(t, func(c *Config) {
		c.XClientNets = loopback
		c.Access.RelayNets = nil
		c.Access.Dir, c.Access.LocalNamesFile, c.Access.Resolver = dir, filepath.Join(dir, "localnames"), nameServer
	})
}

// rcpt returns the reply to RCPT of a client in a new session, and to DATA if RCPT was taken.
func (r *running) rcpt(addr, client, helo, from, to string) (rcpt, data string) {
	r.t.Helper()
	c := r.connectFrom(nil, assert.Get(netAddr(addr))(r.t))
	defer c.Close()
	c.expect("220")
	c.say("EHLO client.test", "250")
	c.say("XCLIENT ADDR="+client+" NAME=[UNAVAILABLE]", "220")
	c.say("EHLO "+helo, "250")
	c.say("MAIL FROM:<"+from+">", "250")
	c.send("RCPT TO:<" + to + ">\r\n")
	rcpt = c.reply()
	if !strings.HasPrefix(rcpt, "250") {
		return rcpt, ""
	}
	c.send("DATA\r\n")
	if data = c.reply(); strings.HasPrefix(data, "354") {
		c.send("Subject: x\r\n\r\nhi\r\n.\r\n")
		c.expect("250")
	}
	return rcpt, data
}

// The real postgrey defers our clients as it defers Postfix's, and lets them in afterwards.
func TestPostgreyAnswersUsAsPostfix(t *testing.T) {
	rig.Needs(t, "/usr/sbin/postgrey")
	checkstest.ServeAt(t, nameServer, policyZone...)
	grey := func() string {
		addr := assert.Get(peer.FreeAddr())(t)
		dir := t.TempDir()
		owner := assert.Get(user.Lookup("postgrey"))(t)
		assert.Must(t, exec.Command("chown", "-R", owner.Uid, dir).Run(), os.Chmod(filepath.Dir(dir), 0o755))
		rig.Daemon(t, addr, exec.Command("/usr/sbin/postgrey", "--inet="+addr, "--dbdir="+dir, "--delay=1", "--pidfile="+dir+"/pid", "--hostname=bench.example"))
		return addr
	}
	theirs, ours := grey(), grey()
	postfix := startPolicyPostfix(t, map[string]string{"case0@here.test": "check_policy_service inet:" + theirs})
	r := serviced(t, "check_policy_service inet:"+ours+" to=case0@here.test\n")
	ask := func(client, from string) {
		t.Helper()
		want, _ := r.rcpt(postfix, client, "mail.good.test", from, "case0@here.test")
		got, _ := r.rcpt(r.addr, client, "mail.good.test", from, "case0@here.test")
		assert.Equal(t, got, want, "%s %s", client, from)
	}
	ask("198.51.100.7", "a@good.test")
	ask("198.51.99.7", "b@good.test")
	first, _ := r.rcpt(r.addr, "198.51.98.7", "x.test", "c@good.test", "case0@here.test")
	if !strings.HasPrefix(first, "450 4.2.0") {
		t.Errorf("got %s", first)
	}
	tries(t, 100*time.Millisecond, func() error {
		got, _ := r.rcpt(r.addr, "198.51.98.7", "x.test", "c@good.test", "case0@here.test")
		if !strings.HasPrefix(got, "250") {
			return errors.New(got)
		}
		return nil
	})
	r.log.Expect(t, 0, "policy-service-trouble")
}

// The real policyd-spf refuses and marks our mail as it does Postfix's.
func TestPolicydSPFAnswersUsAsPostfix(t *testing.T) {
	rig.Needs(t, "/usr/bin/policyd-spf")
	checkstest.ServeAt(t, nameServer, append([]string{
		`good.test. 60 TXT "v=spf1 ip4:198.51.100.7 -all"`, `soft.test. 60 TXT "v=spf1 ~all"`,
	}, policyZone...)...)
	conf := filepath.Join(files(t, map[string]string{"conf": "debugLevel = 0\nTestOnly = 1\nHELO_reject = Fail\nMail_From_reject = Fail\nPermError_reject = False\nTempError_Defer = False\nskip_addresses = 127.0.0.0/8\nHide_Receiver = Yes\n"}), "conf")
	at := spawn(t, func() *exec.Cmd { return inNamespace(t, exec.Command("/usr/bin/policyd-spf", conf)) })
	postfix := startPolicyPostfix(t, map[string]string{"case0@here.test": "check_policy_service inet:" + at})
	r := serviced(t, "check_policy_service inet:"+at+"\n")
	for _, tt := range [][2]string{{"198.51.100.7", "a@good.test"}, {"198.51.100.9", "a@good.test"}, {"198.51.100.9", "a@soft.test"}, {"198.51.100.9", "a@missing.test"}} {
		want, _ := r.rcpt(postfix, tt[0], "mail.good.test", tt[1], "case0@here.test")
		got, _ := r.rcpt(r.addr, tt[0], "mail.good.test", tt[1], "case0@here.test")
		if mask := func(s string) string { return strings.ReplaceAll(s, "r=bench.example", "r=x") }; mask(got) != mask(want) {
			t.Errorf("%v\nPostfix: %sours:    %s", tt, want, got)
		}
	}
	fields := ""
	for _, name := range r.names("router") {
		_, content, _ := strings.Cut(r.message(name), "env-end\n")
		first, _, _ := strings.Cut(content, "\n")
		fields += first + "\n"
	}
	for _, want := range []string{"Received-SPF: Pass ", "Received-SPF: Softfail ", "Received-SPF: None "} {
		assert.Contains(t, fields, want)
	}
}

// The real policyd-rate-limit counts our mail as it counts Postfix's, at DATA.
func TestPolicydRateLimitAnswersUsAsPostfix(t *testing.T) {
	rig.Needs(t, "/usr/bin/policyd-rate-limit")
	checkstest.ServeAt(t, nameServer, policyZone...)
	limit := func() string {
		addr := assert.Get(peer.FreeAddr())(t)
		host, port, _ := net.SplitHostPort(addr)
		dir := t.TempDir()
		conf := files(t, map[string]string{"conf.yaml": fmt.Sprintf(`debug: True
user: "root"
group: "root"
pidfile: %q
sqlite_config:
    database: %q
backend: 0
SOCKET: [%q, %s]
socket_permission: 0666
limits:
    - [2, 60]
limits_by_id: {}
limit_by_sasl: True
limit_by_sender: False
limit_by_ip: True
limited_networks: ["198.51.100.0/24"]
success_action: "dunno"
fail_action: "defer_if_permit Rate limit reach, retry later"
db_error_action: "dunno"
report: False
report_from: null
report_to: null
report_only_if_needed: True
smtp_server: ["localhost", 25]
smtp_starttls: False
smtp_credentials: null
delay_to_close: 300
count_mode: 0
`, dir+"/pid", dir+"/db", host, port)})
		rig.Daemon(t, addr, exec.Command("/usr/bin/policyd-rate-limit", "--file", filepath.Join(conf, "conf.yaml")))
		return addr
	}
	theirs, ours := limit(), limit()
	postfix := startPolicyPostfix(t, map[string]string{"case0@here.test": "check_policy_service inet:" + theirs})
	r := serviced(t, "check_policy_service inet:"+ours+"\n")
	refused := 0
	for range 4 {
		want, _ := r.rcpt(postfix, "198.51.100.7", "mail.good.test", "a@good.test", "case0@here.test")
		got, _ := r.rcpt(r.addr, "198.51.100.7", "mail.good.test", "a@good.test", "case0@here.test")
		assert.Equal(t, got, want)
		if got[0] == '4' {
			refused++
		}
	}
	assert.Equal(t, refused, 2)
}

// scripted is a policy service that answers what answer makes of a request, and the last
// request with each protocol state.
type scripted struct {
	addr  string
	conns atomic.Int32

	mu   sync.Mutex
	seen map[string]map[string]string
}

func script(t *testing.T, answer func(request map[string]string) string) *scripted {
	t.Helper()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	s := &scripted{addr: l.Addr().String(), seen: map[string]map[string]string{}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			go func() {
				defer c.Close()
				sc := bufio.NewScanner(c)
				for {
					request := map[string]string{}
					for sc.Scan() && sc.Text() != "" {
						name, value, _ := strings.Cut(sc.Text(), "=")
						request[name] = value
					}
					if len(request) == 0 {
						return
					}
					s.mu.Lock()
					s.seen[request["protocol_state"]] = request
					s.mu.Unlock()
					if _, err := io.WriteString(c, answer(request)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return s
}

// Each action in each protocol state: our replies are those of Postfix with the same service.
func TestActionsOfPolicyServicesAnswerAsPostfix(t *testing.T) {
	actions := []string{"OK", "DUNNO", "dunno", "REJECT", "REJECT no such thing", "reject 5.3.2 custom", "DEFER", "DEFER 4.2.2 later", "DEFER_IF_PERMIT try later",
		"DEFER_IF_REJECT x", "451 4.3.0 busy", "451 busy", "550 5.1.1 no", "554 no code", "WARN look", "INFO look", "PREPEND X-Seen: yes",
		"REDIRECT other@here.test", "BCC copy@here.test", "FILTER smtp:[127.0.0.1]:10025", "FILTER smtp:", "HOLD check it", "DISCARD gone", "521 5.7.1 away", "550 5.1.7 x", "550 5.1.8 x", "550 5.1.9 x", "550 5.1.3 x", "450 4.1.10 x", "42", "DEFER_IF_PERMIT 4.2.0 Greylisted, see http://x/y"}
	rig.Needs(t, peer.PostfixMaster)
	checkstest.ServeAt(t, nameServer, policyZone...)
	service := script(t, func(request map[string]string) string {
		state, n, _ := strings.Cut(strings.TrimSuffix(request["sender"], "@good.test"), ".")
		i, err := strconv.Atoi(n)
		if err != nil || !strings.EqualFold(request["protocol_state"], state) {
			return "action=dunno\n\n"
		}
		return "action=" + actions[i] + "\n\n"
	})
	at := "check_policy_service inet:" + service.addr
	postfix := startPolicyPostfix(t, map[string]string{"case0@here.test": at}, "smtpd_data_restrictions = "+at, "smtpd_end_of_data_restrictions = "+at)
	r := serviced(t, at+"\n"+at+" protocol_state=DATA\n"+at+" protocol_state=end-of-message\n")
	queued := regexp.MustCompile(`Ok: queued as \S+`)
	dialogue := func(addr, from string) (replies []string) {
		c := r.connectFrom(nil, assert.Get(netAddr(addr))(t))
		defer c.Close()
		c.expect("220")
		c.say("EHLO mail.good.test", "250")
		c.say("XCLIENT ADDR=198.51.100.7 NAME=[UNAVAILABLE]", "220")
		c.say("EHLO mail.good.test", "250")
		for _, line := range []string{"MAIL FROM:<" + from + ">", "RCPT TO:<case0@here.test>", "DATA", "Subject: x\r\n\r\nhi\r\n."} {
			c.send(line + "\r\n")
			reply := queued.ReplaceAllString(c.reply(), "Ok: queued")
			replies = append(replies, reply)
			if reply[0] > '3' {
				break
			}
		}
		return replies
	}
	for _, state := range []string{"rcpt", "data", "end-of-message"} {
		for i, action := range actions {
			from := fmt.Sprintf("%s.%d@good.test", state, i)
			want, got := dialogue(postfix, from), dialogue(r.addr, from)
			if !slices.Equal(got, want) {
				t.Errorf("%s at %s\nPostfix: %q\nours:    %q", action, state, want, got)
			}
		}
	}
	for state, request := range service.seen {
		for _, name := range []string{"request", "protocol_state", "protocol_name", "client_address", "client_name", "client_port", "reverse_client_name", "server_address", "server_port",
			"helo_name", "sender", "recipient", "recipient_count", "queue_id", "instance", "size", "etrn_domain", "stress", "sasl_method", "sasl_username", "sasl_sender",
			"ccert_subject", "ccert_issuer", "ccert_fingerprint", "ccert_pubkey_fingerprint", "encryption_protocol", "encryption_cipher", "encryption_keysize", "policy_context"} {
			if _, ok := request[name]; !ok {
				t.Errorf("%s: no attribute %s", state, name)
			}
		}
	}
}

// A policy service gets the names in a certificate only if an authority that this machine trusts has
// issued it, as Postfix gives them: everybody can make one with another's name. The fingerprint is
// that of the certificate in any case.
func TestNamesOfUntrustedCertificatesReachNoPolicyService(t *testing.T) {
	service := script(t, func(map[string]string) string { return "action=dunno\n\n" })
	dir := files(t, map[string]string{"access": "check_policy_service inet:" + service.addr + "\n", "localnames": "here.test\n"})
	r := startSecured(t, func(c *Config) {
		c.TLS.Ask = true
		c.Access.RelayNets = nil
		c.Access.Dir, c.Access.LocalNamesFile = dir, filepath.Join(dir, "localnames")
	})
	pair := peer.NewCA(t, "partner.example").Issue("partner.example")
	c := r.tls.Clone()
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	p := r.dial()
	p.say("STARTTLS", "220")
	p.secure(c)
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@client.example>", "250")
	p.say("RCPT TO:<b@here.test>", "250")
	service.mu.Lock()
	defer service.mu.Unlock()
	request := service.seen["RCPT"]
	assert.Equal(t, request["ccert_subject"]+request["ccert_issuer"], "")
	assert.Equal(t, len(request["ccert_fingerprint"]), 32*3-1)
}

// A service that hangs or answers garbage has recipients deferred, is reported once, and is used
// again when it works; default_action decides otherwise.
func TestBrokenServiceDefersUntilItWorks(t *testing.T) {
	var works atomic.Bool
	service := script(t, func(map[string]string) string {
		if works.Load() {
			return "action=OK\n\n"
		}
		return strings.Repeat("garbage\n", 1000000)
	})
	dir := files(t, map[string]string{"access": "check_policy_service inet:" + service.addr + " to=a@example.org\n" +
		"check_policy_service inet:" + service.addr + " timeout=1s default_action=DUNNO to=b@example.org\n", "localnames": "example.org\n"})
	r := start(t, func(c *Config) {
		c.Access.RelayNets = nil
		c.Access.Dir, c.Access.LocalNamesFile = dir, filepath.Join(dir, "localnames")
	})
	c := r.greeted()
	c.say("MAIL FROM:<x@example.net>", "250")
	c.say("RCPT TO:<a@example.org>", "451 4.3.5")
	c.say("RCPT TO:<b@example.org>", "250")
	c.say("RCPT TO:<a@example.org>", "451 4.3.5")
	r.log.Expect(t, 2, "msg=policy-service-trouble") // one for each of the two
	works.Store(true)
	tries(t, 100*time.Millisecond, func() error {
		c.send("RCPT TO:<a@example.org>\r\n")
		if got := c.reply(); !strings.HasPrefix(got, "250") {
			return errors.New(got)
		}
		return nil
	})
	r.log.Expect(t, 1, "msg=policy-service-recovered")
}
