package engine

import (
	"fmt"
	"os"
	"testing"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// said is a message that may be named by another one, or name it.
type said struct {
	sender, uid, ident string
	supersedes         []string
	rcpt               string
	// before is done when it is accepted and not in the queue yet.
	before func()
}

func (r *rig) say(s said) (name string) {
	r.T.Helper()
	name, err := storetest.QueueWith(r.PO, s.sender, storetest.Header, "b\n", []storetest.Rcpt{{Line: s.rcpt}}, func(spec *workspec.Spec, from *workspec.Sender) {
		spec.Ident, spec.Obsoletes, from.Privilege = s.ident, s.supersedes, s.uid
		if s.before != nil {
			s.before()
		}
	})
	assert.Must(r.T, err)
	return name
}

// supersedeRig has one agent of one slot for each host.
func supersedeRig(t *testing.T) *rig { return newRig(t, scriptConf("", "maxthr=1"), 0, slowly) }

// M45: purged only for the same sender, and only what is older and named.
func TestOnlyTheSendersEarlierMessageIsSuperseded(t *testing.T) {
	t.Parallel()
	old := said{sender: "bob@example.org", uid: "1000", ident: "<1@x>", rcpt: "smtp h defer9.old@h"}
	later := said{sender: "bob@example.org", uid: "1000", ident: "<2@x>", supersedes: []string{"<0@x>", "<1@x>"}, rcpt: "smtp h defer9.new@h"}
	for name, c := range map[string]struct {
		old, later func(*said)
		gone       bool
		logged     string // in the line of not-obsoleted; "": there is none
	}{
		"named":                {nil, nil, true, ""},
		"domain in capitals":   {func(s *said) { s.sender = "bob@EXAMPLE.org" }, func(s *said) { s.sender = "bob@EXAMPLE.org" }, true, ""},
		"another one is named": {nil, func(s *said) { s.supersedes = []string{"<3@x>"} }, false, ""},
		"of another uid":       {nil, func(s *said) { s.uid = "1001" }, false, "uid 1000"},
		"from outside":         {func(s *said) { s.uid = "65534" }, nil, false, "reason="},
		"named from outside":   {nil, func(s *said) { s.uid = "65534" }, false, ""},
		"of another sender":    {func(s *said) { s.sender = "eve@example.org" }, nil, false, ""},
		"of the null sender":   {func(s *said) { s.sender = "<>" }, func(s *said) { s.sender = "<>" }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := supersedeRig(t)
			first, second := old, later
			if c.old != nil {
				c.old(&first)
			}
			if c.later != nil {
				c.later(&second)
			}
			r.start()
			was := r.say(first)
			id := r.ID(was).String()
			r.wait(1, "msg=recorded", "id="+id)
			r.say(second)
			r.wait(2, "msg=recorded")
			if c.gone {
				r.wait(1, "msg=obsoleted", "id="+id, "rcpt=defer9.old@h")
				r.wait(1, "msg=removed", "rcpts=", "id="+id)
				if _, err := os.Stat(r.dir + "/removed/" + id + ".queue"); err != nil {
					t.Error(err)
				}
			} else {
				// One that is made superseded afterwards: what concerns the first is done then.
				fence, by := old, later
				fence.ident, fence.rcpt, by.supersedes = "<fence@x>", "smtp h defer9.fence@h", []string{"<fence@x>"}
				r.say(fence)
				r.wait(3, "msg=recorded")
				r.say(by)
				r.wait(1, "msg=obsoleted", "rcpt=defer9.fence@h")
				if c.logged != "" {
					r.wait(1, "msg=not-obsoleted", "id="+id, c.logged)
				}
				r.never("msg=obsoleted", "id="+id)
				assert.Equal(t, r.Parse(was).Groups[0].Recipients[0].Tag, workspec.TagToDo, "tag")
			}
			r.stop()
			r.reports(0)
		})
	}
}

// Which of the two gets into the queue first does not matter, and a message is never
// made superseded by an older one.
func TestMessageThatComesLateIsSuperseded(t *testing.T) {
	t.Parallel()
	r := supersedeRig(t)
	r.start()
	var second string
	first := r.say(said{sender: "bob@x", uid: "1000", ident: "<1@x>", supersedes: []string{"<2@x>"}, rcpt: "smtp h ok.first@h", before: func() {
		second = r.say(said{sender: "bob@x", uid: "1000", ident: "<2@x>", supersedes: []string{"<1@x>"}, rcpt: "smtp dead defer9.second@h"})
		r.wait(1, "msg=recorded")
	}})
	r.wait(1, "msg=obsoleted", "name="+first)
	r.wait(1, "msg=removed", "rcpts=")
	r.never("msg=obsoleted", "name="+second)
}

// What an agent has at that moment is delivered once if that succeeds, and made superseded if
// not.
func TestMessageThatAnAgentHasIsSupersededIfItFails(t *testing.T) {
	t.Parallel()
	r := supersedeRig(t)
	r.start()
	old := r.say(said{sender: "bob@x", uid: "1000", ident: "<1@x>", rcpt: "smtp h gate@h"})
	id := r.ID(old).String()
	open := r.atGate()
	r.say(said{sender: "bob@x", uid: "1000", ident: "<2@x>", supersedes: []string{"<1@x>"}, rcpt: "smtp other ok.new@other"})
	r.wait(1, "msg=obsoleted", "id="+id, "an agent delivers it")
	open()
	r.wait(1, "msg=delivered", "id="+id)
	r.wait(1, "msg=finished", "id="+id)

	late := r.say(said{sender: "bob@x", uid: "1000", ident: "<3@x>", rcpt: "smtp h gatelater@h"})
	id = r.ID(late).String()
	open = r.atGate()
	r.say(said{sender: "bob@x", uid: "1000", ident: "<4@x>", supersedes: []string{"<3@x>"}, rcpt: "smtp other ok.newer@other"})
	r.wait(1, "msg=obsoleted", "id="+id, "an agent delivers it")
	open()
	r.wait(1, "msg=removed", "rcpts=", "id="+id)
	r.stop()
	r.reports(0)
}

// What an operator has put back stays, also when the scheduler starts again.
func TestRestoredMessageStays(t *testing.T) {
	t.Parallel()
	r := supersedeRig(t)
	r.start()
	old := r.say(said{sender: "bob@x", uid: "1000", ident: "<1@x>", rcpt: "smtp h defer9.old@h"})
	q := r.Request(old)
	r.wait(1, "msg=recorded")
	r.say(said{sender: "bob@x", uid: "1000", ident: "<2@x>", supersedes: []string{"<1@x>"}, rcpt: "smtp h defer9.new@h"})
	r.wait(1, "msg=removed", "rcpts=", fmt.Sprintf("id=%s", q.ID))
	if _, err := operations.UndoShelved(q); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.start()
	r.wait(1, "msg=not-obsoleted", fmt.Sprintf("id=%s", q.ID))
}
