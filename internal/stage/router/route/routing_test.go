package route

import (
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/workspec"
)

// toMany returns an envelope with n recipients.
func toMany(n int, rcpt string) string {
	var b strings.Builder
	b.WriteString("external\nfrom <q@example.net>\n")
	for i := range n {
		fmt.Fprintf(&b, "to <"+rcpt+">\n", i)
	}
	return b.String() + "env-end\n"
}

// M15, but for the report
func TestMessageWithTooManyReceivedFieldsIsALoop(t *testing.T) {
	for n, want := range map[int]string{
		maxReceived:     "local bond@example.org bond@example.org, smtp example.net a@example.net",
		maxReceived + 1: "error loop a@example.net, error loop bond@example.org",
	} {
		m := newRig(t).one("from <q@example.net>\nto <a@example.net>\nto <bond@example.org>\nenv-end\n" + strings.Repeat("RECEIVED: by a; x\n", n) + "From: q@example.net\n\n")
		assert.Equal(t, strings.Join(m.recipients(), ", "), want, "%d fields", n)
	}
}

// Atk7: a message to very many aliases does not get a header for each, nor an alias of very
// many addresses, here and elsewhere by turns, one for each change between them.
func TestAtk7HeadersOfForwardedMailAreBounded(t *testing.T) {
	const many, large = 3000, 30_000
	var aliases, members strings.Builder
	for i := range many {
		fmt.Fprintf(&aliases, "a%d: x%d@far.example\n", i, i)
	}
	for i := range large / 2 {
		fmt.Fprintf(&members, "bond+%d\nx%d@far.example\n", i, i)
	}
	r := newRig(t)
	r.table("all", members.String())
	r.table("aliases", aliases.String()+"all: \":include:"+r.conf+"/all\"\n")
	for n, text := range map[int]string{
		many:  toMany(many, "a%d@example.org") + "X-Large: " + strings.Repeat("x", 60_000) + "\n\n",
		large: "external\nfrom <q@example.net>\nto <all@example.org>\nenv-end\nX-Large: " + strings.Repeat("x", 10_000) + "\n\n",
	} {
		m := r.one(text)
		assert.Equal(t, m.Recipients, n, "recipients")
		if got := len(m.file); got > mostForwardedB+2<<20+200*n {
			t.Errorf("the specification of %d recipients has %d bytes", n, got)
		}
	}
}

// Variants hold also where recipients are written as they are found.
func TestManyRecipientsInVariants(t *testing.T) {
	const n = maxSorted + 50
	r := newRig(t)
	r.table("router.star", "def recipient(m, r):\n    return add_header(\"X-Odd\", \"yes\") if int(r.local[1:]) % 2 else None\n")
	m := r.one(toMany(n, "u%d@far.example") + "From: q@example.net\n\n")
	assert.Equal(t, m.Recipients, n, "recipients")
	for _, g := range m.spec.Groups {
		odd := strings.Contains(string(m.file[g.HeaderOffset:g.HeaderEnd]), "X-Odd: yes\n")
		for _, r := range g.Recipients {
			if local, _, _ := strings.Cut(r.Address, "@"); (local[len(local)-1]-'0')%2 == 1 != odd {
				t.Fatalf("%s: the header is that of the others", r.Address)
			}
		}
	}
}

// The log has each decision, the history of the message a bounded number.
func TestHistoryOfThePolicyIsBounded(t *testing.T) {
	r := newRig(t)
	log := &logtest.Buffer{}
	r.config.Log = log.Logger()
	r.table("router.star", "def recipient(m, r):\n    return redirect(r.local + \"@b.example\")\n")
	m := r.one(toMany(maxDecided+50, "x%d@far.example") + "From: q@example.net\n\n")
	var events []workspec.Event
	for _, e := range m.spec.History {
		if e.Event == workspec.EventPolicy {
			events = append(events, e)
		}
	}
	assert.Equal(t, len(events), maxDecided+1, "events")
	log.Expect(t, maxDecided+50, "msg=policy ", "id=", "decision=", "rule=router.star:2")
}

// A sender that is replaced is logged; an Explainer names it.
func TestReplacedSenderIsKnown(t *testing.T) {
	r := newRig(t)
	log := &logtest.Buffer{}
	r.config.Log, r.config.OwnSenders = log.Logger(), true
	const text = "external\nfrom <boss@far.example>\nto <x@far.example>\nenv-end\n\n"
	en := r.engine()
	r.route(en, r.claim(1, text))
	log.Expect(t, 1, "msg=sender-replaced", "uid=1 ", "claimed=<boss@far.example>", "from=daemon@mx.example.org")
	e, _ := r.explained(en, 1, text)
	assert.Same(t, []any{e.Trusted, e.External, e.Claimed, e.Login}, []any{false, false, "<boss@far.example>", "daemon"}, "explained")
	e, _ = r.explained(en, 0, text)
	assert.Same(t, []any{e.Trusted, e.External, e.Claimed, e.Login}, []any{true, true, "", "root"}, "explained for root")
}

// M12: what is wrong with a header; the message goes on as it is.
func TestFaultsOfHeaders(t *testing.T) {
	for header, wrong := range map[string]bool{
		"From: \"Q <q@example.net>\nTo: a@example.net\n":                               true,
		"From: q@example.net (Q (R)\nTo: a@example.net\n":                              true,
		"From: q@example.net R)\n":                                                     true,
		"From: <<q@example.net>>\n":                                                    true,
		"From: Q <q@example.net\n":                                                     true,
		"To: a@example.net>\nFrom: q@example.net\n":                                    true,
		"From: q@example.net\nthis is no field\nSubject: x\n":                          true,
		"From: q@example.net\n\x01\x02\n":                                              true,
		"From: J\xf6rg <q@example.net>\n":                                              true,
		"From: q@example.net\nX-\xf6: x\n":                                             true,
		"From: q@example.net\nSubject: x\n \t \n y\n":                                  true,
		"From: q@example.net\nSubject: x\nSUBJECT: y\n":                                true,
		"From: q@example.net\nFrom: r@example.net\n":                                   true,
		"From: q@example.net\nMessage-ID: <1@x>\nMessage-ID: <2@x>\n":                  true,
		"X: " + strings.Repeat("x", 996) + "\n":                                        true, // 999 bytes
		"From: q@example.net\nSubject: a\x00b\n":                                       true,
		"From: q@example.net\nSubject: a\rb\n":                                         true,
		"X: " + strings.Repeat("x", 995) + "\n":                                        false,
		"From: \"Q, R\" <q@example.net>\nTo: a@x (A (B) \\)), G: c@x;\nSubject: (<y\n": false,
		"From: q@example.net\nTo: a@example.net,\n\tb@example.net\n":                   false,
		"From: Jörg <jörg@bücher.example>\n":                                           false, // RFC 6532
		"Received: a\nReceived: b\nDKIM-Signature: a\nDKIM-Signature: b\n":             false,
		"Resent-From: a@x\nResent-From: b@x\nFrom: q@example.net\n":                    false,
		"From: q@example.net (it's a \" thing)\n":                                      false,
		"From: \"<<\" <q@example.net>\n":                                               false,
		"From:\nTo: \nSubject:\n":                                                      false,
		"From: q@example.net\r\nSubject: a\r\n b\r\n":                                  false,
		"": false,
	} {
		h := parsedHeader(header)
		assert.Equal(t, h.fault() != "", wrong, "%q: %s", header, h.fault())
	}
}

func parsedHeader(text string) *header {
	h := &header{}
	h.look([]byte(text))
	return h
}

// What is not a file is not waited for; what is gone has moved on.
func TestExplainerOpensFilesOnly(t *testing.T) {
	r := newRig(t)
	x := assert.Get(NewExplainer(r.config, t.TempDir(), 0))(t)
	defer x.Close()
	dir := assert.Get(OpenMessages(r.conf))(t)
	defer dir.Close()
	assert.Equal(t, x.ExplainFile(t.Context(), dir, "none").Verdict, VerdictGone, "verdict")
	assert.Equal(t, x.ExplainFile(t.Context(), dir, "forward").Verdict, VerdictUnreadable, "verdict")
}
