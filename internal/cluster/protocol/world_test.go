package protocol

import (
	"fmt"
	"slices"
	"time"
)

// The world of the model: nodes with the machine and with daemons as small actors, an etcd with
// leases, a shared file system, and a next hop that counts final dots. One choice changes it at
// a time; who chooses is the scheduler of model_test.go. There is no router in it, so nothing that
// is done to messages by renames.
//
// Real time goes in ticks of 10 units. A node's steady clock counts 9 to 11 units a tick.
const (
	nodesMax = 3
	messages = 4 // of a postoffice
	attempts = 16

	// What the argument assumes, in ticks.
	pauseBound   = 2 // a program that is not stopped takes its next step within
	storageBound = 3 // a write that was issued is applied within, unless its node is cut off
	answerBound  = 2 // the next hop answers the final dot within, or is said to be silent

	// Units of a steady clock; 11 is the fastest tick.
	ttl     = 160
	margin  = 16 // a clock that counts 9 for 10 reaches 144 when the lease ends at 160
	settle  = (pauseBound + storageBound + 1) * 11
	reserve = (pauseBound + answerBound) * 11
)

var names = [nodesMax]string{"a", "b", "c"}

func index(name string) int { return slices.Index(names[:], name) }

// broken has the guards that a run leaves out.
type broken struct {
	fromAnswer     bool // the deadline counts from the answer of a renewal
	noMargin       bool // the deadline has no margin for drift
	clockSleeps    bool // the clock stands still while the machine is suspended
	noSettle       bool // no wait after the claim is won
	epochUnwritten bool // the daemons start before the epoch is stored
	epochIgnored   bool // the stored epoch is not compared
	epochLowered   bool // a late write puts a lower epoch in place of a higher one
	noDeadline     bool // no look at the deadline before the final dot
	noReserve      bool // the dot is sent if the deadline has not yet passed
	markCached     bool // the mark is not durable before the dot
	handBackEarly  bool // a postoffice is released before its daemons have ended
	rejoinEarly    bool // past the deadline a lease is taken before the daemons have ended
	otherLife      bool // a new zmcluster takes a lease beside daemons of its predecessor
	oldLocks       bool // locks of an older epoch are honoured
	claimOverwrite bool // a claim takes a key that another holds
	releaseBlind   bool // a release deletes a key of another revision
}

type packetKind uint8

const (
	toEtcd  packetKind = iota + 1
	toNode             // from etcd
	toSelf             // to zmcluster from its own node
	toStore            // the epoch
	write              // of a daemon, into a specification
)

type packet struct {
	kind         packetKind
	what         uint8 // Verb, Kind or writeKind
	node, po     uint8
	life         uint8
	message, try uint8
	cached       bool
	at           int32
	id, lease    uint32
	revision     uint32
	sent         int32
}

type writeKind uint8

const (
	mark writeKind = iota
	status
)

type stage uint8

const (
	none stage = iota
	idle
	chosen   // the specification was read
	marking  // the mark is on its way to the disk
	marked   // it is durable
	loaded   // the deadline was read and is far enough
	dotted   // the final dot is sent
	answered // the next hop took it
	statusing
)

type daemon struct {
	stage        stage
	message, try uint8
	seen         uint16 // attempts in the specification when it was read
	stopping     bool
	all          bool // by EndAll
	id           uint32
	epoch        uint32
	since        int32
	frozen       bool // SIGSTOP
	long         bool // the pause before the dot was longer than the argument allows
}

type node struct {
	on               bool
	life             uint8
	running          bool // zmcluster
	frozen           bool // zmcluster alone
	midway           bool // it will be, before it carries out its next actions
	suspended        bool // everything
	offEtcd, offDisk bool
	reported         bool // zmcluster knows that the disk is gone
	rate             uint8
	local            int32
	ran              int32 // tick of zmcluster's last step
	page, limit      int32 // deadline; the last one that was not 0
	holders          [nodesMax]key
	present          [nodesMax]bool
	asked            [nodesMax]bool
	daemons          [nodesMax]daemon
}

type key struct {
	holder   uint8 // 1 + node; 0: none
	revision uint32
}

type lease struct {
	alive   bool
	life    uint8
	id      uint32
	born    uint32 // revision of nodes/NAME
	expires int32
}

type message struct {
	accepted, done bool
	excused        bool   // a fault explains a second copy
	lock           uint32 // epoch of the lock, 0: none
	tries          uint8
	marks          uint16           // attempts in the specification
	dots           uint16           // attempts that sent the dot
	seen           [attempts]uint16 // by attempt, what it has read
}

type store struct {
	epoch    uint32
	messages [messages]message
}

// state is what two worlds must have in common to be the same, besides machines and packets.
type state struct {
	now      int32
	down     bool // etcd has no majority
	revision uint32
	faults   int8
	restored bool
	leases   [nodesMax]lease
	keys     [nodesMax]key
	asks     [nodesMax]bool
	nodes    [nodesMax]node
	stores   [nodesMax]store
}

type world struct {
	state
	n         int
	dead      int // this node never starts again; -1: none
	broken    broken
	machines  [nodesMax]*Machine
	wire      []packet
	held      [nodesMax][]Action // what zmcluster carries out when it goes on
	violation string
	overtaken int    // alarms
	doubts    int    // second copies that are recorded
	stale     [3]int // marks, statuses and epochs that came after a higher epoch
	trace     func(string)
}

func config(b broken, i int) Config {
	c := Config{Node: names[i], Host: names[i], TTL: ttl, Margin: margin, Settle: settle, Renew: 30, Retry: 30}
	if b.noMargin {
		c.Margin = 1
	}
	if b.noSettle {
		c.Settle = 1
	}
	return c
}

func newWorld(n int, b broken) *world {
	w := &world{n: n, dead: -1, broken: b}
	w.revision = 100 // more than an etcd counts in a run when it starts empty
	for i := range n {
		w.nodes[i].on, w.nodes[i].rate = true, 10
		w.startMember(i)
	}
	return w
}

func (w *world) clone() *world {
	c := *w
	c.wire = slices.Clone(w.wire)
	for i := range c.held {
		c.held[i] = slices.Clone(w.held[i])
	}
	for i, m := range w.machines {
		if m != nil {
			copied := *m
			copied.offices, copied.out = slices.Clone(m.offices), nil
			c.machines[i] = &copied
		}
	}
	return &c
}

func (w *world) fail(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf("tick %d: ", w.now) + fmt.Sprintf(format, args...)
	}
}

// startMember starts zmcluster.
func (w *world) startMember(i int) {
	m, err := New(config(w.broken, i))
	if err != nil {
		panic(err)
	}
	n := &w.nodes[i]
	n.running, n.frozen, n.midway, n.reported, n.ran = true, false, false, false, w.now
	n.life++
	n.holders, n.present, n.asked = [nodesMax]key{}, [nodesMax]bool{}, [nodesMax]bool{}
	w.machines[i] = m
	// It lists all postoffices at its start.
	for p := range w.n {
		w.step(i, Event{Kind: Vanished, Postoffice: names[p]})
	}
}

// step has zmcluster take an event, and carries out what it wants.
func (w *world) step(i int, e Event) {
	n := &w.nodes[i]
	n.ran = w.now
	actions := w.machines[i].Step(time.Duration(n.local), e)
	w.held[i] = slices.Clone(actions)
	if n.midway && len(actions) > 0 {
		n.midway, n.frozen = false, true
		return
	}
	w.carryOutHeld(i)
}

func (w *world) carryOutHeld(i int) {
	actions := w.held[i]
	w.held[i] = nil
	for _, a := range actions {
		w.carryOut(i, a)
	}
	if w.machines[i].Status() == Left {
		w.nodes[i].running = false // it has ended; runMember starts it again
	}
}

func (w *world) send(p packet) {
	p.at = w.now
	p.life = w.nodes[p.node].life
	w.wire = append(w.wire, p)
}

func (w *world) carryOut(i int, a Action) {
	n := &w.nodes[i]
	if w.trace != nil {
		w.trace(fmt.Sprintf("    %s: %v", names[i], describe(a)))
	}
	p := packet{what: uint8(a.Verb), node: uint8(i), id: uint32(a.ID), lease: uint32(a.Lease), revision: uint32(a.Epoch), sent: int32(a.Sent)}
	if a.Postoffice != "" {
		p.po = uint8(index(a.Postoffice))
	}
	switch a.Verb {
	case Join, Renew, Leave, Ask, Claim, Release:
		p.kind = toEtcd
		w.send(p)
	case ReadEpoch, WriteEpoch:
		p.kind = toStore
		w.send(p)
	case Publish:
		n.page = int32(a.Deadline)
		if n.page != 0 {
			n.limit = n.page
		}
		// The lemma: the lease lives as long as a deadline that was published.
		if n.page > n.local && !w.leases[i].alive && !w.restored {
			w.fail("%s publishes a deadline without a lease", names[i])
		}
	case EndAll:
		found := false
		for po := range n.daemons {
			if d := &n.daemons[po]; d.stage != none {
				found = true
				d.stopping, d.all, d.id = true, true, uint32(a.ID)
			}
		}
		early := w.broken.otherLife && a.ID == 1 || w.broken.rejoinEarly && a.ID > 1
		if !found || early {
			w.send(packet{kind: toSelf, what: uint8(AllEnded), node: uint8(i), id: uint32(a.ID)})
		}
		if early {
			for po := range n.daemons {
				n.daemons[po].stopping = false
			}
		}
	case Stop:
		d := &n.daemons[p.po]
		d.stopping, d.all, d.id = true, false, uint32(a.ID)
		if d.stage == none || w.broken.handBackEarly {
			w.send(packet{kind: toSelf, what: uint8(Ended), node: uint8(i), po: p.po, id: uint32(a.ID)})
		}
	case Start:
		d := &n.daemons[p.po]
		if d.stage == none { // else a guard is broken, and the old one goes on
			*d = daemon{stage: idle, since: w.now}
		}
		d.epoch, d.stopping, d.id = uint32(a.Epoch), false, uint32(a.ID)
	case Refuse:
		w.fail("%s is refused although no other has its name", names[i])
	case Alarm:
		w.overtaken++
	}
}

func describe(a Action) string {
	verbs := [...]string{"end all", "join", "renew", "leave", "publish", "refuse", "ask", "claim", "release", "read epoch", "write epoch", "start", "stop", "alarm"}
	return fmt.Sprintf("%s %s id=%d epoch=%d deadline=%d", verbs[a.Verb], a.Postoffice, a.ID, a.Epoch, a.Deadline)
}

// etcd answers a request.
func (w *world) etcd(p packet) {
	i, l := p.node, &w.leases[p.node]
	answer := packet{kind: toNode, node: i, po: p.po, id: p.id, lease: p.lease, sent: p.sent}
	reply := func(k Kind) {
		answer.what = uint8(k)
		answer.at, answer.life = w.now, p.life
		w.wire = append(w.wire, answer)
	}
	mine := l.alive && l.life == p.life && l.id == p.lease
	k := &w.keys[p.po]
	switch Verb(p.what) {
	case Join:
		if l.alive {
			answer.revision = l.born
			reply(NameTaken)
			return
		}
		w.revision++
		*l = lease{alive: true, life: p.life, id: p.id, born: w.revision, expires: w.now + ttl/10}
		reply(Joined)
	case Renew:
		if !mine {
			reply(LeaseGone)
			return
		}
		l.expires = w.now + ttl/10
		reply(Renewed)
	case Leave:
		if mine {
			w.endLease(int(i))
		}
	case Claim:
		switch {
		case !mine:
			reply(LeaseGone)
			return
		case k.holder == 0, w.broken.claimOverwrite && k.holder != i+1:
			w.revision++
			*k = key{i + 1, w.revision}
			if p.po == i {
				w.asks[p.po] = false
			}
		case k.holder != i+1:
			reply(Lost)
			return
		}
		answer.revision = k.revision
		reply(Won)
	case Release:
		if k.holder == i+1 && k.revision == p.revision || w.broken.releaseBlind && k.holder != 0 {
			w.revision++
			*k = key{0, w.revision}
		}
		reply(Released)
	case Ask:
		w.asks[p.po] = w.asks[p.po] || mine && w.keys[p.po].holder != i+1
	}
}

// endLease deletes what a lease keeps.
func (w *world) endLease(i int) {
	w.leases[i].alive, w.asks[i] = false, false
	w.revision++
	for po := range w.keys {
		if w.keys[po].holder == uint8(i)+1 {
			w.keys[po] = key{0, w.revision}
		}
	}
	if n := &w.nodes[i]; n.on && n.page > n.local {
		w.fail("the lease of %s ends %d units before its deadline", names[i], n.page-n.local)
	}
}

// disk applies a request of zmcluster to the shared file system.
func (w *world) disk(p packet) {
	s := &w.stores[p.po]
	answer := packet{kind: toSelf, node: p.node, po: p.po, id: p.id, at: w.now, life: p.life, what: uint8(EpochWritten)}
	switch {
	case Verb(p.what) == ReadEpoch:
		answer.what, answer.revision = uint8(EpochRead), s.epoch
	case w.broken.epochUnwritten:
	case p.revision < s.epoch:
		w.stale[2]++
		if w.broken.epochLowered {
			w.fail("the epoch of %s goes from %d to %d", names[p.po], s.epoch, p.revision)
		}
		if !w.broken.epochIgnored {
			answer.what, answer.revision = uint8(EpochRead), s.epoch
		}
	default:
		s.epoch = p.revision
	}
	if w.broken.epochIgnored {
		answer.revision = 0
	}
	w.wire = append(w.wire, answer)
}

// diskWrite applies a line that a daemon appends to a specification.
func (w *world) diskWrite(p packet) {
	m := &w.stores[p.po].messages[p.message]
	d := &w.nodes[p.node].daemons[p.po]
	same := d.message == p.message && d.try == p.try
	if p.revision < w.stores[p.po].epoch {
		w.stale[p.what]++
	}
	switch writeKind(p.what) {
	case mark:
		m.marks |= 1 << p.try
		m.lock = p.revision
		if same && d.stage == marking {
			d.stage, d.since = marked, w.now
		}
	case status:
		m.done, m.lock = true, 0
		if same && d.stage == statusing {
			d.stage, d.since = idle, w.now
		}
	}
}

// receive gives zmcluster an answer.
func (w *world) receive(p packet) {
	n := &w.nodes[p.node]
	e := Event{Kind: Kind(p.what), ID: uint64(p.id), Lease: uint64(p.lease), Revision: uint64(p.revision), Sent: time.Duration(p.sent)}
	switch e.Kind {
	case Joined, Renewed:
		if w.broken.fromAnswer {
			e.Sent = time.Duration(n.local)
		}
	case Won, Lost, EpochRead, EpochWritten, Ended, Released:
		e.Postoffice = names[p.po]
	case NameTaken:
		e.Holder = names[p.node]
	}
	w.step(int(p.node), e)
}

// watch gives zmcluster the first difference between etcd and what it knows.
func (w *world) watch(i int) {
	n := &w.nodes[i]
	for j := range w.n {
		if k := w.keys[j]; n.holders[j] != k {
			n.holders[j] = k
			e := Event{Kind: Vanished, Postoffice: names[j], Revision: uint64(k.revision)}
			if k.holder != 0 {
				e.Kind, e.Holder = Seen, names[k.holder-1]
			}
			w.step(i, e)
			return
		}
		if alive := w.leases[j].alive; n.present[j] != alive {
			n.present[j] = alive
			e := Event{Kind: NodeGone, Node: names[j]}
			if alive {
				e.Kind = NodeSeen
			}
			w.step(i, e)
			return
		}
		if n.asked[j] != w.asks[j] {
			n.asked[j] = w.asks[j]
			e := Event{Kind: Unasked, Postoffice: names[j]}
			if n.asked[j] {
				e.Kind = Asked
			}
			w.step(i, e)
			return
		}
	}
}

func (w *world) behind(i int) bool {
	n := &w.nodes[i]
	for j := range w.n {
		if n.holders[j] != w.keys[j] || n.present[j] != w.leases[j].alive || n.asked[j] != w.asks[j] {
			return true
		}
	}
	return false
}
