package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

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
	must(t, syscall.Kill(children[0], syscall.SIGKILL))
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

// verifiers are the pids of the helper processes that check recipients.
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
			must(t, os.Remove(path(s, ".mailq")))
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
