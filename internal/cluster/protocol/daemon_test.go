package protocol

// What the daemons of the model do: smtpserver's 250, and an agent's delivery as mark, look at
// the deadline, final dot, answer, status.

// mayGo reports whether the deadline is far enough to begin or to send the dot.
func (w *world) mayGo(n *node) bool {
	switch {
	case w.broken.noDeadline:
		return true
	case w.broken.noReserve:
		return n.local < n.page
	}
	return n.local+reserve <= n.page
}

// accept takes a message: the file is durable, the deadline is looked at, 250.
func (w *world) accept(i int) {
	for j := range w.stores[i].messages {
		if m := &w.stores[i].messages[j]; !m.accepted {
			m.accepted = true
			return
		}
	}
}

func (w *world) canAccept(i int) bool {
	n := &w.nodes[i]
	d := &n.daemons[i]
	if d.stage == none || d.stopping || d.frozen || n.suspended || n.offDisk || n.local+pauseBound*11 > n.page {
		return false
	}
	for j := range w.stores[i].messages {
		if !w.stores[i].messages[j].accepted {
			return true
		}
	}
	return false
}

// deliverable returns the index of a message that the daemon may deliver, or -1 if no message is ready.
func (w *world) deliverable(d *daemon, po int) int {
	for j := range w.stores[po].messages {
		m := &w.stores[po].messages[j]
		// A lock of this epoch is of a daemon that has ended, since there is one at a time.
		if m.accepted && !m.done && !(w.broken.oldLocks && m.lock != 0 && m.lock != d.epoch) {
			return j
		}
	}
	return -1
}

// ready reports whether a daemon has a step to take by itself.
func (w *world) ready(i, po int) bool {
	n := &w.nodes[i]
	d := &n.daemons[po]
	if d.frozen || n.suspended || !n.on {
		return false
	}
	switch d.stage {
	case idle:
		return !d.stopping && !n.offDisk && w.mayGo(n) && w.deliverable(d, po) >= 0
	case chosen, marked, loaded, answered:
		return true
	}
	return false
}

// canEnd reports whether a daemon that has to end may do so now: it finishes what it has in
// hand, and a stopped process is killed. One that waits for a dead disk cannot be killed.
func (w *world) canEnd(i, po int) bool {
	n := &w.nodes[i]
	d := &n.daemons[po]
	if !d.stopping || n.suspended || !n.on || !n.running {
		return false
	}
	waits := d.stage == marking || d.stage == statusing
	return d.stage == idle || d.frozen && d.stage != none && !waits
}

func (w *world) end(i, po int) {
	n := &w.nodes[i]
	d := &n.daemons[po]
	all, id := d.all, d.id
	w.drop(i, po)
	if !all {
		w.send(packet{kind: toSelf, what: uint8(Ended), node: uint8(i), po: uint8(po), id: id})
		return
	}
	for j := range n.daemons {
		if n.daemons[j].stage != none {
			return
		}
	}
	w.send(packet{kind: toSelf, what: uint8(AllEnded), node: uint8(i), id: id})
}

// drop ends a daemon; what it had sent is in doubt.
func (w *world) drop(i, po int) {
	d := &w.nodes[i].daemons[po]
	if d.stage >= dotted {
		w.stores[po].messages[d.message].excused = true
	}
	*d = daemon{}
}

// advance takes the daemon's next step.
func (w *world) advance(i, po int) {
	n := &w.nodes[i]
	d := &n.daemons[po]
	d.since = w.now
	line := packet{kind: write, node: uint8(i), po: uint8(po), message: d.message, try: d.try, revision: d.epoch}
	switch d.stage {
	case idle:
		j := w.deliverable(d, po)
		d.message, d.seen, d.stage = uint8(j), w.stores[po].messages[j].marks, chosen
	case chosen:
		m := &w.stores[po].messages[d.message]
		if m.tries == attempts {
			w.fail("message %d of %s needs more than %d attempts", d.message, names[po], attempts)
			return
		}
		d.try, d.long = m.tries, false
		m.seen[d.try] = d.seen
		m.tries++
		line.message, line.try, line.what, line.cached = d.message, d.try, uint8(mark), w.broken.markCached
		w.send(line)
		d.stage = marking
		if w.broken.markCached {
			d.stage = marked
		}
	case marked:
		d.stage = idle
		if w.mayGo(n) {
			d.stage = loaded
		}
	case loaded:
		w.dot(i, po)
		d.stage = dotted
	case answered:
		line.what = uint8(status)
		w.send(line)
		d.stage = statusing
	}
}

// dot is the final dot, and here is what must hold.
func (w *world) dot(i, po int) {
	n := &w.nodes[i]
	d := &n.daemons[po]
	m := &w.stores[po].messages[d.message]
	bit := uint16(1) << d.try
	for y := range attempts {
		other := uint16(1) << y
		if m.dots&other == 0 {
			continue
		}
		w.doubts++
		if d.seen&other == 0 && m.seen[y]&bit == 0 {
			w.fail("%s sends a dot for message %d of %s again, and neither attempt %d nor %d has the other in doubt", names[i], d.message, names[po], y, d.try)
		}
		if !m.excused {
			w.fail("%s sends a dot for message %d of %s again, in doubt without a fault", names[i], d.message, names[po])
		}
	}
	m.dots |= bit
	if n.offDisk || d.long {
		m.excused = true
	}
	// A pause that is longer than the argument allows breaks these, and only these.
	if !d.long && n.local > n.limit {
		w.fail("%s sends a dot for %s past its deadline", names[i], names[po])
	}
	if k := w.keys[po]; !d.long && !w.restored && (k.holder != uint8(i)+1 || k.revision != d.epoch) {
		w.fail("%s sends a dot for %s without a claim in etcd", names[i], names[po])
	}
	if s := w.stores[po].epoch; s != d.epoch && !(d.long && s > d.epoch) {
		w.fail("%s sends a dot for %s of epoch %d in epoch %d", names[i], names[po], d.epoch, w.stores[po].epoch)
	}
}
