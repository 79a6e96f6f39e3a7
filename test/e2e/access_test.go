package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// talk says lines to smtpserver and wants each reply to begin as told.
type talk struct {
	t testing.TB
	c net.Conn
	r *bufio.Reader
}

func newTalk(t testing.TB, s *suite.Suite) *talk {
	t.Helper()
	c, err := net.Dial("tcp", s.SMTPAddr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	k := &talk{t, c, bufio.NewReader(c)}
	k.expect("", "220")
	k.say("EHLO client.example.net", "250")
	return k
}

func (k *talk) say(line, want string) string {
	k.t.Helper()
	if _, err := k.c.Write([]byte(line + "\r\n")); err != nil {
		k.t.Fatalf("%s: %v", line, err)
	}
	return k.expect(line, want)
}

func (k *talk) expect(line, want string) string {
	k.t.Helper()
	var all string
	for {
		text, err := k.r.ReadString('\n')
		if err != nil {
			k.t.Fatalf("%s: %q, %v", line, all, err)
		}
		if all += text; len(text) > 3 && text[3] == ' ' {
			break
		}
	}
	if !strings.HasPrefix(all, want) {
		k.t.Fatalf("%s: got %q, want %s", line, all, want)
	}
	return all
}

// M13: mail that a rule freezes is taken, waits for a person, is told by zmctl with its
// reason, and is delivered once it was thawed.
func TestFrozenMailWaitsUntilItIsThawed(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Files["access"] = "freeze from=odd@example.net cause=odd : \"somebody should look\"\n"
	})
	k := newTalk(t, s)
	send := func(from string) {
		k.say("MAIL FROM:<"+from+">", "250")
		k.say("RCPT TO:<alice@mta.example>", "250")
		k.say("DATA", "354")
		k.say("Subject: "+from+"\r\n\r\nhi\r\n.", "250 2.0.0")
	}
	send("odd@example.net")
	send("plain@example.net")
	awaitMail(t, s, "alice", 1)
	if e := event(t, s, "frozen"); !strings.Contains(e.Get("reason"), "access:1: somebody should look") {
		t.Errorf("the log says %q", e.Get("reason"))
	}
	name := only(t, s, "freezer")
	if !strings.HasSuffix(name, ".odd") {
		t.Errorf("freezer/ holds %s", name)
	}
	id := event(t, s, "frozen").Get("id")
	wantIn(t, zmctl(t, s, "freezer", "show", id), "access:1: somebody should look")
	// A restart does not thaw it.
	restart(t, s)
	if got := only(t, s, "freezer"); got != name {
		t.Errorf("after a restart: %q, want %q", got, name)
	}
	zmctl(t, s, "freezer", "thaw", id)
	awaitMail(t, s, "alice", 2)
	awaitEmpty(t, s)
	balance(t, s)
}

// Recipients are what the router says they are, whoever kills its child.
func TestRecipientsAreVerifiedByTheRouter(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"RCPTCHECK": "all", "RCPTCHECKTIME": "10s", "RCPTCHECKKEEP": "0", "RCPTCHECKTROUBLE": "defer"}
		s.Files["aliases"] = "sales: alice\nlost: nosuchuser\n"
		s.Files["lists/news"] = "alice\n"
	})
	k := newTalk(t, s)
	check := func(to, want string) {
		t.Helper()
		k.say("MAIL FROM:<a@example.net>", "250")
		k.say("RCPT TO:<"+to+">", want)
		k.say("RSET", "250")
	}
	for to, want := range map[string]string{
		"alice@mta.example":        "250",
		"ALICE@mta.example":        "250",
		"alice+tag@mta.example":    "250",
		"sales@mta.example":        "250",
		"news@mta.example":         "250",
		"news-request@mta.example": "250",
		"postmaster":               "250",
		"x@elsewhere.example":      "250",
		"nobody@mta.example":       "550 5.1.1",
		"lost@mta.example":         "550 5.1.1",
	} {
		check(to, want)
	}
	children := verifiers(t, s)
	if len(children) != 1 {
		t.Fatalf("%d children verify, want one", len(children))
	}
	if err := syscall.Kill(children[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	check("alice@mta.example", "250")
	check("nobody@mta.example", "550 5.1.1")
	// One that stands still is killed; who asked it is told to come back.
	// Of the one that was killed a successor may be on its way out, too.
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

// verifiers are the pids of the children that verify recipients for this system.
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

// M14, M29: the mail of a queueonly thread goes when a client says ETRN or a person zmctl
// etrn, by the query socket, and by a file in transport/ when there is no socket.
func TestETRNStartsAQueueByEveryWay(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["routes"] = ". smtp!" + sink.RouteHost() + "\n"
		s.Files["scheduler.conf"] = "*/* interval=1s retries=1\nsmtp/*\n\tqueueonly command=\"ta-smtp $channel\"\nlocal/*\n\tcommand=\"ta-mailbox $channel\"\n"
	})
	s.AwaitDaemons(patience)
	event(t, s, "query-served")
	k := newTalk(t, s)
	if said, code := call(t, s, "zmctl", "etrn", "far.example"); code != 1 || !strings.HasPrefix(said, "far.example: ") {
		t.Errorf("for nothing: exit code %d, %q", code, said)
	}
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
			if err := os.Remove(path(s, ".mailq")); err != nil {
				t.Fatal(err)
			}
		}
		await(t, s, "the delivery", func() (bool, error) {
			if strings.HasPrefix(way, "zmctl") {
				said, code := call(t, s, "zmctl", "etrn", sink.RouteHost())
				// 1: the scheduler does not know the message yet, or it has just gone.
				want := map[string]string{"zmctl": ": tried now\n", "zmctl, file": "the next one tries it"}[way]
				if code > 1 || code == 0 && !strings.Contains(said, want) {
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
