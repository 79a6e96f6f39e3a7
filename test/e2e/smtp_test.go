package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/emersion/go-milter"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Recipients are checked by the router's rules, also when the helper process is killed.
func TestRecipientsAreVerifiedByTheRouter(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RCPTCHECK": "all", "RCPTCHECKTIME": "10s", "RCPTCHECKKEEP": "0", "RCPTCHECKTROUBLE": "defer"}
		s.Files["aliases"] = "sales: alice\nlost: nosuchuser\n"
		s.Files["lists/news"] = "alice\n"
	})
	k := connect(t, s.SMTPAddr)
	check := func(to, want string) {
		t.Helper()
		k.say("MAIL FROM:<a@example.net>", "250")
		k.say("RCPT TO:<"+to+">", want)
		k.say("RSET", "250")
	}
	for _, to := range []string{"ALICE", "alice+tag", "sales", "news", "news-request", "postmaster"} {
		check(to+"@mta.example", "250")
	}
	check("x@elsewhere.example", "250")
	check("nobody@mta.example", "550 5.1.1")
	check("lost@mta.example", "550 5.1.1")
	children := verifiers(t, s)
	if len(children) != 1 {
		t.Fatalf("%d children verify, want one", len(children))
	}
	assert.Must(t, syscall.Kill(children[0], syscall.SIGKILL))
	check("alice@mta.example", "250")
	check("nobody@mta.example", "550 5.1.1")
	// One that is stopped is killed, and its client gets a temporary error. A successor of the
	// killed one may still be ending.
	await(t, s, "all children stand still", func() (bool, error) {
		all := verifiers(t, s)
		for _, pid := range all {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
				return false, err
			}
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if _, state, _ := strings.Cut(string(stat), ") "); err != nil || !strings.HasPrefix(state, "T") {
				return false, nil
			}
		}
		return len(all) > 0, nil
	})
	check("alice@mta.example", "451 4.3.0")
	check("alice@mta.example", "250")
	event(t, s, "rcpt-check-recovered")
	configure(t, s, "aliases", "sales: alice\nfresh: alice\n")
	await(t, s, "the new alias", func() (bool, error) {
		k.say("MAIL FROM:<a@example.net>", "250")
		known := strings.HasPrefix(k.say("RCPT TO:<fresh@mta.example>", ""), "250")
		k.say("RSET", "250")
		return known, nil
	})
	stop(t, s)
	if left := verifiers(t, s); len(left) > 0 {
		t.Errorf("children %v are left", left)
	}
}

// verifiers returns the pids of the helper processes that check recipients.
func verifiers(t *testing.T, s *suite.Suite) []int {
	t.Helper()
	var list []int
	for _, p := range processes(t, s) {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Pid), "cmdline"))
		if err == nil && strings.Contains(string(b), "--verify") {
			list = append(list, p.Pid)
		}
	}
	return list
}

// M14, M29: the mail of a queueonly thread goes when a client sends ETRN or an operator runs
// zmctl etrn, by the query socket, and by a file in transport/ when there is no socket.
func TestETRNStartsAQueueByEveryWay(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["routes"] = ". smtp!" + sink.RouteHost() + "\n"
		s.Files["scheduler.conf"] = "*/* interval=1s retries=1\nsmtp/*\n\tqueueonly command=\"ta-smtp $channel\"\nlocal/*\n\tcommand=\"ta-mailbox $channel\"\n"
	})
	s.AwaitDaemons(patience)
	event(t, s, "query-served")
	k := connect(t, s.SMTPAddr)
	exits(t, s, 1, "zmctl", "etrn", "far.example") // nothing waits for it
	for n, way := range []string{"socket", "zmctl", "zmctl, file", "file"} {
		submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "u@far.example")
		await(t, s, "the message in its thread", func() (bool, error) {
			said, code := call(t, s, "zmctl", "queue", "--json")
			return code == 0 && strings.Contains(said, "u@far.example"), nil
		})
		if messages, _ := sink.Count(); messages != n {
			t.Errorf("%s: %d were delivered before anybody asked", way, messages)
		}
		if way == "zmctl, file" {
			assert.Must(t, os.Remove(path(s, ".mailq")))
		}
		await(t, s, "the delivery", func() (bool, error) {
			if strings.HasPrefix(way, "zmctl") {
				// 1: the scheduler does not know the message yet, or it has just gone.
				if said, code := call(t, s, "zmctl", "etrn", sink.RouteHost()); code > 1 {
					t.Errorf("%s: exit code %d, %q", way, code, said)
				}
			} else {
				k.say("ETRN #"+sink.RouteHost(), "25")
			}
			messages, _ := sink.Count()
			return messages == n+1, nil
		})
	}
}

// Sec7: by default, unauthenticated clients cannot cause reports to forged senders: an unknown
// local recipient is rejected at RCPT. As with Postfix's reject_unlisted_recipient, that holds
// for clients of RELAYNETS and users who logged in, too, unless RCPTCHECK=untrusted.
func TestSec7UnknownRecipientsOfUnauthenticatedClientsAreRejected(t *testing.T) {
	t.Parallel()
	const (
		outside = "XCLIENT ADDR=198.51.100.7"
		ours    = "XCLIENT ADDR=127.0.0.1"
		user    = "XCLIENT ADDR=198.51.100.7 LOGIN=bob"
		unknown = "nobody@mta.example"
	)
	for name, c := range map[string]struct {
		setting string
		want    map[string]string // by client: the answer about the unknown recipient
	}{
		"by default": {"", map[string]string{outside: "550 5.1.1", ours: "550 5.1.1", user: "550 5.1.1"}},
		"untrusted":  {"untrusted", map[string]string{outside: "550 5.1.1", ours: "250", user: "250"}},
		"all":        {"all", map[string]string{outside: "550 5.1.1", ours: "550 5.1.1", user: "550 5.1.1"}},
		"no":         {"no", map[string]string{outside: "250", ours: "250", user: "250"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, nil, func(s *suite.Suite) {
				s.Settings = map[string]string{"XCLIENTNETS": "127.0.0.0/8", "RCPTCHECKTIME": "30s", "RCPTCHECKTROUBLE": "defer"}
				s.Files["aliases"] = "postmaster: alice\n"
				if c.setting != "" {
					s.Settings["RCPTCHECK"] = c.setting
				}
			})
			for client, want := range c.want {
				k := connect(t, s.SMTPAddr)
				k.say(client, "220")
				k.say("EHLO client.example.net", "250")
				k.say("MAIL FROM:<bob@mta.example>", "250")
				k.say("RCPT TO:<alice@mta.example>", "250")
				k.say("RCPT TO:<postmaster>", "250")
				k.say("RCPT TO:<"+unknown+">", want)
				if client == outside {
					k.say("RCPT TO:<x@far.example>", "550 5.7.1")
				}
				k.say("QUIT", "221")
			}
			if c.setting != "untrusted" {
				return
			}
			// A message of a trusted client is accepted and comes back.
			connect(t, s.SMTPAddr).send("bob@mta.example", "Subject: x\r\n\r\nhi\r\n", "250 2.0.0", unknown)
			if mail := awaitMail(t, s, "bob", 1); !strings.Contains(string(mail[0]), "Status: 5.1.1") {
				t.Errorf("bob has %q, want a report", mail[0])
			}
			awaitEmpty(t, s)
		})
	}
}

// Sec7: 200 unknown recipients of one message cause no report.
func TestSec7NoReportsForUnknownRecipients(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RELAYNETS": "192.0.2.0/24", "RCPTCHECKTIME": "30s", "RCPTCHECKTROUBLE": "defer", "SMTPERRORS": "0"}
	})
	k := connect(t, s.SMTPAddr)
	k.say("MAIL FROM:<bob@mta.example>", "250")
	for i := range 200 {
		k.say("RCPT TO:<x"+strings.Repeat("y", i%20)+"@mta.example>", "550 5.1.1")
	}
	k.say("RCPT TO:<alice@mta.example>", "250")
	k.say("DATA", "354")
	k.say("Subject: x\r\n\r\n.", "250 2.0.0")
	awaitMail(t, s, "alice", 1)
	awaitEmpty(t, s)
	if mail, err := suite.Mail(s.Maildir("bob")); len(mail) > 0 {
		t.Errorf("got %d reports (%v), want none", len(mail), err)
	}
}

// Sec7: a confined server without root's rights checks recipients too.
func TestSec7ConfinedServerVerifiesRecipients(t *testing.T) {
	t.Parallel()
	s := confined(t, nil, func(s *suite.Suite) {
		s.Settings["RELAYNETS"], s.Settings["RCPTCHECKTIME"], s.Settings["RCPTCHECKTROUBLE"] = "192.0.2.0/24", "30s", "defer"
	})
	begin(t, s)
	k := connect(t, s.SMTPAddr)
	k.say("MAIL FROM:<bob@mta.example>", "250")
	k.say("RCPT TO:<no-such-user-of-this-machine@mta.example>", "550 5.1.1")
	k.say("RCPT TO:<"+daemonUser+"@mta.example>", "250")
}

// bySubject is a milter that decides by the field Subject.
type bySubject struct {
	milter.NoOpMilter
	subject string
}

func (f *bySubject) Header(name, value string, _ *milter.Modifier) (milter.Response, error) {
	if strings.EqualFold(name, "Subject") {
		f.subject = value
	}
	return milter.RespContinue, nil
}

func (f *bySubject) Body(m *milter.Modifier) (milter.Response, error) {
	switch f.subject {
	case "discard":
		return milter.RespDiscard, nil
	case "refuse":
		return milter.NewResponseStr('y', "554 5.7.9 not this"), nil
	case "quarantine":
		if err := m.Quarantine("looks odd"); err != nil {
			return nil, err
		}
	}
	if err := m.AddHeader("X-Filter", "seen"); err != nil {
		return nil, err
	}
	return milter.RespContinue, m.ReplaceBody([]byte("filtered\r\n"))
}

// M13: mail of an unauthenticated client through all programs: the results of the checks and a
// milter's changes are in the mailbox; a message that the milter quarantines waits in freezer/
// for an operator; one that it discards has an end in the ledger, which agrees with the files.
func TestIncomingMailIsCheckedAndFiltered(t *testing.T) {
	t.Parallel()
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := &milter.Server{NewMilter: func() milter.Milter { return &bySubject{} },
		Actions: milter.OptAddHeader | milter.OptChangeBody | milter.OptQuarantine}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { _ = l.Close(); <-done })
	_, resolver := checkstest.Serve(t, `a.example. TXT "v=spf1 ip4:127.0.0.1 -all"`, `_dmarc.a.example. TXT "v=DMARC1; p=reject"`)
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RELAYNETS": "192.0.2.0/24", "CHECKS": `"spf dkim dmarc"`, "RESOLVER": resolver, "MILTERS": "inet:" + l.Addr().String()}
		s.Files["access"] = "reject dmarc=fail policy=reject : \"forged\"\n"
	})
	send := func(from, subject, want string) {
		t.Helper()
		k := connect(t, s.SMTPAddr)
		defer k.c.Close()
		k.send(from, "From: ann@a.example\r\nSubject: "+subject+"\r\n\r\nhi\r\n", want, "alice@mta.example")
	}
	send("ann@a.example", "good", "250")
	got := string(awaitMail(t, s, "alice", 1)[0])
	head, body, _ := strings.Cut(got, "\n\n")
	wantIn(t, head, "spf=pass smtp.mailfrom=ann@a.example;\n\tdkim=none;\n\tdmarc=pass header.from=a.example policy.dmarc=reject\nFrom: ann@a.example\nSubject: good\nX-Filter: seen")
	if body != "filtered\n" || strings.Index(head, "Received:") > strings.Index(head, "Authentication-Results:") {
		t.Errorf("got %s", got)
	}
	send("x@b.example", "good", "550 5.7.1 forged")
	send("ann@a.example", "refuse", "554 5.7.9 not this")
	send("ann@a.example", "discard", "250 2.0.0")
	send("ann@a.example", "quarantine", "250 2.0.0")
	frozen := event(t, s, "frozen", "program", "smtpserver", "reason", "looks odd").Get("name")
	zmctl(t, s, "freezer", "thaw", strings.TrimPrefix(frozen, "freezer/"))
	awaitMail(t, s, "alice", 2)
	awaitEmpty(t, s)
	balance(t, s)
}
