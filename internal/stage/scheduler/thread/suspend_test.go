package thread

import (
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// gate suspends hosts, and messages by their sender.
type gate struct {
	hosts   map[string]*Suspension
	senders map[uint32]*Suspension
	asked   int
}

func (g *gate) Thread(_, host string) *Suspension {
	g.asked++
	return g.hosts[host]
}

func (g *gate) Vertex(v *Vertex) *Suspension { return g.senders[v.Message.Sender] }

// Op5 (suspension): a suspended host gets no delivery, whether its mail was there before or
// comes later, and also if there was none; others go on, and so does it when that ends.
func TestOp5SuspendedHostWaits(t *testing.T) {
	b := newBench(t, Policy{Expiry: 24 * time.Hour})
	b.add("a")
	running := b.take()
	b.add("a")
	b.c.SetGate(&gate{hosts: map[string]*Suspension{"a": {}, "new": {}}}, false, b.now)
	b.end(running, Delivered, HostWait{}) // what is under way ends as it is
	b.add("a")
	b.add("new")
	b.add("b")
	taken := b.takeAll()
	assert.Equal(t, len(taken), 1, "deliveries")
	assert.Equal(t, taken[0].Thread.Host, "b", "host")
	state := b.c.Find("ring", "smtp", "new").Brief(b.now).State
	assert.Equal(t, state, Suspended, "state")
	b.c.SetGate(nil, false, b.now)
	assert.Equal(t, len(b.takeAll()), 3, "deliveries after the end")
}

// Op5 (suspension): one sender's mail waits, and that of others to the same host goes on.
func TestOp5SuspendedSenderWaits(t *testing.T) {
	b := newBench(t, Policy{Expiry: 24 * time.Hour})
	before := b.add("a")
	before.Message.Sender = 7
	b.add("a")
	b.c.SetGate(&gate{senders: map[uint32]*Suspension{7: {}}}, true, b.now)
	b.n++
	after := b.c.Add(&Message{Number: b.n, Stamp: b.now.UnixNano(), Open: 1, Sender: 7}, b.ring, "smtp", "a", []Recipient{NewRecipient(9, "")}, History{}, b.now)
	assert.Equal(t, len(b.takeAll()), 1, "deliveries")
	if b.c.Suspended(before) == nil || b.c.Suspended(after) == nil {
		t.Error("the sender's mail is not suspended")
	}
	b.c.Kick(after.Thread, b.now)
	assert.Equal(t, len(b.takeAll()), 0, "deliveries after an ETRN")
	b.now = b.now.Add(48 * time.Hour)
	expired, _ := b.c.Advance(b.now)
	assert.Equal(t, len(expired), 0, "expired")
	b.c.SetGate(nil, false, b.now)
	assert.Equal(t, len(b.takeAll()), 2, "deliveries after the end")
}

// Op5 (suspension): mail that became too old while it was suspended is tried once before it
// expires.
func TestOp5SuspendedMailIsTriedBeforeItExpires(t *testing.T) {
	b := newBench(t, Policy{Expiry: 24 * time.Hour, Expiry2: 36 * time.Hour})
	v := b.add("a")
	b.end(b.take(), HostDeferred, HostWait{})
	b.c.SetGate(&gate{hosts: map[string]*Suspension{"a": {}}}, false, b.now)
	b.now = b.now.Add(72 * time.Hour)
	for range 3 {
		expired, _ := b.c.Advance(b.now)
		assert.Equal(t, len(expired), 0, "expired while it was suspended")
		assert.Equal(t, b.take(), nil, "delivery while it was suspended")
	}
	b.c.SetGate(nil, false, b.now)
	expired, _ := b.c.Advance(b.now)
	assert.Equal(t, len(expired), 0, "expired at the end of the suspension")
	assert.Equal(t, b.take(), v, "delivery after the end")
	assert.Equal(t, b.end(v, HostDeferred, HostWait{}).Expired, true, "expired after an attempt")
}

// Op5 (suspension): the gate is asked once for a host, however much mail there is.
func TestOp5SuspensionCostsOneQuestionPerHost(t *testing.T) {
	b := newBench(t, Policy{})
	g := &gate{}
	b.c.SetGate(g, false, b.now)
	for range 100 {
		b.add("a")
	}
	assert.Equal(t, len(b.takeAll()), 100, "deliveries")
	assert.Equal(t, g.asked, 1, "questions")
}
