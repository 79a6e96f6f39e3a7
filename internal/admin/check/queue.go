package check

import (
	"errors"
	"path"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// queue looks at queue/ and transport/ together.
func (x *checker) queue() {
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
				x.tell(about(f.Path(), "note").say("A person's command has changed transport/%s; the scheduler reads that again and removes this.", noted))
				return
			case copied && dir == postoffice.Transport && f.Info.Mode.IsRegular():
				x.tell(about(f.Path(), "copy").say("The scheduler was replacing transport/%s by a copy with a shorter history; when it starts it removes what is left of that.", of))
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
				x.note(f, n, RankQueue)
			}
		})
	}
	// What a specification was made of is known when all are read.
	var lone []*view.Message
	for _, n := range names {
		if m := x.queued(n); m != nil {
			lone = append(lone, m)
		}
	}
	for _, m := range lone {
		x.judged(m)
	}
}

// Double tells of two files with one name at different hash depths, unless one was
// moved from the one to the other place while we looked.
func (x *checker) double(a, b view.File, n postoffice.Name) {
	used, err := x.Find(a.Dir, n)
	if err != nil || !x.Exists(a.Path()) || !x.Exists(b.Path()) {
		return
	}
	if used.Name == a.Name {
		a, b = b, a
	}
	r := about(a.Path(), "double")
	r.part = "double"
	x.tell(r.wrong(Double, "The same name stands as %s too. One of the two is a copy; zmctl check --repair keeps the one that belongs to the specification.", b.Path()))
}

// queued looks at a message with its specification, whichever of them is there. A
// specification without message is returned, to be judged when all are read.
func (x *checker) queued(n postoffice.Name) *view.Message {
	m, err := x.LoadQueued(n)
	if errors.Is(err, view.ErrMoved) {
		return nil
	}
	if err != nil {
		r := about(n.String(), view.StateQueued)
		r.key = n.String()
		x.tell(r.wrong(Unreadable, "%v", err))
		return nil
	}
	if m.Spec != nil {
		x.recorded(m)
	}
	if m.State == view.StateFinishing {
		return m
	}
	x.judged(m)
	return nil
}

// judged tells of a message in queue/ and transport/.
func (x *checker) judged(m *view.Message) {
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
	x.judge(r, m)
	if m.Problem != "" {
		r.say("Wrong: %s.", m.Problem)
	}
	r.text = append(r.text, x.Next(m)...)
	x.tell(r)
}

// identity tells a message from others that have its name at another time.
func Identity(id string, spec *workspec.Spec) string {
	if spec != nil {
		id += " " + spec.Ident
	}
	return id
}

// judge says what is wrong with a message.
func (x *checker) judge(r *report, m *view.Message) {
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
		x.judgeFinishing(r, m)
		return
	}
	switch {
	case m.Spec == nil && m.Unreadable:
		r.wrong(Unreadable, "")
		return
	case m.Spec == nil && m.UnknownFormat:
		r.wrong(UnknownFormat, "Another program wrote it, or a newer one: it is left as it is.")
		return
	case m.Spec == nil:
		r.wrong(BadSpec, "zmctl check --repair puts the specification into quarantine/ and has the message routed again; recipients that had it get it twice.")
		return
	case !m.Spec.Complete:
		r.wrong(CutSpec, "")
		return
	}
	x.judgePair(r, m)
	if m.Spec.Torn {
		r.say("Its last line is torn; readers ignore it.")
	}
	x.progress(r, m)
}

func (x *checker) judgeFinishing(r *report, m *view.Message) {
	if to := x.replaced[m.Name]; to != "" {
		r.wrong(Superseded, "A repair that was interrupted has made %s of it. zmctl check --repair removes it.", to)
		return
	}
	switch {
	case m.Spec == nil && m.UnknownFormat:
		r.wrong(UnknownFormat, "Another program wrote it, or a newer one: it is left as it is.")
		return
	case m.Spec == nil:
		r.wrong(BadSpec, "Its message is gone, too.")
		return
	case x.PutAway(m.Spec):
		r.say("Its message is in removed/: a person took it out, or is putting it back. The scheduler brings the two together.")
		return
	}
	for i := range m.Recipients {
		if m.Recipients[i].Open() {
			r.wrong(MessageGone, "")
			return
		}
	}
}

// judgePair says whether message and specification belong together and have the
// right names.
func (x *checker) judgePair(r *report, m *view.Message) {
	if o := m.Spec.BodyOffset; o > m.Size {
		r.wrong(Mismatch, "The body is said to start at byte %d of a file of %d bytes: message and specification do not belong together, or the message was cut off.", o, m.Size)
	}
	n, _ := postoffice.ParseName(m.Name)
	if number, ok := m.Spec.Number(); m.Spec.Message != "" && (!ok || number != n.Ino) {
		r.wrong(OtherNumber, "The specification names the message %s: the scheduler does not take it.", m.Spec.Message)
	}
	r.misnumbered(m.File, n, "zmctl check --repair renames both files, with the scheduler stopped.")
	if queue, spec := path.Dir(m.File.Name), path.Dir(m.SpecFile.Name); queue != spec {
		r.wrong(HashDepths, "Message and specification stand at different hash depths; the scheduler moves them together.")
	}
}

// progress looks for recipients that nobody serves.
func (x *checker) progress(r *report, m *view.Message) {
	scheduler := x.Runs("scheduler")
	open := false
	for i := range m.Recipients {
		p := &m.Recipients[i]
		open = open || p.Open()
		late := p.Next != nil && x.Now.Sub(*p.Next) > x.Stuck
		switch {
		case p.State == view.Unserved:
			r.wrong(Unserved, "Nothing serves <%s>.", p.Address)
		case p.State == view.Stale && !scheduler:
			r.wrong(DeadLock, "<%s> is locked by %s.", p.Address, p.Owner)
		case p.State == view.Stale && x.Now.Sub(m.SpecFile.Info.ModTime) > x.Stuck:
			r.wrong(DeadLock, "<%s> has been locked by %s for more than %s, with a scheduler running.", p.Address, p.Owner, human.Span(x.Stuck))
		case p.State == view.Delivering && p.Owner.Says == "" && !x.WorksHere(p.Owner.Number):
			r.wrong(ForeignLock, "<%s> is locked by %d, a number without a file in owners/; the process with that pid does not work in transport/. Until it ends the recipient waits; zmctl check --repair releases it.", p.Address, p.Owner.Number)
		case p.State == view.Waiting && scheduler && late:
			r.wrong(NoProgress, "<%s> is due for %s without an attempt.", p.Address, human.Span(x.Now.Sub(*p.Next)))
		case p.Channel == view.ChannelHold: // that is what it is for
		case p.State == view.Waiting && scheduler && p.Next == nil && p.Attempts == 0 && x.Now.Sub(m.SpecFile.Info.CTime) > x.Stuck:
			r.wrong(NoProgress, "<%s> has waited more than %s for a first attempt over %s/%s.", p.Address, human.Span(x.Stuck), p.Channel, p.Host)
		}
	}
	if open {
		x.queues = append(x.queues, m)
	}
}

// recorded notes the reports that a specification records, and what it was made of.
func (x *checker) recorded(m *view.Message) {
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
