package store

import (
	"testing"

	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// Own mail is what a local user has submitted or one who logged in; what has no sender is
// a report, whoever submitted it.
func TestAtk3WhoseMailItIs(t *testing.T) {
	null := workspec.Sender{Channel: "error", Host: "-", Address: "<>", Privilege: "65534"}
	outside := workspec.Sender{Channel: "local", Address: "x@far.example", Privilege: "65534"}
	local := workspec.Sender{Channel: "local", Address: "bob@mta.example", Privilege: "1000"}
	for name, c := range map[string]struct {
		own  bool
		from workspec.Sender
		want thread.Origin
	}{
		"from outside":             {false, outside, thread.Relayed},
		"from a local user":        {false, local, thread.Own},
		"from one who logged in":   {true, outside, thread.Own},
		"a report":                 {false, null, thread.Report},
		"a report of one's own":    {true, null, thread.Report},
		"of a program like sample": {false, workspec.Sender{Channel: "smtp", Address: "x@far.example"}, thread.Relayed},
	} {
		spec := &workspec.Spec{Own: c.own, Groups: []workspec.Group{{Sender: c.from}}}
		if got := whoseMail(spec); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
	one := &work{spec: &workspec.Spec{Groups: []workspec.Group{{Sender: outside}}}}
	other := &work{spec: &workspec.Spec{Own: true, Groups: []workspec.Group{{Sender: outside}}}}
	a, b := &thread.Message{Sender: senderKey(one.spec)}, &thread.Message{Sender: senderKey(other.spec)}
	if !a.SameSender(b) || a.Origin() == b.Origin() {
		t.Errorf("origins %v and %v of one sender", a.Origin(), b.Origin())
	}
}
