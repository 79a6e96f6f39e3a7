package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// resubmitted gives deferred messages back to the router until all are delivered: tables are
// read once a second.
func resubmitted(t *testing.T, s *suite.Suite) {
	t.Helper()
	await(t, s, "delivery after resubmit", func() (bool, error) {
		if left, err := s.Left(); err != nil || len(left) == 0 {
			return true, err
		}
		_, _ = call(t, s, "zmctl", "resubmit", "all") // it may be on its way
		return false, nil
	})
}

// M10: a lookup fails: the reason is beside the message and in what zmctl prints; resubmit
// --check predicts that it fails again, and it does. When the list is there the check says so,
// and the mail is delivered, once and unchanged. The ledger agrees with the files all the time.
func TestDeferredMailIsExplainedCheckedAndResubmitted(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	list := s.Dir + "/team"
	configure(t, s, "aliases", "team: :include:"+list+"\n")
	begin(t, s)
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "team@mta.example")
	e := event(t, s, "deferred", "program", "router", "name", ".include", "reason", list, "advice", "zmctl resubmit")
	id, name := e.Get("id"), filepath.Base(e.Get("name"))
	file := read(t, path(s, "deferred/"+name))
	reason := "deferred/reason." + strings.TrimSuffix(name, ".include")
	wantIn(t, read(t, path(s, reason)), id+" ", " router deferred include: ", list)
	for _, args := range [][]string{{"queue", "--cause", "include"}, {"why", id}, {"show", id}, {"history", id}, {"resubmit"}} {
		wantIn(t, zmctl(t, s, args...), list)
	}
	wantIn(t, exits(t, s, 1, "zmctl", "resubmit", "--check", "include"), name, id, list)
	s.Forget()
	zmctl(t, s, "resubmit", "include")
	event(t, s, "deferred", "program", "router", "id", id)
	assert.Equal(t, read(t, path(s, "deferred/"+name)), file)
	text := read(t, path(s, reason))
	if strings.Count(text, " router deferred ") != 2 || strings.Count(text, " resubmitted\n") != 1 {
		t.Errorf("the text beside it:\n%s", text)
	}
	balance(t, s)
	write(t, list, "alice\n")
	await(t, s, "a check that finds it mended", func() (bool, error) {
		_, code := call(t, s, "zmctl", "resubmit", "--check", "all")
		return code == 0, nil
	})
	var line struct{ File, Verdict string }
	if err := json.Unmarshal([]byte(zmctl(t, s, "resubmit", "--check", "--json", name)), &line); err != nil || line.Verdict != "routed" {
		t.Errorf("got %+v, %v", line, err)
	}
	resubmitted(t, s)
	if mail := awaitMail(t, s, "alice", 1); len(mail) != 1 || !strings.HasSuffix(string(mail[0]), "Subject: x\n\nbody\n") {
		t.Errorf("alice has %q", mail)
	}
	await(t, s, "the end of the text", func() (bool, error) {
		_, err := os.Stat(path(s, reason))
		return errors.Is(err, os.ErrNotExist), nil
	})
	balance(t, s)
}

// M13, A15: frozen mail was accepted and is not routed, whatever runs; discarded it comes back by
// undo, thawed it is delivered, once. The ledger agrees with the files at each step.
func TestFrozenMailWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil, nil)
	for _, to := range []string{"alice@mta.example", "bob@mta.example"} {
		submit(t, s, "Subject: to "+to+"\n\nbody\n", "-f", "bob@mta.example", to)
	}
	zmctl(t, s, "freeze", "--yes", "--all", "--reason", "looks odd")
	list := names(t, s, "freezer")
	if len(list) != 2 || !strings.HasSuffix(list[0], ".person") {
		t.Fatalf("freezer/ holds %q", list)
	}
	begin(t, s)
	submit(t, s, "Subject: other\n\n", "-f", "bob@mta.example", "bob@mta.example")
	awaitMail(t, s, "bob", 1)
	fields := strings.Fields(zmctl(t, s, "freezer", "list", "--to", "alice@*", "person"))
	name, id := fields[0], fields[1]
	wantIn(t, zmctl(t, s, "freezer", "show", name), "looks odd", "to <alice@mta.example>")
	wantIn(t, zmctl(t, s, "why", id), "looks odd")
	balance(t, s)
	zmctl(t, s, "freezer", "discard", "--reason", "spam", name)
	balance(t, s)
	assert.Equal(t, only(t, s, "removed"), id+".freezer.person")
	zmctl(t, s, "undo")
	balance(t, s)
	// A file that came later under that inode number is another message.
	at := time.Now().Add(-time.Hour)
	assert.Must(t, os.Chtimes(path(s, "freezer/"+name), at, at))
	exits(t, s, 64, "zmctl", "freezer", "thaw", id)
	exits(t, s, 64, "zmctl", "freezer", "discard", id)
	zmctl(t, s, "freezer", "thaw", "--yes", "person")
	awaitMail(t, s, "alice", 1)
	awaitMail(t, s, "bob", 2)
	awaitEmpty(t, s)
	balance(t, s)
}

// M12: an only copy is corrected by hand and delivered; it is discarded only with --force and its
// spool ID. A copy of a message that went on is dropped after POSTMANKEEP, an only copy never.
func TestPostmansMailIsCorrectedOrDropped(t *testing.T) {
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
	wantIn(t, zmctl(t, s, "postman", "list"), hard, id, soft)
	before := names(t, s, "postman")
	for _, args := range [][]string{
		{"discard", hard},            // the only copy
		{"resubmit", hard},           // still cannot be routed
		{"resubmit", soft},           // would be delivered twice
		{"discard", "--force", hard}, // without its spool ID
		{"discard", "12345"},         // not there
	} {
		if _, code := call(t, s, "zmctl", append([]string{"postman"}, args...)...); code == 0 {
			t.Errorf("postman %q: exit code 0", args)
		}
	}
	if after := names(t, s, "postman"); !slices.Equal(after, before) {
		t.Errorf("postman/ has %q, before %q", after, before)
	}
	await(t, s, "the end of the copy", func() (bool, error) {
		zmctl(t, s, "cleanup")
		_, err := os.Stat(path(s, "postman/"+soft))
		return errors.Is(err, os.ErrNotExist), nil
	})
	zmctl(t, s, "postman", "discard", "--force", id)
	balance(t, s)
	zmctl(t, s, "undo", id)
	balance(t, s)
	replace(t, path(s, "postman/"+hard), strings.Replace(broken, "ali ce", "alice", 1))
	zmctl(t, s, "postman", "resubmit", hard)
	if mail := awaitMail(t, s, "alice", 1); !strings.Contains(string(mail[0]), "Subject: mend me\n") {
		t.Errorf("alice has %q", mail)
	}
	awaitEmpty(t, s)
	balance(t, s)
}

// M11: recipients of one message wait on channel hold for each class of condition; when it holds
// they alone are routed again, by the tables as they are then. A field is added once.
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
	submit(t, s, "Subject: hold\nMessage-ID: <1@held.example>\n\nbody\n", append([]string{"-f", "bob@mta.example", "now@sink.example"}, to...)...)
	event(t, s, "delivered", "rcpt", "now@sink.example")
	configure(t, s, "routes", ". smtp!"+sink.RouteHost()+"\n")
	wantIn(t, zmctl(t, s, "queue"), "hold/NS:far.example/MX", "hold/IO:"+flag)
	for i, rcpt := range to {
		switch i {
		case 2:
			assert.Equal(t, s.Count("rerouted"), 2)
			write(t, flag, "now")
		case 3:
			server.Fail("far.example MX", dns.RcodeServerFailure, 0)
		}
		event(t, s, "rerouted", "rcpt", rcpt)
		event(t, s, "delivered", "rcpt", rcpt)
	}
	awaitEmpty(t, s)
	wantEach(t, sink, 1, append(to, "now@sink.example")...)
	for _, m := range sink.Messages() {
		for _, field := range []string{"Received:", "Message-ID: <1@held.example>", "From:", "Date:", "Subject: hold"} {
			assert.Equal(t, strings.Count(string(m.Data), field), 1, m.Recipients)
		}
	}
	balance(t, s)
}

const policyText = `def message(m):
    if m.header("Subject") == "hold this":
        return freeze("odd", "the subject looks odd")
    return None

def recipient(m, r):
    if r.address == "boss@mta.example":
        return reject("5.7.1", "the boss reads no mail")
    if r.address == "old@mta.example":
        return [redirect("alice@mta.example"), add_header("X-Was-For", r.address)]
    if r.domain == "away.example":
        return route("smtp!%s")
    return None
`

// What router.star decides happens: a route of its own, a new address, and a reject whose
// text is in the report. A thawed message is delivered, although the program would freeze it again.
func TestPolicyRoutesRejectsAndFreezes(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, nil, func(s *suite.Suite) {
		s.Files["router.star"] = strings.Replace(policyText, "%s", sink.RouteHost(), 1)
	})
	submit(t, s, "Subject: three\n\nx\n", "-f", "bob@mta.example", "ann@away.example", "boss@mta.example", "old@mta.example")
	assert.Must(t, sink.Wait(1, patience))
	wantIn(t, string(awaitMail(t, s, "alice", 1)[0]), "X-Was-For: old@mta.example\n", "Subject: three\n")
	report := string(awaitMail(t, s, "bob", 1)[0])
	wantIn(t, report, "Status: 5.7.1", "the boss reads no mail", "boss@mta.example")
	if strings.Contains(string(sink.Messages()[0].Data), "X-Was-For") {
		t.Errorf("ann has what is old's:\n%s", sink.Messages()[0].Data)
	}
	event(t, s, "policy", "rcpt", "boss@mta.example", "decision", "reject 5.7.1", "rule", "router.star:8")

	submit(t, s, "Subject: hold this\n\nx\n", "-f", "bob@mta.example", "alice@mta.example")
	id := event(t, s, "frozen").Get("id")
	name := only(t, s, "freezer")
	if !strings.HasSuffix(name, ".odd") {
		t.Errorf("freezer/ holds %s", name)
	}
	wantIn(t, zmctl(t, s, "freezer", "show", id), "router.star:3: the subject looks odd")
	file := path(s, "freezer/"+name)
	before := read(t, file)
	said, _ := call(t, s, "zmctl", "route", "--message", file)
	wantIn(t, said, "freezer/ (odd)", "the subject looks odd")
	if got := read(t, file); got != before || only(t, s, "freezer") != name {
		t.Errorf("asking has changed it")
	}
	zmctl(t, s, "freezer", "thaw", id)
	wantIn(t, string(awaitMail(t, s, "alice", 2)[1]), "\n\nx\n")
	awaitEmpty(t, s)
	balance(t, s)
	stop(t, s)
}

// replace puts another file in the place of one, as an editor does.
func replace(t *testing.T, name, text string) {
	t.Helper()
	write(t, name+"~", text)
	if err := os.Rename(name+"~", name); err != nil {
		t.Fatal(filepath.Base(name), err)
	}
}
