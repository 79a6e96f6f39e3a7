package thread

import (
	"strings"
	"time"
)

// Thread is the vertices of one channel and host.
type Thread struct {
	Ring    *Ring
	Host    string // as it was first spelt
	Trouble string // what the host's last failure said
	Serve   any    // free for the caller: who served it last

	channel  *channel
	list     []*Vertex // all; those that may be delivered now are in front
	ready    int       // so many
	orders   [2]order  // of those that are ready: never tried, tried
	turn     uint8     // which of them was served last
	small    int       // of those that are ready, those of messages to few
	own      int32     // of those that are ready, those of own users
	reports  int32     // and reports
	mails    uint8     // others that were served since the last report
	reported *[2]order // as orders, of reports; nil: there were none
	rcpts    int       // of all
	oldest   *Vertex   // nil if that is not known
	running  int

	next  int64  // the host is in trouble until then, milliseconds; 0: it is not
	wake  int64  // key in the agenda
	slot  int32  // place in the agenda, -1: not there
	tries uint16 // failures in a row
	step  uint8
	epoch uint32  // counts changes between trouble and none
	fails uint16  // counts failures of the host
	asked bool    // the host has named the time itself
	probe *Vertex // runs while the host is in trouble
	again int64   // when one that was put off is tried again

	limit    int32 // deliveries at once
	gain     int32 // served since the limit grew
	ceiling  int32 // the limit when it was halved last, 0: it was not
	put      int32 // put off in a row
	peak     int32 // most that ran at once since the limit was halved
	met      bool  // the limit was too high once
	tokens   bucket
	slow     int64  // nothing begins before, milliseconds; see Throttle
	attempts uint64 // begun

	pausing, paused bool // see Policy.QueueOnly

	answered bool           // the last delivery got an answer
	standing standing       // by which taken is counted
	taken    [origins]int32 // of running, by origin

	listed             bool
	class, level, tier uint8  // where it is listed
	since              uint64 // and before whom
	prev, succ         *Thread
}

// Channel is the thread's channel.
func (t *Thread) Channel() string { return t.channel.name }

// Tries is how often in a row the host failed, 0 if it is not in trouble.
func (t *Thread) Tries() int { return int(t.tries) }

// Until is when a host in trouble is probed next, zero if it is not in trouble.
func (t *Thread) Until() time.Time {
	if t.next == 0 {
		return time.Time{}
	}
	return t.Ring.core.time(t.next)
}

type threadKey struct{ channel, host string }

// keyOf is the key of a thread; hosts are one whatever their case (RFC 1035 §2.3.3).
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
	t.answered = c.proven.Has(keyOf(name, host))
	t.standing = t.learn()
	t.begin()
	t.follow()
	r.own(t)
	r.threads[keyOf(name, host)] = t
	return t
}

// add puts a vertex on the list of the thread.
func (t *Thread) add(v *Vertex) {
	v.Thread, v.place, v.fails = t, int32(len(t.list)), t.fails
	t.list = append(t.list, v)
	t.rcpts += len(v.Recipients())
	if len(t.list) == 1 || t.oldest != nil && v.Message.when() < t.oldest.Message.when() {
		t.oldest = v
	}
}

// remove takes a vertex that is not ready off the list.
func (t *Thread) remove(v *Vertex) {
	last := len(t.list) - 1
	t.swap(int(v.place), last)
	t.list[last] = nil
	t.list = t.list[:last]
	t.rcpts -= len(v.Recipients())
	if t.oldest == v {
		t.oldest = nil
	}
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
	if t.ready == 0 || t.paused || t.running >= t.bound() || t.free() > ms {
		return false
	}
	return t.next == 0 || t.probe == nil && t.next <= ms
}
