package scheduler

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/scheduler/thread"
	"zmailer/internal/watch"
	"zmailer/internal/workspec"
)

// acceptName picks the names in transport/ that are worth a hint: specifications and
// hash directories.
func acceptName(name string) bool {
	if len(name) == 1 {
		return name[0] >= 'A' && name[0] <= 'Z' || name[0] >= '1' && name[0] <= '9'
	}
	_, ok := postoffice.ParseName(name)
	return ok
}

func isHashName(name string) bool { return len(name) == 1 && name[0] >= 'A' && name[0] <= 'Z' }

// hint looks at what may be new.
func (e *engine) hint(h watch.Hint) {
	if h.Name == "" || isHashName(h.Name) {
		e.lookAtAll()
		return
	}
	rel, err := filepath.Rel(e.transport(), h.Dir)
	if err != nil {
		return
	}
	e.want(filepath.Join(rel, h.Name))
}

// want loads a specification unless it is known.
func (e *engine) want(name string) {
	n, ok := postoffice.ParseName(name)
	if !ok || e.stopping || e.loading[name] {
		return
	}
	if m := e.messages[n.Ino]; m != nil {
		if m.Name == name {
			m.Seen = e.look
		}
		if w := e.busy[m]; w != nil && w.ending {
			// Its files may be gone by now, and this be a new message that was given
			// the inode number.
			w.again = name
		}
		return
	}
	if r, ok := e.refused[name]; ok {
		r.look = e.look
		e.refused[name] = r
		if r.kept {
			return
		}
	}
	e.loading[name] = true
	e.pool.want(name)
}

// load is done by the pool.
func (e *engine) load(name string) {
	l, err := e.spool.Load(name)
	e.post(func() { e.loaded(name, l, err) })
}

// loaded takes in a specification.
func (e *engine) loaded(name string, l *Loaded, err error) {
	delete(e.loading, name)
	if err != nil {
		e.refuse(name, err)
		return
	}
	delete(e.refused, name)
	for _, host := range l.Start {
		e.kick(host)
	}
	if l.Gone || e.messages[l.Number] != nil {
		return
	}
	if n, _ := postoffice.ParseName(name); n.Ino != l.Number {
		e.refuse(name, &workspec.SyntaxError{Reason: "the message's name in the i line is another"})
		return
	}
	m := &thread.Message{Name: l.Name, Number: l.Number, Stamp: l.ID.MTime, Open: len(l.Open) + l.Held, Seen: e.look, Owes: l.Owes}
	e.messages[m.Number] = m
	e.place(m, l.Open)
	if !l.Look.IsZero() {
		e.core.Remind(m, l.Look)
	}
	e.log.Debug("queued", "id", l.ID, "name", l.Name, "recipients", len(l.Open), "waiting", l.Held)
	e.check(m)
}

// refuse leaves a specification alone and says so once.
func (e *engine) refuse(name string, err error) {
	if errors.Is(err, postoffice.ErrGone) {
		// K10: it was renamed or removed between the hint and the look.
		e.log.Debug("vanished", "name", name)
		delete(e.refused, name)
		return
	}
	why := err.Error()
	syntax := (*workspec.SyntaxError)(nil)
	kept := true
	advice := ""
	switch {
	case errors.Is(err, workspec.ErrUnknownFormat):
		advice = "another program's file; it is left alone. Run the scheduler that knows this format, or remove the file to have the message routed again"
	case errors.As(err, &syntax):
		advice = "it is left alone. Mend the line, or remove the file to have the message routed and delivered again to all its recipients; then start the scheduler again"
	default:
		kept = false
		advice = "tried again at every look"
	}
	if e.refused[name].why != why {
		e.log.Error("specification-refused", "name", name, "reason", why, "advice", advice)
	}
	e.refused[name] = refusal{why: why, look: e.look, kept: kept}
}

// place makes vertices of recipients, which are in the order of their threads.
// Locked ones are looked at again later.
func (e *engine) place(m *thread.Message, open []Waiting) {
	sameThread := func(a, b *Waiting) bool { return a.Channel == b.Channel && strings.EqualFold(a.Host, b.Host) }
	for len(open) > 0 {
		n := 1
		for n < len(open) && sameThread(&open[0], &open[n]) {
			n++
		}
		e.placeThread(m, open[:n])
		open = open[n:]
	}
}

func (e *engine) placeThread(m *thread.Message, list []Waiting) {
	rcpts := make([]thread.Recipient, 0, len(list))
	var h thread.History
	for i := range list {
		w := &list[i]
		if w.Locked {
			e.locked[m] = true
			continue
		}
		rcpts = append(rcpts, thread.Recipient{Offset: w.Offset, Address: w.Address})
		// An agent is given all of them at once: the first time counts.
		if len(rcpts) == 1 || w.Next.Before(h.Next) {
			h.Next = w.Next
		}
		h.Attempts = max(h.Attempts, w.Attempts)
		if w.HostTries > 0 {
			h.HostTries, h.HostText = max(h.HostTries, w.HostTries), w.HostText
		}
	}
	if len(rcpts) == 0 {
		return
	}
	r := e.ring(list[0].Channel, list[0].Host)
	if r == nil {
		return // Load has counted it as held
	}
	if v := e.waitingVertex(m, r, &list[0]); v != nil {
		e.core.Park(v, e.now)
		v.Recipients = append(v.Recipients, rcpts...)
		slices.SortFunc(v.Recipients, func(a, b thread.Recipient) int { return cmp.Compare(a.Offset, b.Offset) })
		e.core.Wait(v, e.now)
		return
	}
	e.core.Add(m, r, list[0].Channel, list[0].Host, rcpts, h, e.now)
}

// waitingVertex is the vertex of m that waits for the same thread.
func (e *engine) waitingVertex(m *thread.Message, r *thread.Ring, w *Waiting) (found *thread.Vertex) {
	m.Vertices(func(v *thread.Vertex) {
		t := v.Thread
		if v.Waiting() && t.Ring == r && t.Channel() == w.Channel && strings.EqualFold(t.Host, w.Host) {
			found = v
		}
	})
	return found
}

// kick has a host tried now, whatever it waits for (ETRN).
func (e *engine) kick(host string) {
	e.core.Rings(func(r *thread.Ring) {
		r.Threads(func(t *thread.Thread) {
			if strings.EqualFold(t.Host, host) {
				e.core.Kick(t, e.now)
			}
		})
	})
}

// lookAtAll lists transport/ in the background: the truth behind the hints.
func (e *engine) lookAtAll() {
	if e.looking {
		e.lookAgain = true
		return
	}
	if e.stopping {
		return
	}
	e.looking, e.lookAgain = true, false
	e.look++
	look := e.look
	run := func() {
		const atOnce = 512
		// Watched before they are listed, so that nothing falls between.
		e.watchDirs()
		names := make([]string, 0, atOnce)
		send := func() {
			list := names
			e.post(func() { e.listed(list) })
			names = make([]string, 0, atOnce)
		}
		err := e.po.ListTransport(func(name string) error {
			if names = append(names, name); len(names) == atOnce {
				send()
			}
			return nil
		})
		send()
		e.post(func() { e.lookedAtAll(look, err) })
	}
	if look%recoverEvery == 0 {
		e.pool.exclusively(func() {
			if err := e.spool.Recover(); err != nil {
				e.log.Error("disk", "reason", err)
			}
			run()
		})
		return
	}
	e.pool.do(run)
}

// watchDirs watches the hash directories that exist.
func (e *engine) watchDirs() {
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		entries, err := e.po.FS().ReadDir(filepath.Join(postoffice.Transport, dir))
		if err != nil {
			return
		}
		for _, entry := range entries {
			if !isHashName(entry.Name) || !entry.Type.IsDir() {
				continue
			}
			sub := filepath.Join(dir, entry.Name)
			// An error means that it is gone again; the next look tells.
			_ = e.watch.Add(filepath.Join(e.transport(), sub))
			if depth > 1 {
				walk(sub, depth-1)
			}
		}
	}
	walk("", 2)
}

func (e *engine) listed(names []string) {
	for _, name := range names {
		e.want(name)
	}
}

// lookedAtAll ends a look: what was not seen is gone (K10), what was locked may be
// free (M18).
func (e *engine) lookedAtAll(look uint32, err error) {
	e.looking = false
	if err != nil {
		e.log.Error("disk", "reason", err)
		return
	}
	for name, r := range e.refused {
		if r.look != look {
			delete(e.refused, name)
		}
	}
	for _, m := range e.messages {
		if m.Seen != look && e.busy[m] == nil {
			// It may have been finished or moved meanwhile; the file itself tells.
			e.reload(m, nil)
		}
	}
	for m := range e.locked {
		if e.busy[m] == nil {
			e.reload(m, nil)
		}
	}
	if e.lookAgain {
		e.lookAtAll()
	}
}
