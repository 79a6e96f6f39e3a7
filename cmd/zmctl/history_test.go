package main

import (
	"testing"

	"zmailer/internal/admin/view"
	"zmailer/internal/workspec"
)

// What the router's policy decided is told with its line.
func TestHistoryTellsThePolicysDecision(t *testing.T) {
	for want, e := range map[string]workspec.Event{
		"the policy, router.star:8: route to smtp!relay.example; for a@b.example": {Event: workspec.EventPolicy,
			Attrs: []workspec.Attr{{Key: "rule", Value: "router.star:8"}, {Key: "count", Value: "1"}}, Text: "route to smtp!relay.example; for a@b.example"},
		"the policy decided 50 times more; the log has it": {Event: workspec.EventPolicy, Text: "the policy decided 50 times more; the log has it"},
		"the policy, router.star:2: reject 5.7.1: \\x1b[2J": {Event: workspec.EventPolicy,
			Attrs: []workspec.Attr{{Key: "rule", Value: "router.star:2"}}, Text: "reject 5.7.1: \x1b[2J"},
	} {
		if got := view.EventText(&e, nil); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
