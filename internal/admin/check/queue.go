package check

import (
	"errors"
	"path"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// queue inspects queue/ and transport/ together.
type queue struct {
	*pass
	explain  *view.Explainer
	mail     *duplicates
	reports  map[string]string // file in public/ → specification that records it
	replaced map[string]string // name in transport/ → specification that replaces it
	open     []*view.Message   // with open recipients
}

func (x *queue) inspectAll() {
	seen := map[postoffice.Name]bool{}
	var names []postoffice.Name
	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		here := map[postoffice.Name]view.File{}
		x.each(dir, func(f view.File) {
			n, ok := postoffice.ParseName(f.Name)
			other, twice := here[n]
			noted, note := postoffice.ParseNote(f.Name)
			of, copied := postoffice.ParseCopy(f.Name)
			switch {
			case note && dir == postoffice.Transport && f.Info.Mode.IsRegular():
				x.add(about(f.Path(), "note").say("An operator has changed transport/%s; the scheduler reads it again and removes this file.", noted))
				return
			case copied && dir == postoffice.Transport && f.Info.Mode.IsRegular():
				x.add(about(f.Path(), "copy").say("The scheduler was replacing transport/%s by a copy with a shorter history; it removes the rest when it starts.", of))
				return
			case !f.Info.Mode.IsRegular():
				x.foreign(f, "Neither a regular file nor a hash directory: no program uses it.")
				return
			case !ok:
				x.foreign(f, "Not the name of a spool file: no program uses it.")
				return
			case twice:
				x.double(f, other, n)
			case !seen[n]:
				seen[n] = true
				names = append(names, n)
			}
			here[n] = f
			if dir == postoffice.Queue {
				x.mail.note(f, n, RankQueue)
			}
		})
	}
	// Which specification replaces another is known when all are read.
	var lone []*view.Message
	for _, n := range names {
		if m := x.queued(n); m != nil {
			lone = append(lone, m)
		}
	}
	for _, m := range lone {
		x.inspect(m)
	}
}

// double reports two files with one name at different hash depths, unless one was moved
// between them meanwhile.
func (x *queue) double(a, b view.File, n postoffice.Name) {
	used, err := x.Find(a.Dir, n)
	if err != nil || !x.Exists(a.Path()) || !x.Exists(b.Path()) {
		return
	}
	if used.Name == a.Name {
		a, b = b, a
	}
	r := about(a.Path(), "double")
	r.part = "double"
	x.add(r.wrong(Double, "The same name exists as %s. One of the two is a copy; zmctl check --repair keeps the one that belongs to the specification.", b.Path()))
}

// queued inspects a message and its specification, or the one that exists. A specification
// without a message is returned, to be inspected when all are read.
func (x *queue) queued(n postoffice.Name) *view.Message {
	m, err := x.LoadQueued(n)
	if errors.Is(err, view.ErrMoved) {
		return nil
	}
	if err != nil {
		r := about(n.String(), view.StateQueued)
		r.key = n.String()
		x.add(r.wrong(Unreadable, "%v", err))
		return nil
	}
	if m.Spec != nil {
		x.recorded(m)
	}
	if m.State == view.StateFinishing {
		return m
	}
	x.inspect(m)
	return nil
}

// inspect reports a message in queue/ and transport/.
func (x *queue) inspect(m *view.Message) {
	if !x.wants(m.Name) {
		return
	}
	name := m.Name
	if len(m.Files) > 0 {
		name = m.Files[len(m.Files)-1]
	}
	r := about(name, m.State)
	r.key, r.id = m.Name, Identity(m.ID, m.Spec)
	if m.ID != "" {
		r.say("%s, %s old, %s.", m.ID, human.Span(x.Now.Sub(m.Since)), human.Count(len(m.Recipients), "recipient"))
	} else {
		r.say("%s.", human.Count(len(m.Recipients), "recipient"))
	}
	x.problemsOf(r, m)
	if m.Problem != "" {
		r.say("Problem: %s.", m.Problem)
	}
	r.text = append(r.text, x.explain.Next(m)...)
	x.add(r)
}

// Identity distinguishes a message from others that had or get the same name.
func Identity(id string, spec *workspec.Spec) string {
	if spec != nil {
		id += " " + spec.Ident
	}
	return id
}

func (x *queue) problemsOf(r *report, m *view.Message) {
	switch m.State {
	case view.StateHandedOver:
		switch {
		case m.Unreadable:
			r.wrong(Unreadable, "")
		case m.Problem != "":
			r.wrong(BrokenMessage, "")
		}
		if m.Owner == nil || !m.Owner.Alive {
			r.wrong(NoSpec, "")
		}
		return
	case view.StateFinishing:
		x.problemsOfFinishing(r, m)
		return
	}
	switch {
	case m.Spec == nil && m.Unreadable:
		r.wrong(Unreadable, "")
		return
	case m.Spec == nil && m.UnknownFormat:
		r.wrong(UnknownFormat, "Another or a newer program wrote it; it is not changed.")
		return
	case m.Spec == nil:
		r.wrong(BadSpec, "zmctl check --repair puts the specification into quarantine/, and the message is routed again; recipients that already received it get it twice.")
		return
	case !m.Spec.Complete:
		r.wrong(CutSpec, "")
		return
	}
	x.problemsOfPair(r, m)
	if m.Spec.Torn {
		r.say("Its last line is torn; readers ignore it.")
	}
	x.progress(r, m)
}

func (x *queue) problemsOfFinishing(r *report, m *view.Message) {
	if to := x.replaced[m.Name]; to != "" {
		r.wrong(Superseded, "An interrupted repair has replaced it by %s. zmctl check --repair removes it.", to)
		return
	}
	switch {
	case m.Spec == nil && m.UnknownFormat:
		r.wrong(UnknownFormat, "Another or a newer program wrote it; it is not changed.")
		return
	case m.Spec == nil:
		r.wrong(BadSpec, "Its message is gone, too.")
		return
	case x.PutAway(m.Spec):
		r.say("Its message is in removed/: an operator has removed it, or is restoring it. The scheduler completes the move.")
		return
	}
	for i := range m.Recipients {
		if m.Recipients[i].Open() {
			r.wrong(MessageGone, "")
			return
		}
	}
}

// problemsOfPair checks that message and specification belong together and have the right
// names.
func (x *queue) problemsOfPair(r *report, m *view.Message) {
	if o := m.Spec.BodyOffset; o > m.Size {
		r.wrong(Mismatch, "The specification has the body at byte %d of a file of %d bytes: message and specification do not belong together, or the message was truncated.", o, m.Size)
	}
	n, _ := postoffice.ParseName(m.Name)
	if number, ok := m.Spec.Number(); m.Spec.Message != "" && (!ok || number != n.Ino) {
		r.wrong(OtherNumber, "The specification names the message %s: the scheduler refuses it.", m.Spec.Message)
	}
	r.misnumbered(m.File, n, "zmctl check --repair renames both files, with the scheduler stopped.")
	if queue, spec := path.Dir(m.File.Name), path.Dir(m.SpecFile.Name); queue != spec {
		r.wrong(HashDepths, "Message and specification are at different hash depths; the scheduler moves them together.")
	}
}

// progress finds recipients that are not served.
func (x *queue) progress(r *report, m *view.Message) {
	scheduler := x.Runs("scheduler")
	open := false
	for i := range m.Recipients {
		p := &m.Recipients[i]
		open = open || p.Open()
		late := p.Next != nil && x.Now.Sub(*p.Next) > x.Stuck
		switch {
		case p.State == view.Unserved:
			r.wrong(Unserved, "No clause with a command serves <%s>.", p.Address)
		case p.State == view.Stale && !scheduler:
			r.wrong(DeadLock, "<%s> is locked by %s.", p.Address, p.Owner)
		case p.State == view.Stale && x.Now.Sub(m.SpecFile.Info.ModTime) > x.Stuck:
			r.wrong(DeadLock, "<%s> has been locked by %s for more than %s, with a scheduler running.", p.Address, p.Owner, human.Span(x.Stuck))
		case p.State == view.Delivering && p.Owner.Says == "" && !x.WorksHere(p.Owner.Number):
			r.wrong(ForeignLock, "<%s> is locked by %d, a number without a file in owners/; the process with that pid does not work in transport/. The recipient waits until that process ends; zmctl check --repair releases it.", p.Address, p.Owner.Number)
		case p.State == view.Waiting && scheduler && late:
			r.wrong(NoProgress, "<%s> has been due for %s without an attempt.", p.Address, human.Span(x.Now.Sub(*p.Next)))
		case p.Channel == view.ChannelHold: // waits by design
		case p.State == view.Waiting && scheduler && p.Next == nil && p.Attempts == 0 && x.Now.Sub(m.SpecFile.Info.CTime) > x.Stuck:
			r.wrong(NoProgress, "<%s> has waited more than %s for a first attempt over %s/%s.", p.Address, human.Span(x.Stuck), p.Channel, p.Host)
		}
	}
	if open {
		x.open = append(x.open, m)
	}
}

// recorded notes the reports that a specification records, and the one that it replaces.
func (x *queue) recorded(m *view.Message) {
	for i := range m.Spec.History {
		e := &m.Spec.History[i]
		switch {
		case (e.Event == workspec.EventReport || e.Event == workspec.EventRerouted) && e.Get("file") != "":
			x.reports[e.Get("file")] = m.SpecFile.Path()
		case e.Event == workspec.EventRenumbered && e.Get("was") != m.Name:
			x.replaced[e.Get("was")] = m.SpecFile.Path()
		}
	}
}
