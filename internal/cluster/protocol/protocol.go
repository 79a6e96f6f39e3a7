// Package protocol decides when a node of a cluster may serve a postoffice. It is the member's
// state machine: Step takes an event and the time, and returns the actions that the program has
// to carry out. It owns nothing, starts nothing and reads no clock, so a program and the model
// test run the same code.
//
// Nothing of it survives a crash. A new machine begins in the state ending: it first has the
// daemons ended that an earlier life of the program may have left.
//
// Times are those of the node's steady clock (CLOCK_BOOTTIME). Requests have a number (ID);
// an answer whose number is not the awaited one is ignored, so answers may be late, repeated or
// lost. Revisions are etcd's; the epoch of a postoffice is the revision of the claim.
//
// The node:
//
//	state    event or time              actions                          next
//	ending   AllEnded                   leave (revoke the old lease)     apart
//	apart    time                       join                             joining
//	joining  Joined                     publish sent+TTL-margin          member
//	joining  NameTaken, JoinFailed                                       apart, tries again
//	joining  NameTaken, a machine that
//	         renews its lease           refuse                           refused
//	member   time                       renew
//	member   Renewed                    publish sent+TTL-margin
//	member   deadline, LeaseGone,
//	         StorageFailed (own)        publish 0, end all daemons       ending
//	member   Quit, all daemons ended    publish 0, leave                 left
//
// Each postoffice, while the node is a member:
//
//	state     event or time             actions                          next
//	idle      free, and own or its
//	          owner is no member        claim                            claiming
//	idle      own, served by another    ask for it
//	claiming  Won                                                        settling
//	claiming  Lost, RequestFailed                                        idle, tries again
//	settling  time won + settle         read the epoch                   reading
//	reading   EpochRead, lower          write the epoch                  writing
//	reading   EpochRead, not lower      alarm, release                   releasing
//	reading, writing:
//	          EpochDamaged              alarm                            damaged, then reading again
//	writing   EpochRead, higher         alarm, release                   releasing
//	writing   EpochWritten              start the daemons                serving
//	settling, reading, writing, damaged:
//	          Asked                     release                          releasing
//	serving   Ended                     start the daemons
//	serving   Asked, Quit, or another
//	          claim is newer            stop the daemons                 stopping
//	stopping  Ended                     release                          releasing
//	releasing Released                                                   idle; after an alarm for TTL + settle
//
// What the program owes to the machine:
//
//   - It carries out the actions in their order, before the next step. One process of a node
//     does so at a time.
//   - Claim succeeds only when no node holds the key, or when it is held under the same lease, and
//     then answers with the revision that created it.
//   - Release deletes the key only if that revision created it.
//   - WriteEpoch cannot lower what is stored, however late it arrives. It looks again after it, and
//     answers with EpochRead if a higher epoch is stored.
//   - Ended and AllEnded mean that the processes do not exist any more.
//   - When it begins to watch etcd, again or for the first time, it reports every postoffice and
//     node: a key that does not exist as Vanished with revision 0, or NodeGone.
//
// Diagnostics: New returns an error for times that contradict each other. Step does not fail.
package protocol

import (
	"errors"
	"fmt"
	"time"
)

// Config has what a member needs to know.
type Config struct {
	Node   string        // its name, which is that of its own postoffice too
	Host   string        // identifies the machine; nodes/NAME has it
	TTL    time.Duration // of the lease in etcd
	Margin time.Duration // the deadline lies that much before the lease's end; at least the drift of two clocks over TTL
	Settle time.Duration // between a claim that was won and the first look at the postoffice
	Renew  time.Duration // between renewals
	Retry  time.Duration // before a request is sent again
}

// Status is the state of the node.
type Status uint8

// States of the node.
const (
	Ending Status = iota
	Apart
	Joining
	Member
	Refused
	Left
)

// Phase is the state of a postoffice, as far as this node is concerned.
type Phase uint8

// States of a postoffice.
const (
	Idle Phase = iota
	Claiming
	Settling
	Reading
	Writing
	Unreadable // its epoch is damaged
	Serving
	Stopping
	Releasing
)

type office struct {
	name     string
	holder   string // as etcd reports it; "": none
	revision uint64 // that created or deleted the key
	present  bool   // its owner is a member
	asked    bool   // its owner asks for it
	alarmed  bool
	written  bool // the epoch of this claim may be stored
	phase    Phase
	awaited  uint64        // number of the request whose answer counts
	since    time.Duration // begin of the phase, or of the last try in it
	until    time.Duration // idle until then
	epoch    uint64        // revision of the claim
}

// Machine is a member of the cluster.
type Machine struct {
	config   Config
	status   Status
	now      time.Duration
	lease    uint64 // number of the join; 0: none
	awaited  uint64 // of EndAll or Join
	ids      uint64
	deadline time.Duration
	sent     time.Duration // of the last renewal or join
	until    time.Duration // apart until then
	taken    uint64        // revision of the key of another node with this name
	takenAt  time.Duration // since when it is known
	begun    bool
	quit     bool
	hung     bool // the own postoffice's file system failed
	offices  []office
	out      []Action
}

// New returns a machine that has done nothing yet.
func New(c Config) (*Machine, error) {
	switch {
	case c.Node == "", c.Host == "":
		return nil, errors.New("the node or its machine has no name")
	case c.Renew <= 0, c.Retry <= 0, c.Margin <= 0, c.Settle <= 0:
		return nil, errors.New("the times of a lease must be positive")
	case 2*c.Renew > c.TTL-c.Margin:
		return nil, fmt.Errorf("a lease of %v less %v must last for two renewals, each %v", c.TTL, c.Margin, c.Renew)
	}
	m := &Machine{config: c}
	m.office(c.Node)
	return m, nil
}

// Status returns the state of the node.
func (m *Machine) Status() Status { return m.status }

// Deadline returns the time at which the daemons must have stopped, 0 when none may run.
func (m *Machine) Deadline() time.Duration { return m.deadline }

// Phase returns the state of a postoffice and the epoch of the claim; 0: not claimed.
func (m *Machine) Phase(postoffice string) (Phase, uint64) {
	for i := range m.offices {
		if o := &m.offices[i]; o.name == postoffice {
			return o.phase, o.epoch
		}
	}
	return Idle, 0
}

// Step takes an event at a time of the steady clock. The actions are valid until the next call.
func (m *Machine) Step(now time.Duration, e Event) []Action {
	m.now = max(m.now, now)
	m.out = m.out[:0]
	if !m.begun {
		m.begun = true
		m.awaited = m.do(Action{Verb: EndAll})
	}
	// The deadline comes before the event: a program that was stopped learns first that it
	// is too late.
	if m.status == Member && m.now >= m.deadline {
		m.lapse()
	}
	if e.Postoffice != "" {
		m.about(m.office(e.Postoffice), e)
	} else {
		m.take(e)
	}
	m.advance()
	return m.out
}

// do adds an action and returns its number.
func (m *Machine) do(a Action) uint64 {
	m.ids++
	a.ID = m.ids
	m.out = append(m.out, a)
	return a.ID
}

func (m *Machine) office(name string) *office {
	for i := range m.offices {
		if m.offices[i].name == name {
			return &m.offices[i]
		}
	}
	m.offices = append(m.offices, office{name: name})
	return &m.offices[len(m.offices)-1]
}

// lapse ends this lease for us, whatever etcd thinks of it.
func (m *Machine) lapse() {
	m.deadline = 0
	m.do(Action{Verb: Publish})
	m.awaited = m.do(Action{Verb: EndAll})
	m.status = Ending
	for i := range m.offices {
		m.offices[i].rest(m.now)
	}
}

// rest makes a postoffice one that this node does not serve.
func (o *office) rest(until time.Duration) {
	o.phase, o.awaited, o.epoch, o.written, o.until = Idle, 0, 0, false, until
}

// take handles what concerns the node.
func (m *Machine) take(e Event) {
	switch e.Kind {
	case AllEnded:
		if m.status != Ending || e.ID != m.awaited {
			return
		}
		// Revoked only now: while a daemon exists, the lease keeps others away.
		m.leave(Apart)
	case Joined:
		if m.status != Joining || e.ID != m.awaited {
			return
		}
		m.status, m.lease, m.taken = Member, e.ID, 0
		m.extend(e.Sent)
		if m.now >= m.deadline {
			m.lapse()
		}
	case NameTaken:
		if m.status != Joining || e.ID != m.awaited {
			return
		}
		m.status, m.until = Apart, m.now+m.config.Retry
		if m.taken != e.Revision {
			m.taken, m.takenAt = e.Revision, m.now
		}
		// The key of an earlier life of this node, or of a lost answer, ends with its lease.
		// Another machine's is given twice that time, because etcd begins a lease anew when
		// its leader changes.
		if e.Holder != m.config.Host && m.now-m.takenAt >= 2*m.config.TTL+m.config.Margin {
			m.status = Refused
			m.do(Action{Verb: Refuse, Holder: e.Holder})
		}
	case JoinFailed:
		if m.status == Joining && e.ID == m.awaited {
			m.status, m.until = Apart, m.now+m.config.Retry
		}
	case Renewed:
		if m.status == Member && e.Lease == m.lease {
			m.extend(e.Sent)
		}
	case LeaseGone:
		if m.status == Member && e.Lease == m.lease {
			m.lapse()
		}
	case NodeSeen:
		m.office(e.Node).present = true
	case NodeGone:
		m.office(e.Node).present = false
	case Quit:
		m.quit = true
	}
}

// extend moves the deadline. It counts from the sending of the request, because etcd counts
// from the receipt.
func (m *Machine) extend(sent time.Duration) {
	deadline := sent + m.config.TTL - m.config.Margin
	if deadline > m.deadline {
		m.deadline = deadline
		m.do(Action{Verb: Publish, Deadline: deadline})
	}
}

// leave gives up the lease, which deletes all keys under it.
func (m *Machine) leave(next Status) {
	if m.lease != 0 {
		m.do(Action{Verb: Leave, Lease: m.lease})
	}
	m.status, m.lease, m.deadline, m.until = next, 0, 0, m.now
}

// about handles what concerns a postoffice.
func (m *Machine) about(o *office, e Event) {
	switch e.Kind {
	case Seen, Vanished:
		o.holder, o.revision = e.Holder, e.Revision
		// An older revision is a watch that lags behind our own claim.
		if e.Revision > o.epoch && o.epoch != 0 && e.Holder != m.config.Node {
			m.lose(o)
		}
		return
	case Asked, Unasked:
		o.asked = e.Kind == Asked
		return
	case StorageFailed, StorageBack:
		if o.name != m.config.Node {
			return // its daemons wait; the node's own mail must not
		}
		m.hung = e.Kind == StorageFailed
		if m.hung && m.status == Member {
			m.lapse()
		}
		return
	}
	if m.status != Member || e.ID == 0 || e.ID != o.awaited {
		return
	}
	switch {
	case e.Kind == Won && o.phase == Claiming && o.revision > e.Revision:
		o.rest(m.now + m.config.Retry) // the key is gone again: the watch was faster than the answer
	case e.Kind == Won && o.phase == Claiming:
		o.phase, o.epoch, o.since = Settling, e.Revision, m.now
	case e.Kind == Lost && o.phase == Claiming:
		o.rest(m.now + m.config.Retry)
	case e.Kind == RequestFailed && o.phase == Claiming:
		o.rest(m.now + m.config.Retry)
	case e.Kind == EpochRead && (o.phase == Reading || o.phase == Writing):
		overtaken := e.Revision > o.epoch || o.phase == Reading && e.Revision == o.epoch && !o.written
		o.alarmed = o.alarmed && overtaken
		if overtaken {
			// Another one was here after our claim, or etcd lost its data. The node that
			// wrote it may serve until the end of a lease that etcd forgot.
			m.alarm(o, Overtaken)
			m.release(o)
			o.until = m.now + m.config.TTL + m.config.Settle
			return
		}
		o.phase, o.written = Writing, true
		o.since, o.awaited = m.now, m.do(Action{Verb: WriteEpoch, Postoffice: o.name, Epoch: o.epoch})
	case e.Kind == EpochDamaged && (o.phase == Reading || o.phase == Writing):
		m.alarm(o, Damaged)
		o.phase, o.since, o.awaited = Unreadable, m.now, 0
	case e.Kind == RequestFailed && (o.phase == Reading || o.phase == Writing):
		o.phase, o.since, o.awaited = Settling, m.now, 0
	case e.Kind == EpochWritten && o.phase == Writing:
		o.phase = Serving
		o.awaited = m.do(Action{Verb: Start, Postoffice: o.name, Epoch: o.epoch})
	case e.Kind == Ended && o.phase == Serving:
		o.awaited = m.do(Action{Verb: Start, Postoffice: o.name, Epoch: o.epoch})
	case e.Kind == Ended && o.phase == Stopping:
		m.release(o)
	case e.Kind == Released && o.phase == Releasing:
		if o.revision <= o.epoch { // else the watch has reported a later key
			o.holder = ""
		}
		o.rest(max(o.until, m.now+m.config.Retry))
	}
}

// lose gives up a claim that etcd has given to another, or that was deleted by hand.
func (m *Machine) lose(o *office) {
	switch o.phase {
	case Serving:
		m.stop(o)
	case Settling, Reading, Writing, Unreadable:
		o.rest(m.now + m.config.Retry)
	}
}

func (m *Machine) stop(o *office) {
	o.phase = Stopping
	o.awaited = m.do(Action{Verb: Stop, Postoffice: o.name})
}

// release deletes the key, and waits for the answer: a claim that overtook the release would win
// what the release then deletes.
func (m *Machine) release(o *office) {
	o.phase = Releasing
	o.since, o.awaited = m.now, m.do(Action{Verb: Release, Postoffice: o.name, Epoch: o.epoch})
}

func (m *Machine) alarm(o *office, t Trouble) {
	if !o.alarmed {
		o.alarmed = true
		m.do(Action{Verb: Alarm, Postoffice: o.name, Trouble: t})
	}
}

// advance does what the time demands.
func (m *Machine) advance() {
	switch m.status {
	case Apart:
		if m.quit {
			m.status = Left
			return
		}
		if m.now >= m.until && !m.hung {
			m.status, m.sent = Joining, m.now
			m.awaited = m.do(Action{Verb: Join, Sent: m.now})
		}
	case Joining:
		// The lease that an unknown answer left in etcd is not renewed, so it ends.
		if m.now-m.sent >= m.config.TTL {
			m.status, m.until = Apart, m.now
		}
	case Member:
		if m.now-m.sent >= m.config.Renew {
			m.sent = m.now
			m.do(Action{Verb: Renew, Lease: m.lease, Sent: m.now})
		}
		busy := false
		for i := range m.offices {
			m.work(&m.offices[i])
			busy = busy || m.offices[i].phase == Serving || m.offices[i].phase == Stopping
		}
		if m.quit && !busy {
			m.do(Action{Verb: Publish})
			m.leave(Left)
			for i := range m.offices {
				m.offices[i].rest(m.now)
			}
		}
	}
}

// work does what the time demands of one postoffice.
func (m *Machine) work(o *office) {
	own := o.name == m.config.Node
	late := m.now-o.since >= m.config.Retry
	if o.asked && !own && o.phase >= Settling && o.phase <= Unreadable {
		// Nothing was touched. An epoch that is written late is lower than the owner's.
		m.release(o)
		return
	}
	switch o.phase {
	case Idle:
		if m.now < o.until || m.quit {
			return
		}
		switch free := o.holder == "" || o.holder == m.config.Node; {
		case free && (own || !o.present):
			o.phase, o.since = Claiming, m.now
			o.awaited = m.do(Action{Verb: Claim, Postoffice: o.name, Lease: m.lease})
		case free && o.holder != "":
			// A claim whose answer was lost, and whose owner has come meanwhile.
			o.epoch = o.revision
			m.release(o)
		case own:
			o.until = m.now + m.config.Retry
			m.do(Action{Verb: Ask, Postoffice: o.name, Lease: m.lease})
		}
	case Claiming:
		if late {
			o.rest(m.now)
		}
	case Settling:
		if m.now-o.since >= m.config.Settle {
			o.phase, o.since = Reading, m.now
			o.awaited = m.do(Action{Verb: ReadEpoch, Postoffice: o.name})
		}
	case Unreadable:
		if late {
			o.phase, o.since = Reading, m.now
			o.awaited = m.do(Action{Verb: ReadEpoch, Postoffice: o.name})
		}
	case Serving:
		if m.quit || o.asked && !own {
			m.stop(o) // they finish what they have in hand
		}
	case Releasing:
		if late {
			m.release(o)
		}
	}
}
