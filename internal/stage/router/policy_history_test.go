package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/workspec"
)

// policyEvents are the events of the policy in a specification, which is whole with them.
func policyEvents(t *testing.T, m routed) []string {
	t.Helper()
	if !workspec.Complete(m.file) {
		t.Errorf("the specification is not whole:\n%s", m.file)
	}
	var list []string
	for _, e := range m.spec.History {
		if e.Event != workspec.EventPolicy || e.Recipient != 0 || e.Time.IsZero() {
			t.Errorf("event %+v", e)
		}
		s := e.Get("rule") + " "
		if n := e.Get("count"); n != "" {
			s += n + " "
		}
		list = append(list, s+e.Text)
	}
	return list
}

// What the policy decided stands in the history of the message, with the rule's line.
func TestHistoryTellsWhatThePolicyDecided(t *testing.T) {
	t.Parallel()
	const star = `def message(m):
    return [add_header("X-A", "b c"), copy("archive@b.example")]

def recipient(m, r):
    if r.local == "old":
        return reject("5.1.6", "gone to new@far.example")
    if r.domain == "far.example":
        return route("smtp!relay.example")
`
	o := newOffice(t, map[string]string{"router.star": star})
	text := "from <q@example.net>\n"
	for i := range 7 {
		text += fmt.Sprintf("to <x%d@far.example>\n", i)
	}
	m := o.one(text + "to <old@far.example>\nto <bond@example.org>\nenv-end\nFrom: q@example.net\n\n")
	want := []string{
		"router.star:2 add header X-A: b c",
		"router.star:2 copy to archive@b.example",
		"router.star:8 7 route to smtp!relay.example; for x0@far.example, x1@far.example, x2@far.example, x3@far.example, x4@far.example and 2 more",
		"router.star:6 1 reject 5.1.6: gone to new@far.example; for old@far.example",
	}
	if diff := cmp.Diff(want, policyEvents(t, m)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if got := len(policyEvents(t, newOffice(t, nil).one(text+"env-end\nFrom: q@example.net\n\n"))); got != 0 {
		t.Errorf("%d events without a policy", got)
	}
}

func TestHistoryOfThePolicyIsBounded(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"router.star": "def recipient(m, r):\n    return redirect(r.local + \"@b.example\")\n"})
	text := "from <q@example.net>\n"
	for i := range maxDecided + 50 {
		text += fmt.Sprintf("to <x%d@far.example>\n", i)
	}
	list := policyEvents(t, o.one(text+"env-end\nFrom: q@example.net\n\n"))
	if len(list) != maxDecided+1 || list[maxDecided] != " the policy decided 50 times more; the log has it" {
		t.Errorf("%d events, the last %q", len(list), list[len(list)-1])
	}
	if got := strings.Count(o.log.String(), "msg=policy "); got != maxDecided+50 {
		t.Errorf("%d decisions in the log", got)
	}
}
