package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// acceptName picks the names in transport/ that are worth a hint: specifications and
// hash directories.
func acceptName(name string) bool {
	if len(name) == 1 {
		return name[0] >= 'A' && name[0] <= 'Z' || name[0] >= '1' && name[0] <= '9'
	}
	if _, ok := postoffice.ParseNote(name); ok {
		return true
	}
	_, ok := postoffice.ParseName(name)
	return ok
}

func isHashName(name string) bool { return len(name) == 1 && name[0] >= 'A' && name[0] <= 'Z' }

// intake reads specifications whose names have come to the engine, and keeps those that
// cannot be used.
type intake struct {
	*base
	changes    *changes
	ends       *ends
	placement  *placement
	scanner    *scanner
	superseder *superseder
	suspender  *suspender
	heap       *heap

	loading map[string]bool
	hinted  []string           // to be loaded, see wantHinted
	notes   map[string]bool    // of those that are being read
	refused map[string]refusal // names that cannot be used
}

// refusal is why a specification is left alone.
type refusal struct {
	why  string
	look uint32
	kept bool // until it changes by hand; else it is tried again
	// alone is since when its message is missing.
	alone time.Time
	cut   bool // it was whole before
	kind  alarm.Kind
}

// hint looks at what may be new.
func (e *intake) hint(h watch.Hint) {
	switch {
	case h.Name == "":
		e.scanner.lookSoon(h.Lost)
		return
	case isHashName(h.Name):
		e.scanner.lookAtAll()
		return
	}
	rel, err := filepath.Rel(e.transport(), h.Dir)
	if err != nil {
		return
	}
	name := filepath.Join(rel, h.Name)
	if about, ok := postoffice.ParseNote(name); ok {
		e.noted(about)
		return
	}
	if e.wants(name) {
		e.hinted = append(e.hinted, name)
	}
}

// hintedAtOnce is how many specifications one goroutine reads that were hinted at
// together; the engine and the agent are woken once for all of them.
const hintedAtOnce = 8

// wantHinted loads what was hinted at.
func (e *intake) wantHinted() {
	for list := range slices.Chunk(e.hinted, e.conf.Start.atMost(hintedAtOnce)) {
		e.pool.want(slices.Clone(list)...)
	}
	e.hinted = e.hinted[:0]
}

// want loads a specification unless it is known.
func (e *intake) want(name string) {
	if e.wants(name) {
		e.pool.want(name)
	}
}

// wants reports whether a specification is to be loaded, and notes that it will be.
func (e *intake) wants(name string) bool {
	n, ok := postoffice.ParseName(name)
	if !ok || e.stopping || e.loading[name] {
		return false
	}
	if m := e.messages.get(n.Ino); m != nil {
		if m.Named(name) {
			m.Seen = e.scanner.look
		}
		switch w := e.changes.busy[m]; {
		case w != nil && w.ending:
			// Its files may be gone by now, and this be a new message that was given
			// the inode number.
			w.again = name
		case w == nil && !m.Named(name):
			if r, ok := e.refused[name]; ok {
				r.look = e.scanner.look
				e.refused[name] = r
			}
			e.elsewhere(m, name)
		}
		return false
	}
	r, refused := e.refused[name]
	if refused {
		r.look = e.scanner.look
		e.refused[name] = r
		if r.kept {
			return false
		}
	}
	e.loading[name] = true
	if r.cut {
		e.pool.do(func() {
			l, err := e.spool.Reload(name)
			e.post(func() { e.loaded(name, l, err) })
		})
	}
	return !r.cut
}

// load is done by the pool.
func (e *intake) load(names []string) { e.post(e.read(names)) }

// read reads specifications, without the engine, and returns what takes them in.
func (e *intake) read(names []string) (take func()) {
	type result struct {
		l   *store.Loaded
		err error
	}
	list := make([]result, len(names))
	for i, name := range names {
		list[i].l, list[i].err = e.spool.LoadNew(name)
	}
	return func() {
		for i, name := range names {
			e.loaded(name, list[i].l, list[i].err)
		}
	}
}

// loaded takes in a specification.
func (e *intake) loaded(name string, l *store.Loaded, err error) {
	delete(e.loading, name)
	defer e.readNote(name)
	if err != nil {
		e.refuse(name, err)
		return
	}
	delete(e.refused, name)
	for _, host := range l.Start {
		e.Kick(host, func(int) {})
	}
	if l.Gone {
		return
	}
	if n, _ := postoffice.ParseName(name); n.Ino != l.Number {
		e.refuse(name, &workspec.SyntaxError{Reason: "the message's name in the i line is another"})
		return
	}
	if e.messages.get(l.Number) != nil || e.superseder.isSuperseded(name, l) {
		return
	}
	m := &thread.Message{Number: l.Number, Stamp: l.ID.MTime, Open: int32(len(l.Open) + l.Held), Seen: e.scanner.look, Owes: l.Owes, Total: int32(l.Total), Sender: l.Sender}
	m.SetName(l.Name)
	if postoffice.IsRandom(l.Number) {
		m.SetInode(l.ID.Ino)
		e.inodes[l.ID.Ino] = l.Number
	}
	m.SetAway(l.Away)
	if !l.Accepted.IsZero() {
		e.core.Accepted(m, l.Accepted)
	}
	e.messages.put(m)
	e.heap.grown()
	e.suspender.learn(m.Sender, l.From)
	e.placement.goesBy(m, l)
	e.placement.place(m, l.Open)
	if !l.Look.IsZero() {
		e.core.Remind(m, l.Look)
	}
	e.superseder.supersedes(m, l)
	e.counts.MessagesIn++
	e.counts.RecipientsIn += uint64(m.Open)
	if em := e.emitter(); em.Wants(events.Routed) {
		em.EmitAttrs(events.Routed, originAttrs([]slog.Attr{slog.Any("id", l.ID), slog.String("name", l.Name),
			slog.Int("recipients", len(l.Open)), slog.Int("waiting", l.Held)}, &l.Origin)...)
	}
	e.ends.check(m)
}

// refuse leaves a specification alone and logs that once.
func (e *intake) refuse(name string, err error) {
	if errors.Is(err, postoffice.ErrGone) {
		// K10: it was renamed or removed between the hint and the look.
		e.emit(events.Passed, "name", name)
		delete(e.refused, name)
		return
	}
	why := err.Error()
	syntax := (*workspec.SyntaxError)(nil)
	kept, kind := true, alarm.Unusable
	advice := ""
	alone := e.refused[name].alone
	switch {
	case errors.Is(err, store.ErrMessageGone):
		kept, kind = false, alarm.Orphan
		advice = "put the message back into queue/; after a minute the specification goes to quarantine/"
		if alone.IsZero() {
			alone = e.now
		}
	case errors.Is(err, store.ErrUnfinished):
		e.log.Debug("specification-refused", "name", name, "reason", err)
		e.refused[name] = refusal{why: why, look: e.scanner.look}
		return
	case errors.Is(err, store.ErrCut):
		kept = false
		advice = "put it back from a copy. A start of the scheduler without that has the message routed and delivered again to all its recipients"
	case errors.Is(err, store.ErrUnreported):
		kind = alarm.Unreported
		advice = "it stays in queue/ and transport/. Tell the sender, then take it out with zmctl remove; or have it tried again with zmctl retry --failed"
	case errors.Is(err, workspec.ErrUnknownFormat):
		advice = "another program's file; it is left alone. Run the scheduler that knows this format, or remove the file to have the message routed again"
	case errors.As(err, &syntax):
		advice = "it is left alone. Mend the line, or remove the file to have the message routed and delivered again to all its recipients; then start the scheduler again"
	default:
		kept, kind = false, ""
		advice = "tried again at every look"
		if errors.Is(err, postoffice.ErrOccupied) {
			kind = alarm.Duplicate
			advice = "one of the two was copied or restored; zmctl check --repair. Else it is taken up when the other one is done"
		}
	}
	if word := "specification-refused"; e.refused[name].why != why {
		if kind == alarm.Unreported {
			word = "end-refused"
		}
		e.log.Error(word, "name", name, "reason", why, "advice", advice)
	}
	e.refused[name] = refusal{why: why, look: e.scanner.look, kept: kept, alone: alone, cut: errors.Is(err, store.ErrCut), kind: kind}
	if errors.Is(err, store.ErrMessageGone) && e.now.Sub(alone) >= e.conf.tuning.alone {
		e.abandon(name)
	}
}

// place makes vertices of recipients, which are in the order of their threads.
// Locked ones are looked at again later.
func (e *placement) place(m *thread.Message, open []store.Waiting) {
	sameThread := func(a, b *store.Waiting) bool { return a.Channel == b.Channel && strings.EqualFold(a.Host, b.Host) }
	// Of a message that has none yet no two lists are of one thread: with a list's ten
	// thousand hosts, looking for that would take longer than reading them.
	first := !m.Waits()
	for len(open) > 0 {
		n := 1
		for n < len(open) && sameThread(&open[0], &open[n]) {
			n++
		}
		e.placeThread(m, open[:n], first)
		open = open[n:]
	}
	if first {
		m.InOrder()
	}
}

// placeThread is place for one thread. first: m has no vertex for it.
func (e *placement) placeThread(m *thread.Message, list []store.Waiting, first bool) {
	rcpts := make([]thread.Recipient, 0, len(list))
	var h thread.History
	hurry, moved := false, false
	for i := range list {
		w := &list[i]
		if w.Locked {
			e.hold(m)
			continue
		}
		hurry = hurry || w.Hurry
		moved = m.SetMoves(w.Offset, w.Moves) || moved
		rcpts = append(rcpts, thread.NewRecipient(w.Offset, w.Address))
		// An agent is given all of them at once: the first time counts.
		if len(rcpts) == 1 || w.Next.Before(h.Next) {
			h.Next = w.Next
		}
		h.Attempts, h.Away = max(h.Attempts, w.Attempts), max(h.Away, w.Away)
		if w.HostTries > 0 {
			h.HostTries, h.HostText = max(h.HostTries, w.HostTries), w.HostText
		}
	}
	if len(rcpts) == 0 {
		return
	}
	if e.apart(list[0].Channel, list[0].Host) {
		return
	}
	r := e.reconfiguration.ring(list[0].Channel, list[0].Host)
	if r == nil {
		return // Load has counted it as held
	}
	var v *thread.Vertex
	if !first {
		v = e.waitingVertex(m, r, &list[0])
	}
	if v != nil {
		if e.core.Join(v, rcpts, h.Next, e.now); moved {
			e.core.Ask(m, e.now)
		}
	} else {
		v = e.core.Add(m, r, list[0].Channel, list[0].Host, rcpts, h, e.now)
	}
	if hurry {
		e.core.Let(v.Thread, e.now)
	}
}

// waitingVertex returns the vertex of m that waits for the same thread.
func (e *placement) waitingVertex(m *thread.Message, r *thread.Ring, w *store.Waiting) (found *thread.Vertex) {
	m.Vertices(func(v *thread.Vertex) {
		t := v.Thread
		if v.Waiting() && t.Ring == r && t.Channel() == w.Channel && strings.EqualFold(t.Host, w.Host) {
			found = v
		}
	})
	return found
}

// vanish drops a message whose files were taken away under us (K10), and looks whether
// it has left anything.
func (e *ends) vanish(m *thread.Message, err error) {
	name := m.Name()
	e.emit(events.Vanished, "id", idOf(m), "name", name, "open", m.Open, "reason", err,
		"advice", "nothing, if it was meant so. A message that is left in queue/ without a specification is routed again, to all its recipients")
	e.books.enterVanished(m)
	e.forget(m)
	if e.messages.get(m.Number) == nil {
		e.intake.want(name)
	}
}

// touched takes note that a message file's time of writing, by which operators name the
// message and its age counts, was changed by hand.
func (e *ends) touched(m *thread.Message, id postoffice.SpoolID) {
	was := idOf(m)
	if id.MTime == m.Stamp || id.Ino != m.Inode() {
		return
	}
	e.log.Warn("touched", "id", id, "name", m.Name(), "was", was,
		"advice", "the message has another spool ID now, and is as old as its file")
	e.spool.Ledger.Moved(id, id.Ino)
	e.core.Restamp(m, id.MTime, e.now)
}

// aloneGrace is how long a specification with open recipients waits for its message:
// files are moved in and out one after the other.
const aloneGrace = time.Minute

// abandon gives up a specification whose message does not come.
func (e *intake) abandon(name string) {
	e.loading[name] = true
	e.pool.do(func() {
		err := e.spool.Abandon(name)
		e.post(func() {
			delete(e.loading, name)
			e.readNote(name)
			if err != nil && !errors.Is(err, postoffice.ErrGone) {
				e.log.Error("disk", "name", name, "reason", err)
				return
			}
			delete(e.refused, name)
		})
	})
}

// noted reads a specification again that an operation has changed.
func (e *intake) noted(name string) {
	if e.stopping {
		return
	}
	n, _ := postoffice.ParseName(name)
	m := e.messages.get(n.Ino)
	if m == nil {
		if e.refused[name].kind == alarm.Unreported {
			delete(e.refused, name) // the operation may have settled it
		}
		e.want(name)
		if e.loading[name] {
			// It may have been read before the change.
			e.notes[name] = true
		} else {
			e.pool.do(func() { e.dropNote(name) })
		}
		return
	}
	if !m.Named(name) {
		// We have moved it since, or it is another file (K10).
		defer e.want(name)
	}
	drop := func() { e.dropNote(name) }
	var l *store.Loaded
	e.changes.do(m, op{
		run: func() (err error) {
			drop() // first: what changes while it is read makes another note
			l, err = e.spool.Reload(m.Name())
			e.spool.LogOperations(m.Name())
			return err
		},
		then: func() {
			e.placement.obey(m, l)
			e.placement.reloaded(m, l, nil)
		},
	})
}

// readNote goes on with a note that came while its specification was read.
func (e *intake) readNote(name string) {
	if !e.notes[name] {
		return
	}
	delete(e.notes, name)
	if n, _ := postoffice.ParseName(name); e.messages.get(n.Ino) != nil {
		e.noted(name)
	} else {
		e.pool.do(func() { e.dropNote(name) })
	}
}

func (e *intake) dropNote(name string) {
	if err := e.po.Queue.DropNote(name); err != nil {
		e.log.Error("disk", "name", name, "reason", err)
	}
}

// elsewhere looks at a specification with the number of a message that is known under
// another name: it was moved by hand, or is another message's (K10).
func (e *intake) elsewhere(m *thread.Message, name string) {
	var l *store.Loaded
	gone, moved, known := false, false, m.Name()
	e.changes.do(m, op{
		run: func() (err error) {
			// Listed, and moved by ourselves to its place since.
			if gone, err = e.po.Queue.IsGone(name); gone || err != nil {
				return err
			}
			l, err = e.spool.Reload(known)
			if !errors.Is(err, postoffice.ErrGone) {
				return err
			}
			l, err = e.spool.Load(name)
			if err == nil && (l.Gone || l.ID.Ino != m.Inode()) {
				err = postoffice.ErrGone
			}
			moved = err == nil
			return err
		},
		then: func() {
			if gone {
				e.refuse(name, postoffice.ErrGone)
				return
			}
			if !moved {
				e.placement.reloaded(m, l, nil)
				e.refuse(name, fmt.Errorf("its inode number is that of %s, which is queued too: %w", known, postoffice.ErrOccupied))
				return
			}
			e.log.Warn("moved", "id", idOf(m), "from", known, "name", l.Name)
			e.placement.reloaded(m, l, nil)
		},
	})
}
