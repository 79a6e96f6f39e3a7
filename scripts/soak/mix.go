package main

import (
	"fmt"
	"strings"
)

// Domains of the soak. hostname is the system's own.
const (
	hostname   = "mta.example"
	backDomain = "back.example" // where reports go
	users      = 6
	boxes      = 3
	spread     = 64 // numbers of messages are this far apart for one actor
)

// relayDomains have servers that take all recipients but perm's in the end.
func relayDomains() []string { return []string{"s0.example", "s1.example"} }

// mix composes the messages of one submitter: the same for the same seed.
type mix struct {
	*dice
	seed    uint64
	mailDir string
	seq     int // of the next message
	large   bool
	foreign bool // recipients that anyone may send to
}

// newMix makes the messages of submitter number n, from 1.
func newMix(d *dice, seed uint64, mailDir string, n int, large bool) *mix {
	return &mix{dice: d, seed: seed, mailDir: mailDir, seq: spread + n, large: large}
}

// next composes a message.
func (x *mix) next() (*message, error) {
	m := &message{content: content{seed: x.seed, seq: x.seq, size: x.size()}, places: map[string]*place{}}
	x.seq += spread
	m.from = sender(m.seq)
	m.notify = x.pick("", "", "", "", "", "FAILURE", "FAILURE,DELAY", "SUCCESS,FAILURE", "SUCCESS", "NEVER")
	if x.chance(10) {
		m.from = ""
	}
	if x.large {
		x.relay(m, 1+x.IntN(2), 0)
	} else if x.foreign {
		x.toOurs(m)
	} else {
		x.address(m)
	}
	if strings.Contains(m.notify, "SUCCESS") && m.from == "" {
		m.notify = ""
	}
	var err error
	m.sum, err = m.content.sum()
	return m, err
}

func (x *mix) pick(words ...string) string { return words[x.IntN(len(words))] }

// size is mostly small. Bytes.
func (x *mix) size() int64 {
	if x.large {
		if x.seq < 2*spread {
			return 50e6 // the first, so that each run has one
		}
		return 5e6 + x.Int64N(45e6)
	}
	switch n := x.IntN(100); {
	case n < 4:
		return 0
	case n < 60:
		return x.Int64N(4 << 10)
	case n < 90:
		return x.Int64N(64 << 10)
	case n < 98:
		return x.Int64N(512 << 10)
	}
	return x.Int64N(3 << 20)
}

// address chooses recipients.
func (x *mix) address(m *message) {
	switch n := x.IntN(100); {
	case n < 38:
		x.relay(m, 1+x.IntN(3), 0)
		m.bare = len(m.rcpts) == 1 && x.chance(5)
	case n < 46:
		x.relay(m, 10+x.IntN(70), x.IntN(4))
	case n < 58:
		x.users(m, 1+x.IntN(3))
	case n < 64:
		x.box(m)
	case n < 72:
		x.alias(m)
	case n < 80:
		x.relay(m, x.IntN(2), 1+x.IntN(2))
	case n < 85:
		x.own(m, "dot", "d0.example", fails)
	case n < 90:
		x.own(m, "exp", "e0.example", expires)
		m.from, m.notify = sender(m.seq), ""
	case n < 96:
		x.own(m, "none", hostname, fails)
	default:
		x.relay(m, 2, 1)
		x.users(m, 2)
		x.own(m, "none", hostname, fails)
	}
}

// toOurs chooses recipients in our domains and in those that we relay for.
func (x *mix) toOurs(m *message) {
	switch n := x.IntN(100); {
	case n < 40:
		x.users(m, 1+x.IntN(3))
	case n < 50:
		x.box(m)
	case n < 60:
		x.alias(m)
	case n < 90:
		x.relay(m, 1+x.IntN(3), 0)
	default:
		x.relay(m, 1, 1)
	}
}

// add is a recipient whose mail comes to a place.
func (m *message) add(rcpt string, f fate, places ...string) {
	m.rcpts = append(m.rcpts, rcpt)
	for _, p := range places {
		m.places[p] = &place{fate: f}
	}
}

// own is a recipient whose address is this message's alone. The word is for its server
// what to do.
func (x *mix) own(m *message, word, domain string, f fate) {
	a := fmt.Sprintf("%s.%d.%d@%s", word, m.seq, len(m.rcpts), domain)
	m.add(a, f, a)
}

// relay is recipients of other hosts: so many that are taken, some of them after a
// while, and so many that are refused.
func (x *mix) relay(m *message, good, bad int) {
	for range good {
		x.own(m, x.pick("ok", "ok", "late"), x.pick(relayDomains()...), delivers)
	}
	for range bad {
		x.own(m, "perm", x.pick(relayDomains()...), fails)
	}
}

// users are local recipients. A mailbox is many messages': the sender's address shows
// the message of a line of the log, so it has one.
func (x *mix) users(m *message, n int) {
	m.from = sender(m.seq)
	for _, u := range x.Perm(users)[:n] {
		a := fmt.Sprintf("u%d@%s", u, hostname)
		m.add(a, delivers, a)
	}
}

// box is an alias that is an mbox file.
func (x *mix) box(m *message) {
	m.from, m.size = sender(m.seq), m.size%(64<<10)
	m.notify = withoutSuccess(m.notify)
	n := x.IntN(boxes)
	m.add(fmt.Sprintf("box%d@%s", n, hostname), delivers, x.boxPath(n))
}

func (x *mix) boxPath(n int) string { return fmt.Sprintf("%s/box%d.mbox", x.mailDir, n) }

// alias is one recipient that becomes three: see aliases in system.go.
func (x *mix) alias(m *message) {
	m.from = sender(m.seq)
	m.notify = withoutSuccess(m.notify)
	m.add("tri@"+hostname, delivers, "u0@"+hostname, "u1@"+hostname, triRemote)
}

// triRemote is the third of the alias's values.
const triRemote = "tri@s0.example"

// withoutSuccess leaves out reports of success behind an alias, which may be made in more
// than one way (RFC 3461 §5.2.7).
func withoutSuccess(notify string) string {
	if strings.Contains(notify, "SUCCESS") {
		return ""
	}
	return notify
}
