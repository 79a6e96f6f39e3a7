package thread

import "fmt"

// A delivery to a host that does not answer holds its place until a time-out ends it, and
// nothing can end it earlier without doubt. So the places that such deliveries may take are
// bounded beforehand (docs/notes/silent-hosts.md). Each delivery is in a tier, by what is
// known of its host and by whose mail it is. The places that tier 1 and those below it hold
// together are bounded by Policy.MaxUnproven, the places from tier 2 on by three quarters
// of that, and so on: each tier keeps a share that those below it cannot take, and tier 0,
// mail for hosts that answer, keeps the rest of the ring.

// Origin is whose mail a message is.
type Origin uint8

// Origins of mail.
const (
	Own     Origin = iota // of our own users: submitted on this machine, or by a client that logged in
	Relayed               // of anybody else
	Report                // without a sender, as reports are: an unauthenticated client chooses the recipient

	origins = 3
)

// SenderKey joins a hash of a message's sender with its origin, for Message.Sender.
func SenderKey(hash uint32, o Origin) uint32 { return hash>>2 | uint32(o)<<30 }

// Origin is whose mail the message is.
func (m *Message) Origin() Origin { return min(Origin(m.Sender>>30), Report) }

// SameSender reports whether the senders of two messages are the same, if their hashes are,
// whoever submitted them.
func (m *Message) SameSender(as *Message) bool { return (m.Sender^as.Sender)<<2 == 0 }

// standing is the state of a thread's host.
type standing uint8

const (
	answering standing = iota // its last delivery got an answer
	unproven                  // nothing is known
	silent                    // it is in trouble

	standings = 3
)

// tiers is how many tiers there are.
const tiers = 5

// tierOf returns the tier of mail to a host.
func tierOf(s standing, o Origin) uint8 {
	return [standings][origins]uint8{
		answering: {Own: 0, Relayed: 0, Report: 2},
		unproven:  {Own: 1, Relayed: 2, Report: 3},
		silent:    {Own: 3, Relayed: 4, Report: 4},
	}[s][o]
}

// share describes the deliveries that a tier and those below it share.
func share(tier uint8) string {
	return [tiers]string{
		1: "reports and hosts that have not answered",
		2: "reports and mail of others to hosts that have not answered",
		3: "reports to hosts that have not answered and mail to hosts that failed",
		4: "reports and mail of others to hosts that failed",
	}[tier]
}

// atMost returns how many of the places for hosts that have not answered a tier and those
// below it may hold: all, 3/4, 1/2, 1/4, rounded up.
func atMost(tier uint8, unproven int) int {
	return (unproven*(tiers-int(tier)) + tiers - 2) / (tiers - 1)
}

// bound returns how many deliveries at once the host is given now: one that has not answered
// gets a quarter at most of the places that there are for such hosts.
func (t *Thread) bound() int {
	if n := t.Ring.Policy.MaxUnproven; n > 0 && t.standing != answering {
		return min(int(t.limit), max(1, n/4))
	}
	return int(t.limit)
}

// places counts deliveries under way, by tier: low[i] are those of tier i+1 and below.
type places struct{ low [tiers - 1]int32 }

func (p *places) count(tier uint8, n int) {
	for i := range tier {
		p.low[i] += int32(n)
	}
}

// closed returns the first tier that may not begin a delivery, tiers if all may: unproven is
// how many places there are for tier 1 and below, 0: no limit.
func (p *places) closed(unproven int) uint8 {
	if unproven <= 0 {
		return tiers
	}
	for i := range p.low {
		if tier := uint8(i + 1); int(p.low[i]) >= atMost(tier, unproven) {
			return tier
		}
	}
	return tiers
}

// closed returns the first tier of the ring that may not begin a delivery in a channel.
func (r *Ring) closed(ch *channel) uint8 {
	return min(r.places.closed(r.Policy.MaxUnproven), ch.places.closed(r.Policy.channelUnproven()))
}

// channelUnproven is MaxUnproven for all rings of a channel together.
func (p *Policy) channelUnproven() int {
	if p.MaxUnproven <= 0 {
		return 0
	}
	return (p.MaxChannel + 1) / 2
}

// stand follows what is known of the host now: what runs counts in other tiers.
func (c *schedule) stand(t *Thread) {
	now := t.learn()
	if now == t.standing {
		return
	}
	t.weigh(-1)
	t.standing = now
	t.weigh(1)
	if t.running > 0 {
		c.room(t.channel)
		c.Touch(t.Ring)
	}
}

// weigh counts what runs of the thread in its tiers, or no longer.
func (t *Thread) weigh(sign int) {
	for o, n := range t.taken {
		t.occupy(Origin(o), sign*int(n))
	}
}

func (t *Thread) occupy(o Origin, n int) {
	if tier := tierOf(t.standing, o); tier > 0 && n != 0 {
		t.Ring.places.count(tier, n)
		t.channel.places.count(tier, n)
	}
}

// tierNow returns the tier of the best that the thread has ready.
func (t *Thread) tierNow() uint8 {
	o := Report
	switch {
	case t.own > 0:
		o = Own
	case t.ready > int(t.reports):
		o = Relayed
	}
	return tierOf(t.standing, o)
}

// crowded reports whether so many deliveries of its tier are under way that the thread may
// not begin one.
func (t *Thread) crowded() bool { return t.tierNow() >= t.Ring.closed(t.channel) }

// crowd describes which deliveries a crowded thread waits for.
func (t *Thread) crowd() string {
	tier, unproven, taken := t.Ring.closed(t.channel), t.Ring.Policy.MaxUnproven, &t.Ring.places
	if tier < taken.closed(unproven) {
		unproven, taken = t.Ring.Policy.channelUnproven(), &t.channel.places
	}
	return fmt.Sprintf("%d of %d places for %s are taken", taken.low[tier-1], atMost(tier, unproven), share(tier))
}

// provenAtOnce is how many hosts that have answered are remembered while they have no mail,
// at least. To forget one makes its next message wait for another place at most.
const provenAtOnce = 10_000
