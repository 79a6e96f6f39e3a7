package main

import (
	"errors"
	"fmt"
	"path"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// queue looks at queue/ and transport/ together.
func (x *checker) queue() {
	seen := map[postoffice.Name]bool{}
	var names []postoffice.Name
	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		here := map[postoffice.Name]file{}
		x.each(dir, func(f file) {
			n, ok := postoffice.ParseName(f.Name)
			other, twice := here[n]
			noted, note := postoffice.ParseNote(f.Name)
			of, copied := postoffice.ParseCopy(f.Name)
			switch {
			case note && dir == postoffice.Transport && f.Info.Mode.IsRegular():
				x.tell(about(f.path(), "note").say("A person's command has changed transport/%s; the scheduler reads that again and removes this.", noted))
				return
			case copied && dir == postoffice.Transport && f.Info.Mode.IsRegular():
				x.tell(about(f.path(), "copy").say("The scheduler was replacing transport/%s by a copy with a shorter history; when it starts it removes what is left of that.", of))
				return
			case !f.Info.Mode.IsRegular():
				x.foreign(f, "Neither a regular file nor a hash directory: nothing takes it up.")
				return
			case !ok:
				x.foreign(f, "Not a spool file's name: nothing takes it up.")
				return
			case twice:
				x.double(f, other, n)
			case !seen[n]:
				seen[n] = true
				names = append(names, n)
			}
			here[n] = f
			if dir == postoffice.Queue {
				x.note(f, n, rankQueue)
			}
		})
	}
	// What a specification was made of is known when all are read.
	var lone []*message
	for _, n := range names {
		if m := x.queued(n); m != nil {
			lone = append(lone, m)
		}
	}
	for _, m := range lone {
		x.judged(m)
	}
}

// double tells of two files with one name at different hash depths, unless one was
// moved from the one to the other place while we looked.
func (x *checker) double(a, b file, n postoffice.Name) {
	used, err := x.find(a.Dir, n)
	if err != nil || !x.exists(a.path()) || !x.exists(b.path()) {
		return
	}
	if used.Name == a.Name {
		a, b = b, a
	}
	r := about(a.path(), "double")
	r.part = "double"
	x.tell(r.wrong(double, "The same name stands as %s too. One of the two is a copy; zmctl check --repair keeps the one that belongs to the specification.", b.path()))
}

// queued looks at a message with its specification, whichever of them is there. A
// specification without message is returned, to be judged when all are read.
func (x *checker) queued(n postoffice.Name) *message {
	m, err := x.loadQueued(n)
	if errors.Is(err, errMoved) {
		return nil
	}
	if err != nil {
		r := about(n.String(), stateQueued)
		r.key = n.String()
		x.tell(r.wrong(unreadable, "%v", err))
		return nil
	}
	if m.parsed != nil {
		x.recorded(m)
	}
	if m.State == stateFinishing {
		return m
	}
	x.judged(m)
	return nil
}

// judged tells of a message in queue/ and transport/.
func (x *checker) judged(m *message) {
	if !x.wants(m.Name) {
		return
	}
	name := m.Name
	if len(m.Files) > 0 {
		name = m.Files[len(m.Files)-1]
	}
	r := about(name, m.State)
	r.key, r.id = m.Name, identity(m.ID, m.parsed)
	if m.ID != "" {
		r.say("%s, %s old, %s.", m.ID, human.Span(x.now.Sub(m.Since)), human.Count(len(m.Recipients), "recipient"))
	} else {
		r.say("%s.", human.Count(len(m.Recipients), "recipient"))
	}
	x.judge(r, m)
	if m.Problem != "" {
		r.say("Wrong: %s.", m.Problem)
	}
	r.text = append(r.text, x.next(m)...)
	x.tell(r)
}

// identity tells a message from others that have its name at another time.
func identity(id string, spec *workspec.Spec) string {
	if spec != nil {
		id += " " + spec.Ident
	}
	return id
}

// judge says what is wrong with a message.
func (x *checker) judge(r *report, m *message) {
	switch m.State {
	case stateHandedOver:
		switch {
		case m.unread:
			r.wrong(unreadable, "")
		case m.Problem != "":
			r.wrong(brokenMessage, "")
		}
		if m.Owner == nil || !m.Owner.Alive {
			r.wrong(noSpec, "")
		}
		return
	case stateFinishing:
		x.judgeFinishing(r, m)
		return
	}
	switch {
	case m.parsed == nil && m.unread:
		r.wrong(unreadable, "")
		return
	case m.parsed == nil && m.newer:
		r.wrong(unknownFormat, "Another program wrote it, or a newer one: it is left as it is.")
		return
	case m.parsed == nil:
		r.wrong(badSpec, "zmctl check --repair puts the specification into quarantine/ and has the message routed again; recipients that had it get it twice.")
		return
	case !m.parsed.Complete:
		r.wrong(cutSpec, "")
		return
	}
	x.judgePair(r, m)
	if m.parsed.Torn {
		r.say("Its last line is torn; readers ignore it.")
	}
	x.progress(r, m)
}

func (x *checker) judgeFinishing(r *report, m *message) {
	if to := x.replaced[m.Name]; to != "" {
		r.wrong(superseded, "A repair that was interrupted has made %s of it. zmctl check --repair removes it.", to)
		return
	}
	switch {
	case m.parsed == nil && m.newer:
		r.wrong(unknownFormat, "Another program wrote it, or a newer one: it is left as it is.")
		return
	case m.parsed == nil:
		r.wrong(badSpec, "Its message is gone, too.")
		return
	case x.putAway(m.parsed):
		r.say("Its message is in removed/: a person took it out, or is putting it back. The scheduler brings the two together.")
		return
	}
	for i := range m.Recipients {
		if m.Recipients[i].open() {
			r.wrong(messageGone, "")
			return
		}
	}
}

// judgePair says whether message and specification belong together and have the
// right names.
func (x *checker) judgePair(r *report, m *message) {
	if o := m.parsed.BodyOffset; o > m.Size {
		r.wrong(mismatch, "The body is said to start at byte %d of a file of %d bytes: message and specification do not belong together, or the message was cut off.", o, m.Size)
	}
	n, _ := postoffice.ParseName(m.Name)
	if number, ok := m.parsed.Number(); m.parsed.Message != "" && (!ok || number != n.Ino) {
		r.wrong(otherNumber, "The specification names the message %s: the scheduler does not take it.", m.parsed.Message)
	}
	r.misnumbered(m.message, n, "zmctl check --repair renames both files, with the scheduler stopped.")
	if queue, spec := path.Dir(m.message.Name), path.Dir(m.spec.Name); queue != spec {
		r.wrong(hashDepths, "Message and specification stand at different hash depths; the scheduler moves them together.")
	}
}

// progress looks for recipients that nobody serves.
func (x *checker) progress(r *report, m *message) {
	scheduler := x.runs("scheduler")
	open := false
	for i := range m.Recipients {
		p := &m.Recipients[i]
		open = open || p.open()
		late := p.Next != nil && x.now.Sub(*p.Next) > x.stuck
		switch {
		case p.State == noClause:
			r.wrong(unserved, "Nothing serves <%s>.", p.Address)
		case p.State == stale && !scheduler:
			r.wrong(deadLock, "<%s> is locked by %s.", p.Address, p.Owner)
		case p.State == stale && x.now.Sub(m.spec.Info.ModTime) > x.stuck:
			r.wrong(deadLock, "<%s> has been locked by %s for more than %s, with a scheduler running.", p.Address, p.Owner, human.Span(x.stuck))
		case p.State == delivering && p.Owner.Says == "" && !x.worksHere(p.Owner.Number):
			r.wrong(foreignLock, "<%s> is locked by %d, a number without a file in owners/; the process with that pid does not work in transport/. Until it ends the recipient waits; zmctl check --repair releases it.", p.Address, p.Owner.Number)
		case p.State == waiting && scheduler && late:
			r.wrong(noProgress, "<%s> is due for %s without an attempt.", p.Address, human.Span(x.now.Sub(*p.Next)))
		case p.Channel == channelHold: // that is what it is for
		case p.State == waiting && scheduler && p.Next == nil && p.Attempts == 0 && x.now.Sub(m.spec.Info.CTime) > x.stuck:
			r.wrong(noProgress, "<%s> has waited more than %s for a first attempt over %s/%s.", p.Address, human.Span(x.stuck), p.Channel, p.Host)
		}
	}
	if open {
		x.queues = append(x.queues, m)
	}
}

// putAway tells a specification whose message a person removed, or puts back just
// now: the message is in removed/.
func (s *spool) putAway(spec *workspec.Spec) bool {
	for i := len(spec.History) - 1; i >= 0; i-- {
		if e := &spec.History[i]; e.Event == "removed" || e.Event == "restored" {
			return s.exists(postoffice.Removed + "/" + e.Get("id") + ".queue")
		}
	}
	return false
}

// recorded notes the reports that a specification records, and what it was made of.
func (x *checker) recorded(m *message) {
	for i := range m.parsed.History {
		e := &m.parsed.History[i]
		switch {
		case (e.Event == workspec.EventReport || e.Event == workspec.EventRerouted) && e.Get("file") != "":
			x.reports[e.Get("file")] = m.spec.path()
		case e.Event == workspec.EventRenumbered && e.Get("was") != m.Name:
			x.replaced[e.Get("was")] = m.spec.path()
		}
	}
}

// thread is a channel and a host.
type thread struct{ channel, host string }

func (t thread) String() string { return fmt.Sprintf("%s/%s", t.channel, t.host) }
