package protocol

import (
	"fmt"
	"slices"
)

// What can happen next in the world. The order is that of weights below.
type choiceKind uint8

const (
	tick choiceKind = iota // time goes on for all
	stepMember
	stepDaemon
	answerDot
	endDaemon
	deliver
	look // the watch of etcd
	expire
	takeMail
	noticeDisk

	// What mends a fault.
	boot
	runMember
	thaw
	thawMember
	resume
	joinEtcd
	joinDisk
	majority

	// Faults.
	lose
	repeat
	killNode
	killMember
	killDaemon
	freeze
	freezeMember
	freezeMidway // before it carries out what its next step wants
	suspend
	cutEtcd
	cutDisk
	noMajority
	silence
	restore
	quit
	drift
	kinds
)

var weights = [kinds]uint8{
	tick: 60, stepMember: 60, stepDaemon: 40, answerDot: 40, endDaemon: 40, deliver: 60, look: 40, expire: 30, takeMail: 3, noticeDisk: 20,
	boot: 2, runMember: 10, thaw: 2, thawMember: 2, resume: 2, joinEtcd: 2, joinDisk: 2, majority: 3,
	lose: 2, repeat: 1, killNode: 4, killMember: 2, killDaemon: 2, freeze: 4, freezeMember: 2, freezeMidway: 2, suspend: 3, cutEtcd: 3, cutDisk: 2, noMajority: 1, silence: 1, restore: 1, quit: 2, drift: 0,
}

var kindNames = [kinds]string{
	tick: "tick", stepMember: "zmcluster's clock", stepDaemon: "daemon's step", answerDot: "answer to the dot", endDaemon: "daemon ends",
	deliver: "deliver", look: "watch", expire: "lease ends", takeMail: "250", noticeDisk: "probe of the disk",
	boot: "boot", runMember: "start zmcluster", thaw: "SIGCONT of a daemon", thawMember: "SIGCONT of zmcluster", resume: "SIGCONT of all",
	joinEtcd: "etcd in reach", joinDisk: "disk in reach", majority: "etcd has a majority",
	lose: "lose", repeat: "repeat", killNode: "power off", killMember: "SIGKILL of zmcluster", killDaemon: "SIGKILL of a daemon", freeze: "SIGSTOP of a daemon",
	freezeMember: "SIGSTOP of zmcluster", freezeMidway: "SIGSTOP of zmcluster before its actions", suspend: "SIGSTOP of all", cutEtcd: "etcd out of reach", cutDisk: "disk out of reach",
	noMajority: "etcd without majority", silence: "no answer to the dot", restore: "etcd starts empty", quit: "planned stop", drift: "other rate",
}

// choice is one thing that can happen: to a node, to its daemons of a postoffice, or to a packet.
type choice struct {
	kind choiceKind
	a, b uint8
}

func (c choice) describe(w *world) string {
	switch c.kind {
	case deliver, lose, repeat:
		p := w.wire[c.a]
		what := fmt.Sprint(p.what)
		if p.kind == toEtcd || p.kind == toStore {
			what = describe(Action{Verb: Verb(p.what), Postoffice: names[p.po], ID: uint64(p.id)})
		}
		return fmt.Sprintf("%s packet of %s, kind %d: %s", kindNames[c.kind], names[p.node], p.kind, what)
	case stepDaemon, answerDot, endDaemon, thaw, killDaemon, freeze, silence:
		return fmt.Sprintf("%s: %s on %s, stage %d", kindNames[c.kind], names[c.a], names[c.b], w.nodes[c.a].daemons[c.b].stage)
	}
	return fmt.Sprintf("%s: %s", kindNames[c.kind], names[c.a])
}

// awake reports whether zmcluster of a node runs and is not stopped.
func (w *world) awake(i int) bool {
	n := &w.nodes[i]
	return n.on && n.running && !n.frozen && !n.suspended
}

// canDeliver reports whether a packet can arrive now.
func (w *world) canDeliver(p *packet) bool {
	n := &w.nodes[p.node]
	switch p.kind {
	case toEtcd:
		return !n.offEtcd && !w.down
	case toNode:
		return !n.offEtcd && w.awake(int(p.node))
	case toSelf:
		return w.awake(int(p.node))
	}
	return !n.offDisk
}

// claiming reports whether a claim was made whose epoch is not stored yet. An etcd that loses its
// data just then is beyond the argument.
func (w *world) claiming() bool {
	for i := range w.n {
		for po := range w.n {
			if phase, _ := w.machines[i].Phase(names[po]); phase >= Claiming && phase <= Writing {
				return true
			}
		}
	}
	return slices.ContainsFunc(w.wire, func(p packet) bool { return p.kind == toStore })
}

// free reports whether the loss of a packet is part of another fault.
func (w *world) free(p *packet) bool {
	n := &w.nodes[p.node]
	if p.kind == write {
		return !n.on
	}
	return (p.kind == toEtcd || p.kind == toNode) && (n.offEtcd || w.down)
}

// choices appends all that can happen. Time does not pass while something is overdue that the
// argument's bounds demand.
func (w *world) choices(list []choice) []choice {
	overdue := false
	add := func(k choiceKind, a, b int) { list = append(list, choice{k, uint8(a), uint8(b)}) }
	fault := func(k choiceKind, a, b int) {
		if w.faults > 0 {
			add(k, a, b)
		}
	}
	for j := range w.wire {
		p := &w.wire[j]
		if w.canDeliver(p) {
			add(deliver, j, 0)
			overdue = overdue || p.kind == write && w.now-p.at >= storageBound
		}
		if w.free(p) {
			add(lose, j, 0)
		} else if p.kind == toEtcd || p.kind == toNode {
			fault(lose, j, 0)
			fault(repeat, j, 0)
		}
	}
	for i := range w.n {
		n := &w.nodes[i]
		if l := &w.leases[i]; l.alive && !w.down && l.expires <= w.now {
			add(expire, i, 0)
		}
		if !n.on {
			if i != w.dead {
				add(boot, i, 0)
			}
			continue
		}
		if n.offEtcd {
			add(joinEtcd, i, 0)
		} else {
			fault(cutEtcd, i, 0)
		}
		if n.offDisk {
			add(joinDisk, i, 0)
		} else {
			fault(cutDisk, i, 0)
		}
		fault(killNode, i, 0)
		if n.suspended {
			add(resume, i, 0)
			continue
		}
		fault(suspend, i, 0)
		switch {
		case !n.running:
			add(runMember, i, 0)
		case n.frozen:
			add(thawMember, i, 0)
			fault(killMember, i, 0)
		default:
			if n.ran < w.now {
				add(stepMember, i, 0)
				overdue = overdue || w.now-n.ran >= pauseBound
			}
			if !n.offEtcd && !w.down && w.behind(i) {
				add(look, i, 0)
			}
			if n.offDisk != n.reported {
				add(noticeDisk, i, 0)
			}
			fault(killMember, i, 0)
			fault(freezeMember, i, 0)
			if !n.midway {
				fault(freezeMidway, i, 0)
			}
			fault(quit, i, 0)
		}
		if w.canAccept(i) {
			add(takeMail, i, 0)
		}
		for po := range w.n {
			d := &n.daemons[po]
			if d.stage == none {
				continue
			}
			if w.ready(i, po) {
				add(stepDaemon, i, po)
				overdue = overdue || d.stage != idle && w.now-d.since >= pauseBound
			}
			if w.canEnd(i, po) {
				add(endDaemon, i, po)
			}
			if d.stage == dotted {
				if !d.frozen {
					add(answerDot, i, po)
					overdue = overdue || w.now-d.since >= answerBound
				}
				fault(silence, i, po)
			}
			if d.frozen {
				add(thaw, i, po)
			} else {
				fault(freeze, i, po)
			}
			fault(killDaemon, i, po)
		}
	}
	if w.down {
		add(majority, 0, 0)
	} else {
		fault(noMajority, 0, 0)
		if !w.restored && !w.claiming() {
			fault(restore, 0, 0)
		}
	}
	if !overdue {
		add(tick, 0, 0)
	}
	return list
}

// do has a choice happen.
func (w *world) do(c choice) {
	if c.kind >= lose && !(c.kind == lose && w.free(&w.wire[c.a])) {
		w.faults--
	}
	i, po := int(c.a), int(c.b)
	n := &w.nodes[min(i, nodesMax-1)]
	d := &n.daemons[min(po, nodesMax-1)]
	switch c.kind {
	case tick:
		w.now++
		for j := range w.n {
			if m := &w.nodes[j]; !m.suspended || !w.broken.clockSleeps {
				m.local += int32(m.rate)
			}
			w.pauses(j)
		}
	case stepMember:
		w.step(i, Event{Kind: Tick})
	case stepDaemon:
		w.advance(i, po)
	case answerDot:
		d.stage, d.since = answered, w.now
	case endDaemon:
		w.end(i, po)
	case deliver:
		p := w.take(i)
		switch {
		case p.kind == toEtcd:
			w.etcd(p)
		case p.kind == toStore:
			w.disk(p)
		case p.kind == write:
			w.diskWrite(p)
		case p.life == w.nodes[p.node].life:
			w.receive(p)
		}
	case lose:
		w.take(i)
	case repeat:
		w.wire = append(w.wire, w.wire[i])
	case look:
		w.watch(i)
	case expire:
		w.endLease(i)
	case takeMail:
		w.accept(i)
	case noticeDisk:
		n.reported = n.offDisk
		k := StorageBack
		if n.offDisk {
			k = StorageFailed
		}
		w.step(i, Event{Kind: k, Postoffice: names[i]})
	case boot:
		n.on = true
		w.startMember(i)
	case runMember:
		w.startMember(i)
	case killNode:
		w.powerOff(i)
	case killMember:
		n.running = false
		w.held[i] = nil
	case killDaemon:
		w.drop(i, po)
		if n.running {
			// An end that is waited for is reported as such, any other as a crash.
			w.reportEnd(i, po)
		}
	case freeze:
		d.frozen = true
	case thaw:
		d.frozen, d.since = false, w.now
	case freezeMember:
		n.frozen = true
	case freezeMidway:
		n.midway = true
	case thawMember:
		n.frozen, n.ran = false, w.now
		w.carryOutHeld(i)
	case suspend:
		n.suspended = true
	case resume:
		n.suspended, n.ran = false, w.now
		for po := range w.n {
			n.daemons[po].since = w.now
		}
	case cutEtcd:
		n.offEtcd = true
	case joinEtcd:
		n.offEtcd = false
	case cutDisk:
		n.offDisk = true
		for po := range w.n {
			if d := &n.daemons[po]; d.stage >= loaded {
				w.stores[po].messages[d.message].excused = true
			}
		}
	case joinDisk:
		n.offDisk = false
	case noMajority:
		w.down = true
	case majority:
		w.down = false
		for i := range w.leases { // a new leader begins all leases anew
			w.leases[i].expires = max(w.leases[i].expires, w.now+ttl/10)
		}
	case silence:
		w.stores[po].messages[d.message].excused = true
		d.stage, d.since = idle, w.now
	case restore:
		w.restored = true
		w.leases, w.keys, w.asks, w.revision = [nodesMax]lease{}, [nodesMax]key{}, [nodesMax]bool{}, 0
	case quit:
		w.step(i, Event{Kind: Quit})
	case drift:
		n.rate = c.b
	}
}

// take removes a packet.
func (w *world) take(j int) packet {
	p := w.wire[j]
	last := len(w.wire) - 1
	w.wire[j] = w.wire[last]
	w.wire = w.wire[:last]
	return p
}

// pauses notes the daemons that have been stopped for longer than the argument allows, when
// they have looked at the deadline and not yet written how it ended.
func (w *world) pauses(i int) {
	n := &w.nodes[i]
	for po := range w.n {
		if d := &n.daemons[po]; (d.frozen || n.suspended) && d.stage >= loaded && w.now-d.since > pauseBound {
			d.long = d.long || d.stage == loaded
			w.stores[po].messages[d.message].excused = true
		}
	}
}

// powerOff ends all of a node and what it had in its memory.
func (w *world) powerOff(i int) {
	n := &w.nodes[i]
	for po := range w.n {
		w.drop(i, po)
	}
	w.held[i] = nil
	n.on, n.running, n.frozen, n.suspended, n.page, n.limit = false, false, false, false, 0, 0
	for j := len(w.wire) - 1; j >= 0; j-- {
		p := &w.wire[j]
		if int(p.node) != i || p.kind == toEtcd {
			continue
		}
		if p.kind != write || p.cached {
			w.take(j)
		}
	}
}

// reportEnd has zmcluster learn that daemons were killed by somebody else.
func (w *world) reportEnd(i, po int) {
	_, epoch := w.machines[i].Phase(names[po])
	if epoch == 0 && w.machines[i].Status() != Ending {
		return
	}
	n := &w.nodes[i]
	if w.machines[i].Status() == Ending {
		for j := range n.daemons {
			if n.daemons[j].stage != none {
				return
			}
		}
		w.send(packet{kind: toSelf, what: uint8(AllEnded), node: uint8(i), id: uint32(w.machines[i].awaited)})
		return
	}
	o := w.machines[i].office(names[po])
	w.send(packet{kind: toSelf, what: uint8(Ended), node: uint8(i), po: uint8(po), id: uint32(o.awaited)})
}
