package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/smtp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/stage/tasmtp/mx/mxtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// M10: a lookup fails; ls and cat tell why; resubmit --check says that it would fail again,
// and it does; when the list is there the check says so, and the mail is delivered, once
// and as it came. The account is even all the time.
func TestTroubleIsToldCheckedAndMended(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	list := s.Dir + "/team"
	configure(t, s, "aliases", "team: :include:"+list+"\n")
	begin(t, s)
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "team@mta.example")
	e := event(t, s, "deferred", "program", "router", "reason", list)
	id, name := e.Get("id"), filepath.Base(e.Get("name"))
	file := read(t, path(s, "deferred/"+name))
	reason := "deferred/reason." + strings.TrimSuffix(name, ".include")
	wantIn(t, read(t, path(s, reason)), id+" ", " router deferred include: ", list, "no such file or directory")
	for _, args := range [][]string{{"queue", "--cause", "include"}, {"why", id}, {"show", id}, {"history", id}, {"resubmit"}} {
		wantIn(t, zmctl(t, s, args...), list)
	}
	said, code := call(t, s, "zmctl", "resubmit", "--check", "include")
	if code != 1 {
		t.Errorf("--check of what fails: exit code %d, %s", code, said)
	}
	wantIn(t, said, name, id, "deferred", list, "1 deferred; nothing was moved")
	s.Forget()
	wantIn(t, zmctl(t, s, "resubmit", "include"), id+"  deferred/"+name+" is router/")
	event(t, s, "deferred", "program", "router", "id", id)
	if got := read(t, path(s, "deferred/"+name)); got != file {
		t.Errorf("the message is %q, was %q", got, file)
	}
	text := read(t, path(s, reason))
	if strings.Count(text, " router deferred ") != 2 || strings.Count(text, " resubmitted\n") != 1 {
		t.Errorf("the text beside it:\n%s", text)
	}
	balance(t, s)
	write(t, list, "alice\n")
	await(t, s, "a check that finds it mended", func() (bool, error) {
		// The list is looked at once a second.
		said, code = call(t, s, "zmctl", "resubmit", "--check", "all")
		return code == 0, nil
	})
	wantIn(t, said, "routed", "local/alice", "of 1 message now: 1 routed; nothing was moved")
	var line struct{ File, Verdict string }
	if err := json.Unmarshal([]byte(zmctl(t, s, "resubmit", "--check", "--json", name)), &line); err != nil || line.Verdict != "routed" {
		t.Errorf("in JSON: got %+v, %v", line, err)
	}
	await(t, s, "delivery after resubmit", func() (bool, error) {
		if left, err := s.Left(); err != nil || len(left) == 0 {
			return true, err
		}
		_, _ = call(t, s, "zmctl", "resubmit", "all")
		return false, nil
	})
	if mail := awaitMail(t, s, "alice", 1); len(mail) != 1 || !strings.HasSuffix(string(mail[0]), "Subject: x\n\nbody\n") {
		t.Errorf("alice has %q", mail)
	}
	await(t, s, "the end of the text", func() (bool, error) {
		_, err := os.Stat(path(s, reason))
		return errors.Is(err, os.ErrNotExist), nil
	})
	balance(t, s)
}

// M10, M3: two postmasters give many messages back at once beside a running router: each
// arrives once.
func TestManyAreResubmittedOnceByTwo(t *testing.T) {
	t.Parallel()
	const n = 120
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	for i := range n {
		name := place(t, s, "deferred", fmt.Sprintf("from <bob@mta.example>\nto <x%d@sink.example>\nenv-end\nSubject: %d\n\nbody\n", i, i))
		if err := os.Rename(path(s, "deferred/"+name), path(s, "deferred/"+name+".users")); err != nil {
			t.Fatal(err)
		}
	}
	type result struct {
		said string
		code int
	}
	done := make(chan result)
	for range 2 {
		go func() {
			said, err := s.Command("zmctl", "resubmit", "--pace", "10", "users").CombinedOutput()
			r := result{said: string(said)}
			if err != nil {
				r.code = 1
			}
			done <- r
		}()
	}
	moved := 0
	for range 2 {
		r := <-done
		moved += strings.Count(r.said, " now\n")
		if r.code != 0 && !strings.Contains(r.said, "it is not in deferred/ any more") && !strings.Contains(r.said, "no file of that message is here") {
			t.Errorf("exit code %d: %s", r.code, r.said)
		}
	}
	if moved != n {
		t.Errorf("%d were moved, want %d", moved, n)
	}
	if err := sink.Wait(n, patience); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, s)
	got := map[string]int{}
	for _, m := range sink.Messages() {
		got[m.Recipients[0]]++
	}
	for i := range n {
		if to := fmt.Sprintf("x%d@sink.example", i); got[to] != 1 {
			t.Errorf("%s got it %d times", to, got[to])
		}
	}
}

// M13, A15: frozen mail was accepted and is not routed, whatever runs; discarded it comes
// back by undo, thawed it is delivered, once. The account is even at each step.
func TestFrozenMailWaitsForAPerson(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	for _, to := range []string{"alice@mta.example", "bob@mta.example"} {
		submit(t, s, "Subject: to "+to+"\n\nbody\n", "-f", "bob@mta.example", to)
	}
	wantIn(t, zmctl(t, s, "freeze", "--yes", "--all", "--reason", "looks odd"), "of 2 messages frozen")
	list := names(t, s, "freezer")
	if len(list) != 2 || !strings.HasSuffix(list[0], ".person") {
		t.Fatalf("freezer/ holds %q", list)
	}
	begin(t, s)
	submit(t, s, "Subject: other\n\n", "-f", "bob@mta.example", "bob@mta.example")
	awaitMail(t, s, "bob", 1)
	said := zmctl(t, s, "freezer", "list", "--to", "alice@*", "person")
	wantIn(t, said, "<bob@mta.example>  frozen: person", "why: looks odd", "1 message\n")
	name := strings.Fields(said)[0]
	id := strings.Fields(said)[1]
	wantIn(t, zmctl(t, s, "freezer", "show", name), "looks odd", "to <alice@mta.example>", "zmctl freezer thaw "+name)
	wantIn(t, zmctl(t, s, "why", id), "looks odd", "zmctl freezer discard "+name)
	balance(t, s)
	wantIn(t, zmctl(t, s, "freezer", "discard", "--reason", "spam", name), "removed from freezer/", "zmctl undo puts it back")
	balance(t, s)
	if got := names(t, s, "removed"); len(got) != 1 || got[0] != id+".freezer.person" {
		t.Errorf("removed/ holds %q", got)
	}
	wantIn(t, zmctl(t, s, "undo"), "is freezer/"+name+" again")
	balance(t, s)
	// A file that came later under that inode number is another message.
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path(s, "freezer/"+name), at, at); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"thaw", id}, {"discard", id}} {
		said, code := call(t, s, "zmctl", append([]string{"freezer"}, args...)...)
		if code != 64 || !strings.Contains(said, "belongs to another message now") {
			t.Errorf("freezer %q: exit code %d, %s", args, code, said)
		}
	}
	wantIn(t, zmctl(t, s, "freezer", "thaw", "--yes", "person"), "of 2 messages given to the router")
	awaitMail(t, s, "alice", 1)
	awaitMail(t, s, "bob", 2)
	awaitEmpty(t, s)
	balance(t, s)
}

// M13: what a policy freezes was accepted with 250 and stands in freezer/ under its cause,
// with the rule's reason; thawed it passes the policy that is still there, and arrives once.
func TestPolicyFreezesUntilAPersonThaws(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	configure(t, s, "router.star", "def message(m):\n    return freeze(\"flood\", \"300 in a minute\")\n")
	begin(t, s)
	// It ends without error when the end of the data was answered with 250.
	if err := smtp.SendMail(s.SMTPAddr, nil, "x@far.example", []string{"alice@mta.example"}, []byte("Subject: x\r\n\r\nbody\r\n")); err != nil {
		t.Fatal(err)
	}
	e := event(t, s, "frozen", "program", "router", "reason", "300 in a minute", "advice", "zmctl freezer thaw")
	name := filepath.Base(e.Get("name"))
	if got := names(t, s, "freezer"); len(got) != 1 || got[0] != name || !strings.HasSuffix(name, ".flood") {
		t.Fatalf("freezer/ holds %q, want %s", got, name)
	}
	wantIn(t, read(t, path(s, "freezer/reason."+strings.TrimSuffix(name, ".flood"))), e.Get("id")+" ", "router frozen flood: ", "300 in a minute")
	wantIn(t, zmctl(t, s, "freezer", "list", "fl*"), name, e.Get("id"), "frozen: flood")
	balance(t, s)
	wantIn(t, zmctl(t, s, "freezer", "thaw", name), "freezer/"+name+" is router/")
	awaitMail(t, s, "alice", 1)
	awaitEmpty(t, s)
	if n := s.Count("frozen"); n != 1 {
		t.Errorf("frozen %d times", n)
	}
	balance(t, s)
}

// M12: an only copy is mended by hand and delivered; discarded only with --force and its
// ID; a copy of a message that went on is discarded, or goes after POSTMANKEEP, the only
// copy never.
func TestPostmansMailIsMendedOrDropped(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"POSTMANCOPY": "yes", "POSTMANKEEP": "1s"}
	})
	begin(t, s)
	broken := "from <bob@mta.example>\nto <ali ce@mta.example>\nenv-end\nSubject: mend me\n\nbody\n"
	hard := place(t, s, "router", broken)
	id := event(t, s, "set-aside", "name", "postman/"+hard).Get("id")
	wantIn(t, read(t, path(s, "postman/reason."+hard)), id, "set-aside envelope line 2")
	submit(t, s, "Subject: odd\nSubject: and even\n\nbody\n", "-f", "bob@mta.example", "bob@mta.example")
	awaitMail(t, s, "bob", 1)
	soft := ""
	for _, name := range names(t, s, "postman") {
		if strings.HasSuffix(name, "_header") {
			soft = name
		}
	}
	wantIn(t, zmctl(t, s, "postman", "list"), hard+"  "+id, "set aside", soft+"  S", "copy: header", "2 messages")
	before := names(t, s, "postman")
	for what, args := range map[string][]string{
		"the only copy":                         {"discard", hard},
		"a message that still cannot be routed": {"resubmit", hard},
		"a copy, which would come twice":        {"resubmit", soft},
		"the only copy, without its spool ID":   {"discard", "--force", hard},
		"a message that is not there":           {"discard", "12345"},
	} {
		if said, code := call(t, s, "zmctl", append([]string{"postman"}, args...)...); code == 0 {
			t.Errorf("%s: postman %q: exit code %d, %s", what, args, code, said)
		}
	}
	if after := names(t, s, "postman"); !slices.Equal(after, before) {
		t.Errorf("postman/ has %q, before %q", after, before)
	}
	// By age: the copy goes, when the router looks or somebody says so.
	await(t, s, "the end of the copy", func() (bool, error) {
		said := zmctl(t, s, "cleanup")
		if !strings.Contains(said, "postman/ keeps 1 set aside") {
			return false, fmt.Errorf("cleanup: %s", said)
		}
		_, err := os.Stat(path(s, "postman/"+soft))
		return errors.Is(err, os.ErrNotExist), nil
	})
	wantIn(t, zmctl(t, s, "postman", "discard", "--force", id), "PROBLEM: envelope line 2", "removed from postman/")
	balance(t, s)
	wantIn(t, zmctl(t, s, "undo", id), "is postman/"+hard+" again")
	balance(t, s)
	// As an editor saves: another file under the name.
	file := path(s, "postman/"+hard)
	write(t, file+"~", strings.Replace(broken, "ali ce", "alice", 1))
	if err := os.Rename(file+"~", file); err != nil {
		t.Fatal(err)
	}
	zmctl(t, s, "postman", "resubmit", hard)
	if mail := awaitMail(t, s, "alice", 1); !strings.Contains(string(mail[0]), "Subject: mend me\n") {
		t.Errorf("alice has %q", mail)
	}
	awaitEmpty(t, s)
	balance(t, s)
}

// M11: each class of condition by itself, with a recipient of the same message that does
// not wait; only who waits is routed again, by the tables as they are then.
func TestEveryConditionEndsAHold(t *testing.T) {
	t.Parallel()
	server := mxtest.Start(t, "mx.far.example. 300 IN A 127.0.0.1\n")
	server.Fail("far.example MX", dns.RcodeServerFailure, -1)
	sink := newSink(t, &peer.Sink{})
	flag := ""
	s := prepare(t, sink, func(s *suite.Suite) {
		flag = filepath.Join(s.Dir, "flag")
		s.Settings = map[string]string{"RESOLVER": server.Addr}
	})
	at := time.Now().Add(4 * time.Second)
	configure(t, s, "routes", "timeout.example hold!TIMEOUT:"+strconv.FormatInt(at.Unix(), 10)+"\nage.example hold!AGE:4s\nio.example hold!IO:"+flag+
		"\nns.example hold!NS:far.example/MX\n. smtp!"+sink.RouteHost()+"\n")
	begin(t, s)
	to := []string{"x@timeout.example", "x@age.example", "x@io.example", "x@ns.example"}
	submit(t, s, "Subject: hold\n\nbody\n", append([]string{"-f", "bob@mta.example", "now@sink.example"}, to...)...)
	event(t, s, "delivered", "rcpt", "now@sink.example")
	configure(t, s, "routes", ". smtp!"+sink.RouteHost()+"\n")
	wantIn(t, zmctl(t, s, "queue"), "hold/NS:far.example/MX", "hold/IO:"+flag)
	for i, rcpt := range to {
		switch i {
		case 2:
			if n := s.Count("rerouted"); n != 2 {
				t.Errorf("%d were routed again before their conditions held", n-2)
			}
			write(t, flag, "now")
		case 3:
			server.Fail("far.example MX", dns.RcodeServerFailure, 0)
		}
		event(t, s, "rerouted", "rcpt", rcpt)
		event(t, s, "delivered", "rcpt", rcpt)
	}
	awaitEmpty(t, s)
	for _, rcpt := range append(to, "now@sink.example") {
		if list := arrivals(sink, rcpt); len(list) != 1 {
			t.Errorf("%s got it %d times", rcpt, len(list))
		}
	}
	balance(t, s)
}
