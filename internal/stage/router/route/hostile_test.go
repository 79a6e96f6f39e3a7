package route

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
)

// Op9: no sender or recipient changes a question of smtpserver about it, or the answer: RCPTCHECK,
// reject_unlisted_sender and reject_unlisted_recipient ask so.
func TestNoTextChangesAnAnswerAboutARecipient(t *testing.T) {
	v := newVerifier(t, map[string]string{})
	var in, out strings.Builder
	want := map[string]string{}
	for _, s := range hostile.Texts(t) {
		for _, to := range []string{s, hostile.Quoted(s) + "@example.org", "bond@" + s, hostile.Quoted(s) + "@far.example"} {
			for _, from := range []string{"<q@example.net>", "<" + hostile.Quoted(s) + "@x.example>", s} {
				id := fmt.Sprint(len(want))
				fmt.Fprintf(&in, "%s %s %s\n", id, address.EncodeXText(from), address.EncodeXText(to))
				want[id] = v.Verify(context.Background(), from, to).String()
			}
		}
	}
	assert.Must(t, v.Serve(context.Background(), strings.NewReader(in.String()), &out))
	_, text, _ := strings.Cut(out.String(), "\n")
	got := map[string]string{}
	for line := range strings.Lines(text) {
		id, answer, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if _, twice := got[id]; twice {
			t.Errorf("two answers to %s", id)
		}
		got[id] = answer
		if f := strings.Fields(answer); f[0] == RcptKnown && (len(f) != 5 || f[2] != "smtp" && f[2] != "local") {
			t.Errorf("%s is answered %q", id, answer)
		}
	}
	assert.Same(t, got, want)
}

// Loc5: with SENDERCHECK=owner no text that a user gives as the sender is one but the user's own, and it
// adds no line to the specification.
func TestNoTextIsASenderThatAUserMayNotBe(t *testing.T) {
	r := newRig(t)
	r.config.OwnSenders = true
	en := r.engine()
	routed := 0
	for _, s := range append(hostile.Texts(t), "daemon@evil.example", "daemon@example.org@evil.example", "daemon") {
		if strings.ContainsAny(s, "\r\n") {
			continue // submit writes one line
		}
		for _, from := range []string{s, hostile.Quoted(s) + "@example.org"} {
			m := r.route(en, r.claim(1, "from <"+from+">\nto <a@example.net>\nenv-end\nFrom: x@y.example\n\nb\n"))
			if m.spec == nil {
				continue
			}
			routed++
			lines := map[string][]string{}
			head, _, _ := strings.Cut(string(m.file), "\nReceived:")
			for line := range strings.Lines(head) {
				word, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
				lines[word] = append(lines[word], value)
			}
			if e := lines["e"]; len(e) != 1 || e[0] != "daemon@mx.example.org" && e[0] != "daemon@example.org" {
				t.Errorf("%q: reports go to %q", from, e)
			}
			if len(lines["r"]) != 1 || len(lines["s"]) != 1 || len(m.spec.Groups) != 1 || len(m.spec.Groups[0].Recipients) != 1 {
				t.Errorf("%q: the specification is\n%s", from, m.file)
			}
		}
	}
	if routed < 200 {
		t.Errorf("%d routed", routed)
	}
}
