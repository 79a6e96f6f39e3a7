package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/smtpclient"
	"zmailer/test/peer"
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
