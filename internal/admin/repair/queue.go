package repair

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/view"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// pair is the files with one name in queue/, in transport/ and as a work file.
type pair struct {
	name     postoffice.Name
	messages []view.File // the one that counts first
	specs    []view.File
	work     view.File // zero if there is none
	parsed   *workspec.Spec
	raw      []byte
	err      error // of reading the specification
}

// queue plans the repair of queue/ and transport/.
func (p *planner) queue() {
	p.id = ""
	pairs := p.pairs()
	replaced := map[string]string{}
	for _, q := range pairs {
		p.readPair(q)
		if q.parsed == nil {
			continue
		}
		for i := range q.parsed.History {
			if e := &q.parsed.History[i]; e.Event == workspec.EventRenumbered {
				replaced[e.Get("was")] = q.name.String()
			}
		}
	}
	for _, q := range pairs {
		p.id = ""
		if len(q.messages) > 0 {
			p.id = postoffice.IDOf(q.messages[0].Info).String()
		}
		p.id = check.Identity(p.id, q.parsed)
		p.doubles(q)
		switch {
		case len(q.messages) == 0 && len(q.specs) > 0:
			p.loneSpec(q, replaced[q.name.String()])
		case len(q.messages) > 0 && len(q.specs) == 0:
			p.loneMessage(q)
		case len(q.messages) > 0:
			p.both(q)
		}
	}
}

// pairs collects files by name, in the order of the names, and quarantines foreign files.
func (p *planner) pairs() []*pair {
	byName := map[postoffice.Name]*pair{}
	get := func(n postoffice.Name) *pair {
		if byName[n] == nil {
			byName[n] = &pair{name: n}
		}
		return byName[n]
	}
	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		for _, f := range p.names(dir) {
			n, ok := postoffice.ParseName(f.Name)
			_, note := postoffice.ParseNote(f.Name)
			_, copied := postoffice.ParseCopy(f.Name)
			switch {
			case (note || copied) && dir == postoffice.Transport && f.Info.Mode.IsRegular():
			case !ok || !f.Info.Mode.IsRegular():
				p.foreign(f)
			case dir == postoffice.Queue:
				get(n).messages = append(get(n).messages, f)
			default:
				get(n).specs = append(get(n).specs, f)
			}
		}
	}
	for _, dir := range p.RouterDirs() {
		for _, f := range p.names(dir) {
			if k := p.KindOf(f); k.Work && byName[k.Name] != nil {
				byName[k.Name].work = f
			}
		}
	}
	list := make([]*pair, 0, len(byName))
	for _, q := range byName {
		p.order(q)
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b *pair) int {
		return cmp.Or(cmp.Compare(a.name.Ino, b.name.Ino), cmp.Compare(a.name.Owner, b.name.Owner))
	})
	return list
}

// order puts first, of files with one name at different hash depths, the message with
// the right inode number and the specification beside it.
func (p *planner) order(q *pair) {
	place := p.PO.Queue.Place(q.name.String())
	first := func(list []view.File, right func(f view.File) bool) {
		slices.SortFunc(list, func(a, b view.File) int {
			score := func(f view.File) int {
				n := 0
				if right(f) {
					n += 2
				}
				if f.Name == place {
					n++
				}
				return -n
			}
			return cmp.Or(cmp.Compare(score(a), score(b)), cmp.Compare(a.Name, b.Name))
		})
	}
	first(q.messages, func(f view.File) bool { return q.name.Fits(f.Info.Ino) })
	first(q.specs, func(f view.File) bool { return len(q.messages) > 0 && f.Name == q.messages[0].Name })
}

// readPair reads the specification, or the work file that is to become it.
func (p *planner) readPair(q *pair) {
	f := q.work
	if len(q.specs) > 0 {
		f = q.specs[0]
	}
	if f.Name == "" {
		return
	}
	if q.raw, q.err = p.Read(f); q.err == nil {
		q.parsed, q.err = workspec.Parse(q.raw)
	}
}

// doubles resolves files with one name at different hash depths: a second specification is
// quarantined, a second message is a message of its own.
func (p *planner) doubles(q *pair) {
	for _, f := range q.specs[min(1, len(q.specs)):] {
		p.addQueue(f.Path(), doQuarantine, "the same name exists as "+q.specs[0].Path()+", beside its message",
			func(m *mender) error { return m.quarantine(f.Path(), "double") })
	}
	for _, f := range q.messages[min(1, len(q.messages)):] {
		p.addQueue(f.Path(), doRequeue, "the same name exists as "+q.messages[0].Path()+"; this is another message, without a specification: it is routed again",
			func(m *mender) error { return m.requeue(f.Path()) })
	}
}

// syntax reports whether an error means that no program will ever read the file.
func syntax(err error) bool {
	bad := (*workspec.SyntaxError)(nil)
	return errors.As(err, &bad)
}

// loneSpec decides about a specification whose message is gone. One whose recipients
// are all final is left to the scheduler, and so is a request to start a host.
func (p *planner) loneSpec(q *pair, successor string) {
	f := q.specs[0]
	switch {
	case successor != "":
		p.addQueue(f.Path(), doDrop, "an interrupted repair has replaced it by "+successor, func(m *mender) error { return m.Drop(f.Path()) })
	case syntax(q.err):
		p.addQueue(f.Path(), doQuarantine, "it cannot be read, and its message is gone: "+q.err.Error(), func(m *mender) error { return m.quarantine(f.Path(), "syntax") })
	case q.parsed != nil && openRecipients(q.parsed) > 0 && !p.PutAway(q.parsed):
		p.addQueue(f.Path(), doQuarantine, "its message is gone while "+human.Count(openRecipients(q.parsed), "recipient")+" waited: restore queue/"+f.Name+", or inform the sender",
			func(m *mender) error {
				// A message that was given the number meanwhile, or was put back by hand.
				if _, err := p.Find(postoffice.Queue, q.name); !errors.Is(err, view.ErrMoved) {
					return postoffice.ErrGone
				}
				return m.quarantine(f.Path(), "no-message")
			})
	}
}

func openRecipients(s *workspec.Spec) int {
	n := 0
	for gi := range s.Groups {
		for _, r := range s.Groups[gi].Recipients {
			if r.Tag != workspec.TagOK && r.Tag != workspec.TagFailed {
				n++
			}
		}
	}
	return n
}

// loneMessage decides about a message without a specification in transport/. With
// its right number and without a complete work file it is left to the daemons.
func (p *planner) loneMessage(q *pair) {
	f := q.messages[0]
	if q.name.Owner != 0 && p.Owner(q.name.Owner).Alive {
		return
	}
	right, whole := q.name.Fits(f.Info.Ino), q.parsed != nil && q.parsed.Complete && q.parsed.HasZ
	switch {
	case right && whole:
		p.addQueue(q.work.Path(), doHandOver, "its message is "+f.Path()+", and the router or repair that owned both is dead",
			func(m *mender) error { return m.HandOver(q.work.Path(), f.Name) })
		return
	case right:
		return
	case whole:
		p.renumber(q, q.work)
		return
	}
	p.addQueue(f.Path(), doRequeue, "it has no work specification and is routed again; "+renumbered(f, q.name), func(m *mender) error { return m.requeue(f.Path()) })
}

// both decides about a message with its specification.
func (p *planner) both(q *pair) {
	f, spec := q.messages[0], q.specs[0]
	right := q.name.Fits(f.Info.Ino)
	switch {
	case syntax(q.err):
		p.routeAgain(q, "syntax", "it cannot be read: "+q.err.Error())
		return
	case q.err != nil:
		return // a newer format, or a file that cannot be read: left as it is
	case !q.parsed.Complete && right:
		return // the scheduler returns it to the router
	case !q.parsed.Complete:
		p.addQueue(f.Path(), doRequeue, "its work specification is incomplete; it is routed again, "+renumbered(f, q.name), func(m *mender) error {
			if err := m.Drop(spec.Path()); err != nil {
				return err
			}
			return m.requeue(f.Path())
		})
		return
	case q.parsed.BodyOffset > f.Info.Size:
		p.routeAgain(q, "mismatch", fmt.Sprintf("it has the body at byte %d of a file of %d bytes", q.parsed.BodyOffset, f.Info.Size))
		return
	}
	number, _ := q.parsed.Number()
	if right && number == q.name.Ino {
		p.locks(q)
		return
	}
	if !p.belongs(q) {
		p.routeAgain(q, "mismatch", "its header is not that of the message")
		return
	}
	p.locks(q)
	p.renumber(q, spec)
}

// routeAgain quarantines a specification and returns its message to the routers.
func (p *planner) routeAgain(q *pair, why, text string) {
	f, spec := q.messages[0], q.specs[0]
	p.addQueue(spec.Path(), doQuarantine, text+"; the message is routed again, and recipients that already received it get it twice", func(m *mender) error {
		// Crash: the message alone, which goes back to router/ too.
		if err := m.quarantine(spec.Path(), why); err != nil {
			return err
		}
		return m.requeue(f.Path())
	})
}

// renumber names message and specification after the message's inode.
func (p *planner) renumber(q *pair, spec view.File) {
	f := q.messages[0]
	was := postoffice.SpoolID{Ino: q.name.Ino, MTime: f.Info.ModTime.UnixNano()}
	event := workspec.Event{Time: p.Now, Event: workspec.EventRenumbered, Attrs: []workspec.Attr{{Key: "was", Value: q.name.String()}, {Key: "id", Value: was.String()}}}
	p.addQueue(f.Path(), doRenumber, renumbered(f, q.name), func(m *mender) error {
		_, err := m.RenumberQueued(f.Path(), spec.Path(), func(raw []byte, name string) ([]byte, error) {
			raw, err := workspec.Renumber(raw, name)
			if err != nil {
				return nil, err
			}
			return workspec.AppendEvent(raw, &event), nil
		})
		return err
	})
}

// locks releases recipients from numbers that no process here holds: a process that
// has the pid by chance would keep them for as long as it lives.
func (p *planner) locks(q *pair) {
	seen := map[int]bool{}
	for gi := range q.parsed.Groups {
		for _, r := range q.parsed.Groups[gi].Recipients {
			if r.Tag != workspec.TagLocked || seen[r.Owner] || p.done["owners/"+strconv.Itoa(r.Owner)] {
				continue
			}
			seen[r.Owner] = true
			o := p.Owner(r.Owner)
			if !o.Alive || o.Says != "" || p.Exists(postoffice.Owners+"/"+strconv.Itoa(r.Owner)) || p.WorksHere(r.Owner) {
				continue
			}
			p.done["owners/"+strconv.Itoa(r.Owner)] = true
			p.add(path.Join(postoffice.Owners, strconv.Itoa(r.Owner)), doRelease,
				"recipients are locked by this number, but the process with that pid does not work here; the number is marked dead",
				func(m *mender) error { return m.MarkDead(r.Owner) })
		}
	}
}

// evidence is how much of a header is compared. Bytes.
const evidence = 256

// belongs reports whether a specification of our router is about this message: its
// headers end as the message's do, since what the router adds goes on top. Other
// routers write headers anew, and Bcc is left out; those are taken at their word.
func (p *planner) belongs(q *pair) bool {
	s := q.parsed
	if !s.HasZ || len(s.Groups) == 0 {
		return true
	}
	h, err := p.Open(q.messages[0])
	if err != nil {
		return true
	}
	defer h.Close()
	head, err := envelope.Read(h)
	if err != nil || head.HeaderOffset >= s.BodyOffset {
		return true
	}
	mine := make([]byte, min(evidence, s.BodyOffset-head.HeaderOffset))
	if n, err := h.ReadAt(mine, s.BodyOffset-int64(len(mine))); err != nil || n < len(mine) {
		return true
	}
	mine = bytes.TrimRight(mine, "\n")
	if len(mine) == 0 || bytes.Contains(bytes.ToLower(mine), []byte("bcc:")) {
		return true
	}
	g := &s.Groups[len(s.Groups)-1]
	return bytes.HasSuffix(bytes.TrimRight(q.raw[g.HeaderOffset:g.HeaderEnd], "\n"), mine)
}
