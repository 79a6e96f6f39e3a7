package e2e

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/smtpclient"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// helpdesk is a system with users who log in under TLS, an alias, and a host that takes mail
// under TLS.
type helpdesk struct {
	*suite.Suite
	sink       *tasmtptest.Sink
	submission string
}

func startHelpdesk(t *testing.T, change func(s *suite.Suite)) *helpdesk {
	t.Helper()
	cert := assert.Get(peer.NewCertificate(openDir(t), "mta.example"))(t)
	h := &helpdesk{submission: freeAddr(t)}
	h.sink = (&tasmtptest.Sink{TLS: &tls.Config{Certificates: []tls.Certificate{peer.NewCA(t, "far").Issue("127.0.0.1")}},
		Answer: func(command string) string {
			switch {
			case strings.Contains(command, "RCPT") && strings.Contains(command, "<gone@"):
				return "550 5.1.1 no such user"
			case strings.Contains(command, "RCPT") && strings.Contains(command, "<busy@"):
				return "451 4.7.1 come back later"
			}
			return ""
		}}).Start(t, "", "")
	h.Suite = prepare(t, nil, func(s *suite.Suite) {
		users := filepath.Join(s.Dir, "conf", "passwords")
		s.Settings = map[string]string{"TLSCERT": cert.CertFile, "TLSKEY": cert.KeyFile, "SUBMISSIONLISTEN": h.submission, "AUTH": "file:" + users}
		s.Files["aliases"] = "sales: carol@far.example\n"
		s.Files["routes"] = fmt.Sprintf(". smtp![127.0.0.1]:%d\n", h.sink.Port())
		if change != nil {
			change(s)
		}
	})
	cmd := h.Command("zmctl", "--config", h.Config(), "passwd", "alice")
	cmd.Stdin = strings.NewReader(secret + "\n")
	if out, code := run(t, cmd); code != 0 {
		t.Fatalf("zmctl passwd: exit code %d\n%s", code, out)
	}
	begin(t, h.Suite)
	return h
}

// send submits a message as alice, and wants each recipient to be accepted.
func (h *helpdesk) send(t *testing.T, header string, rcpts ...string) {
	t.Helper()
	c := smtpclient.New(assert.Get(net.Dial("tcp", h.submission))(t), smtpclient.Config{Hostname: "laptop.example"})
	defer c.Quit()
	assert.Must(t, c.Hello())
	assert.Must(t, c.StartTLS(&tls.Config{InsecureSkipVerify: true}))
	assert.Must(t, c.Auth(smtpclient.Account{User: "alice", Password: secret}))
	m := smtpclient.Message{From: "alice@mta.example", Header: []byte(header), Body: strings.NewReader("\nbody\n")}
	for _, r := range rcpts {
		m.Recipients = append(m.Recipients, smtpclient.Recipient{Address: r})
	}
	results, err := c.Send(&m)
	assert.Must(t, err)
	for i := range results {
		assert.Equal(t, results[i].Outcome, status.Delivered, rcpts[i])
	}
}

// Op7: the log has what a helpdesk is asked: who sent a message, from where and how, its
// Message-ID, the address before aliases, the server that took it and what protected that.
func TestOp7LogHasWhoSentItAndWhichServerTookIt(t *testing.T) {
	t.Parallel()
	h := startHelpdesk(t, nil)
	h.send(t, "Message-ID: <q1@laptop.example>\nSubject: x\n", "sales@mta.example", "busy@far.example", "gone@far.example")

	in := event(t, h.Suite, "accepted", "from", "alice@mta.example")
	assert.Equal(t, in.Get("user"), "alice")
	assert.Equal(t, in.Get("helo"), "laptop.example")
	assert.Equal(t, in.Get("protocol"), "ESMTPSA")
	assert.Equal(t, in.Get("tls"), "TLSv1.3")
	assert.Equal(t, in.Get("verified"), "false")
	if cipher := in.Get("cipher"); !strings.HasPrefix(cipher, "TLS_") {
		t.Errorf("cipher %q", cipher)
	}
	id := in.Get("id")
	assert.Equal(t, event(t, h.Suite, "routed", "id", id).Get("message-id"), "<q1@laptop.example>")

	relay := fmt.Sprintf("127.0.0.1[127.0.0.1]:%d", h.sink.Port())
	for word, rcpt := range map[string]string{"delivered": "carol@far.example", "deferred": "busy@far.example", "failed": "gone@far.example"} {
		e := event(t, h.Suite, word, "id", id, "rcpt", rcpt)
		assert.Equal(t, e.Get("relay"), relay, word)
		assert.Equal(t, e.Get("tls"), "TLSv1.3", word)
		assert.Equal(t, e.Get("verified"), "false", word)
		original := ""
		if word == "delivered" {
			original = "sales@mta.example"
		}
		assert.Equal(t, e.Get("orig-rcpt"), original, word)
	}

	// The log is searched by each of them; what waits, too.
	log := filepath.Join(openDir(t), "log")
	write(t, log, h.Log())
	for _, word := range []string{"alice@mta.example", "sales@mta.example", "carol@far.example", "<q1@laptop.example>", "alice", "127.0.0.1"} {
		var life struct {
			ID, User, Client string
			MessageID        string `json:"message_id"`
			Recipients       []struct {
				Address, State, Relay, TLS string
				Original                   string `json:"orig_rcpt"`
			}
		}
		ask(t, h.Suite, &life, "trace", "--json", "--log", log, word, "--since", "1h")
		assert.Equal(t, [3]string{life.ID, life.User, life.MessageID}, [3]string{id, "alice", "<q1@laptop.example>"}, word)
		assert.Equal(t, len(life.Recipients), 3, word)
		for _, r := range life.Recipients {
			assert.Equal(t, r.Relay+" "+r.TLS, relay+" TLSv1.3", r.Address)
			assert.Equal(t, r.Original == "sales@mta.example", r.Address == "carol@far.example", r.Address)
		}
	}
	exits(t, h.Suite, 1, "zmctl", "trace", "--log", log, "nobody@mta.example")
	exits(t, h.Suite, 64, "zmctl", "trace", "--log", log, "@")

	// What waits is selected by the same facts.
	for flag, values := range map[string][2]string{
		"--user":       {"alice", "bob"},
		"--client":     {"127.0.0.0/8", "192.0.2.0/24"},
		"--message-id": {"<q1@*>", "q2@laptop.example"},
		"--orig-to":    {"busy@far.example", "sales@elsewhere.example"},
	} {
		for i, value := range values {
			out, code := call(t, h.Suite, "zmctl", "queue", "--json", flag, value)
			assert.Equal(t, code, 0, flag)
			if found := strings.Contains(out, id); found == (i == 1) {
				t.Errorf("%s %s: got %q", flag, value, out)
			}
		}
	}
}

// startOtherLog starts a system whose log is not in JSON, so that there are no events to wait for.
func startOtherLog(t *testing.T, s *suite.Suite) {
	t.Helper()
	t.Cleanup(s.Kill)
	assert.Must(t, s.Start())
}

// totals reads what pflogsumm prints: the numbers of its first part by their words, and the
// lines of its tables by their first number and last word.
func totals(t *testing.T, log string) map[string]string {
	t.Helper()
	out := execute(t, log, "/usr/sbin/pflogsumm", "--problems_first", "--rej_add_from")
	found := map[string]string{}
	section := ""
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0, line[0] == '-', strings.HasPrefix(f[0], "-"):
			continue
		case line[0] != ' ':
			section = strings.TrimSpace(line)
			continue
		case strings.HasPrefix(section, "Per-Hour") || strings.Contains(section, "by message size"):
			continue
		case strings.HasPrefix(section, "messages") || strings.HasPrefix(section, "Grand"):
			found[strings.Join(f[1:], " ")] = f[0]
		case strings.HasPrefix(section, "Host/Domain Summary"):
			switch {
			case f[0] == "sent" || f[0] == "msg":
			case len(f) > 4: // sent, bytes, deferrals, delays
				found[section+" "+f[len(f)-1]] = f[0] + " and deferred " + f[2]
			default:
				found[section+" "+f[len(f)-1]] = f[0]
			}
		case strings.HasPrefix(section, "Senders") || strings.HasPrefix(section, "Recipients"):
			found[section+" "+f[len(f)-1]] = f[0]
		}
	}
	return found
}

// Op7: with LOGFORMAT=postfix Debian's pflogsumm counts the same of our log as of a Postfix's
// that had the same mail: received, delivered, bounced, deferred, rejected, by sender, recipient
// and domain.
func TestOp7PflogsummCountsOurLogAsThatOfPostfix(t *testing.T) {
	t.Parallel()
	need(t, "/usr/sbin/pflogsumm")
	need(t, peer.PostfixMaster)
	needRoot(t)
	sink := func() *tasmtptest.Sink {
		return (&tasmtptest.Sink{Answer: func(command string) string {
			switch {
			case strings.Contains(command, "RCPT") && strings.Contains(command, "<gone@"):
				return "550 5.1.1 <gone@far.example>: Recipient address rejected: User unknown, sorry (really)"
			case strings.Contains(command, "RCPT") && strings.Contains(command, "<busy@"):
				return "451 4.7.1 come back later"
			}
			return ""
		}}).Start(t, "", "")
	}
	theirs, ours := sink(), sink()
	const domains = "one.example, two.example, far.example, other.example"
	p := &peer.Postfix{Log: true, Dir: filepath.Join(openDir(t), "postfix"), Listen: freeAddr(t), RelayHost: fmt.Sprintf("[127.0.0.1]:%d", theirs.Port()),
		Settings: []string{"mynetworks = 192.0.2.1", "relay_domains = " + domains, "smtpd_relay_restrictions = reject_unauth_destination"}}
	path := filepath.Join(openDir(t), "maillog")
	file := assert.Get(os.Create(path))(t)
	defer file.Close()
	rig.Postfix(t, p, func(cmd *exec.Cmd) *exec.Cmd {
		cmd.Stdout, cmd.Stderr = file, file
		return cmd
	})
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"LOGFORMAT": "postfix", "RELAYNETS": "192.0.2.1", "RELAYDOMAINS": "relaydomains"}
		s.Files["relaydomains"] = strings.ReplaceAll(domains, ", ", "\n") + "\n"
		s.Files["routes"] = fmt.Sprintf(". smtp![127.0.0.1]:%d\n", ours.Port())
		s.Files["scheduler.conf"] = "*/*\n\tinterval=1h\nsmtp/*\n\tcommand=\"ta-smtp $channel\"\nlocal/*\n\tcommand=\"ta-mailbox $channel\"\n"
	})
	startOtherLog(t, s)
	for _, addr := range []string{p.Listen, s.SMTPAddr} {
		k := connect(t, addr)
		for range 3 {
			k.send("a@one.example", "Subject: x\r\n\r\nbody\r\n", "250", "ok@far.example")
		}
		k.send("b@two.example", "Subject: y\r\nMessage-ID: <y@two.example>\r\n\r\nbody\r\n", "250", "ok@far.example", "second@other.example")
		k.send("a@one.example", "Subject: x\r\n\r\nbody\r\n", "250", "gone@far.example")
		k.send("b@two.example", "Subject: x\r\n\r\nbody\r\n", "250", "busy@far.example")
		k.say("MAIL FROM:<b@two.example>", "250")
		k.say("RCPT TO:<x@elsewhere.example>", "5")
		k.say("RCPT TO:<x@nowhere.example>", "5")
		k.say("QUIT", "221")
	}
	logs := map[string]func() string{"Postfix": func() string { return string(assert.Get(os.ReadFile(path))(t)) }, "ours": s.Log}
	counted := map[string]map[string]string{}
	for who, log := range logs {
		awaitFor(t, s, patience, "the log of "+who, func() (bool, error) {
			text := log()
			return strings.Count(text, "status=sent") == 6 && strings.Contains(text, "status=deferred") && strings.Contains(text, "status=bounced"), nil
		})
		counted[who] = totals(t, log())
	}
	want, got := counted["Postfix"], counted["ours"]
	for key := range maps.Keys(want) {
		if strings.HasPrefix(key, "bytes") {
			continue
		}
		assert.Equal(t, got[key], want[key], key)
	}
	assert.Equal(t, len(got), len(want), "kinds of numbers")
	if len(want) < 20 || want["received"] != "6" || want["rejected (25%)"]+want["rejected (22%)"] == "" {
		t.Errorf("pflogsumm counted %v", want)
	}
	for _, key := range []string{"bytes received", "bytes delivered"} {
		a, b := 0, 0
		_, _ = fmt.Sscan(want[key], &a)
		_, _ = fmt.Sscan(got[key], &b)
		if a == 0 || b == 0 || max(a-b, b-a) > 8*500 {
			t.Errorf("%s: got %d, Postfix %d", key, b, a)
		}
	}
	if t.Failed() {
		t.Logf("Postfix's log: %s", logs["Postfix"]())
		t.Logf("ours: %v\nPostfix: %v", got, want)
	}

	// What reads our own lines reads these, too.
	log := filepath.Join(openDir(t), "log")
	write(t, log, s.Log())
	said := exits(t, s, 0, "zmctl", "trace", "--logs-only", "--log", log, "second@other.example")
	if !strings.Contains(said, "delivered") || !strings.Contains(said, fmt.Sprintf("127.0.0.1[127.0.0.1]:%d", ours.Port())) {
		t.Errorf("trace of a log of Postfix's form: %s", said)
	}
	said = exits(t, s, 0, "zmctl", "trace", "--json", "--logs-only", "--log", log, "<y@two.example>")
	for _, part := range []string{`"from":"b@two.example"`, `"message_id":"<y@two.example>"`, `"client":"127.0.0.1"`} {
		if !strings.Contains(said, part) {
			t.Errorf("no %s in %s", part, said)
		}
	}
}
