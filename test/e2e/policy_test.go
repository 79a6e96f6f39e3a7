package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

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
// text is in the report. What a person has thawed is delivered, though the program would
// freeze it again.
func TestPolicyRoutesRejectsAndFreezes(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, nil, func(s *suite.Suite) {
		s.Files["router.star"] = strings.Replace(policyText, "%s", sink.RouteHost(), 1)
	})
	submit(t, s, "Subject: three\n\nx\n", "-f", "bob@mta.example", "ann@away.example", "boss@mta.example", "old@mta.example")
	must(t, sink.Wait(1, patience))
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

// M10: a program that fails defers, with place and calls; mended it is read again, and the
// message is delivered, once. One that cannot be used is refused, and the one before stays.
func TestPolicyThatFailsLosesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Files["router.star"] = "def level(m):\n    return 100 // m.count\n\ndef message(m):\n    if level(m) > 99:\n        return int(m.header(\"X-Level\"))\n"
	})
	star := confFile(s, "router.star")
	submit(t, s, "Subject: x\n\nbody\n", "-f", "bob@mta.example", "alice@mta.example")
	id := event(t, s, "deferred", "program", "router").Get("id")
	name := only(t, s, "deferred")
	if !strings.HasSuffix(name, ".policy") {
		t.Errorf("deferred/ holds %s", name)
	}
	reason := read(t, path(s, "deferred/reason."+strings.TrimSuffix(name, ".policy")))
	wantIn(t, reason, id, " router deferred policy: router.star:6:19: int: ", "in message")
	said, code := call(t, s, "zmctl", "check-config")
	if code != 78 {
		t.Errorf("check-config of a program that always fails: exit code %d, %s", code, said)
	}
	wantIn(t, said, star+":6:19: int: ")

	replace(t, star, "def message(m):\n    return add_header(\"X-Level\", \"7\") if True\n")
	// It is looked at when mail is routed, once a second.
	await(t, s, "refusal of a bad program", func() (bool, error) {
		_, _ = call(t, s, "zmctl", "resubmit", "policy") // it may be on its way
		return strings.Contains(s.Log(), `"policy-refused"`) && len(names(t, s, "deferred")) == 1, nil
	})
	event(t, s, "policy-refused", "reason", star+":2:")
	said, code = call(t, s, "zmctl", "check-config")
	if code != 78 {
		t.Errorf("check-config: exit code %d, %s", code, said)
	}
	wantIn(t, said, star+":2:")

	replace(t, star, "def message(m):\n    return add_header(\"X-Level\", \"7\")\n")
	exits(t, s, 0, "zmctl", "check-config")
	resubmitted(t, s)
	event(t, s, "policy-read")
	mail := awaitMail(t, s, "alice", 1)
	if wantIn(t, string(mail[0]), "X-Level: 7\n", "\n\nbody\n"); len(mail) != 1 {
		t.Errorf("alice has %d messages", len(mail))
	}
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
