package thread

import (
	"math"
	"strings"
	"time"
)

// Thread is the vertices of one channel and host.
type Thread struct {
	Ring  *Ring
	Host  string // as it was first spelt
	Serve any    // free for the caller: who served it last

	waitList
	hostState
	hostLimit
	listing

	channel  *channel
	running  int
	taken    [origins]int32 // of running, by origin
	standing standing       // by which taken is counted
	attempts uint64         // begun

	wake   int64 // key in the agenda
	slot   int32 // place in the agenda, -1: not there
	again  int64 // when one that was put off is tried again
	tokens bucket
	slow   int64 // nothing begins before, milliseconds; see Throttle

	pausing, paused bool // see Policy.QueueOnly

	suspended *Suspension // nothing begins; nil: it may
}

// hostState is what is known of a thread's host.
type hostState struct {
	Trouble string // what the host's last failure said

	next     int64  // the host is in trouble until then, milliseconds; 0: it is not
	tries    uint16 // failures in a row
	step     uint8
	asked    bool    // the host has named the time itself
	answered bool    // the last delivery got an answer
	epoch    uint32  // counts changes between trouble and none
	fails    uint16  // counts failures of the host
	probe    *Vertex // runs while the host is in trouble
}

// Tries returns how often in a row the host failed, 0 if it is not in trouble.
func (h *hostState) Tries() int { return int(h.tries) }

// learn returns the state of the host.
func (h *hostState) learn() standing {
	switch {
	case h.next != 0:
		return silent
	case h.answered:
		return answering
	}
	return unproven
}

// resume takes up a wait that a former process decided on; waits is how many there are.
func (h *hostState) resume(next int64, before History, waits int) {
	h.next = next
	h.tries = uint16(min(before.HostTries, math.MaxUint16))
	h.step = uint8(min(before.HostTries, waits))
	h.Trouble = before.HostText
	h.epoch++
}

// follow takes over the trouble of another thread of the host.
func (h *hostState) follow(o *hostState) {
	h.next, h.tries, h.step, h.Trouble = o.next, o.tries, o.step, o.Trouble
	h.answered = false
	h.epoch++
}

// recover ends the trouble.
func (h *hostState) recover() {
	h.next, h.tries, h.step, h.Trouble = 0, 0, 0, ""
	h.probe = nil
	h.epoch++
}

// Channel returns the thread's channel.
func (t *Thread) Channel() string { return t.channel.name }

// Until is when a host in trouble is probed next, zero if it is not in trouble.
func (t *Thread) Until() time.Time {
	if t.next == 0 {
		return time.Time{}
	}
	return t.Ring.core.time(t.next)
}

type threadKey struct{ channel, host string }

// keyOf returns the key of a thread; hosts are one whatever their case (RFC 1035 §2.3.3).
func keyOf(channel, host string) threadKey { return threadKey{channel, strings.ToLower(host)} }

func (c *Core) thread(r *Ring, name, host string) *Thread {
	t := r.threads[keyOf(name, host)]
	if t != nil {
		return t
	}
	// The caller's strings may be parts of something large.
	name, host = strings.Clone(name), strings.Clone(host)
	ch := c.channels[name]
	if ch == nil {
		ch = &channel{name: name}
		c.channels[name] = ch
	}
	ch.threads++
	t = &Thread{Ring: r, Host: host, channel: ch, slot: -1}
	t.pausing, t.paused = r.Policy.QueueOnly, r.Policy.QueueOnly
	if c.gate != nil {
		t.suspended = c.gate.Thread(name, host)
	}
	t.answered = c.proven.Has(keyOf(name, host))
	t.standing = t.learn()
	t.reset(r.Policy.start())
	t.follow()
	r.own(t)
	r.threads[keyOf(name, host)] = t
	return t
}

// take puts a vertex on the list of the thread.
func (t *Thread) take(v *Vertex) {
	v.Thread, v.fails = t, t.fails
	t.add(v)
}

// retire forgets a thread without vertices, when its rates no longer limit anything.
func (c *Core) retire(t *Thread) {
	if len(t.list) > 0 {
		return
	}
	if t.free() > c.now {
		t.Ring.unlist(t)
		c.alarm(t, c.now)
		return
	}
	c.threads.remove(t)
	t.Ring.unlist(t)
	key := keyOf(t.channel.name, t.Host)
	delete(t.Ring.threads, key)
	if t.answered {
		c.proven.Add(key)
	}
	t.channel.threads--
	if t.channel.threads == 0 {
		delete(c.channels, t.channel.name)
	}
	c.Touch(t.Ring)
}

// mayRun reports whether a vertex of the thread may be started, but for the limits of
// ring and channel.
func (t *Thread) mayRun(ms int64) bool {
	if t.ready == 0 || t.paused || t.suspended != nil || t.running >= t.bound() || t.free() > ms {
		return false
	}
	return t.next == 0 || t.probe == nil && t.next <= ms
}
