package thread

import (
	"math"
	"slices"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/workspec"
)

// Round is what an attempt of a vertex came to.
type Round struct {
	Left    int       // recipients that are to be tried again
	Host    bool      // because of the host: the thread waits
	Attempt int       // number of this attempt, from 1; 0 if nothing is left
	Next    time.Time // of the next one
	Expired bool      // there will be none: the message is too old
}

// HostWait is an agent's word about the host.
type HostWait struct {
	Until time.Time // not before; zero: by the schedule
	Text  string
	Busy  bool // it lives and has too many connections (421): while others go on that is no trouble
}

// End ends an attempt whose recipients all have a result: the final ones leave the
// vertex, a host in trouble makes its thread wait, a host that gave any other answer
// clears it. If recipients are left, the vertex is parked until the caller has
// recorded Attempt and Next and calls Wait, or Forget if Expired.
func (c *Core) End(v *Vertex, w HostWait, now time.Time) Round {
	t := v.Thread
	sum := v.sum()
	started := v.mark
	c.Stop(v, now)
	bad := sum == HostDeferred && !(w.Busy && t.running > 0)
	c.learnLimit(t, sum, started == t.epoch)
	switch {
	case bad:
		c.trouble(t, started, w, now)
	case sum == HostDeferred:
		c.Throttle(t, w.Until, now)
	default:
		t.answered = true
		c.clear(t, now)
		c.update(t, c.ms(now))
	}
	if !c.Keep(v, func(r *Recipient) bool { return !r.Result.Final() }) {
		return Round{}
	}
	round := Round{Left: len(v.Recipients()), Host: bad, Next: c.Defer(v, now)}
	round.Attempt = int(v.Attempts)
	if bad {
		// The thread waits; when it may go on the vertex may, unless the host answers
		// others meanwhile.
		v.set(blamed, true)
		round.Next = t.Until()
	}
	round.Expired = v.isExpired(c.ms(now))
	return round
}

// sum returns what the results of a vertex say about the host: HostDeferred if it is in
// trouble, Deferred if it put off all, Delivered if it did something.
func (v *Vertex) sum() Result {
	sum := Deferred
	for _, r := range v.Recipients() {
		switch {
		case r.Result == HostDeferred:
			return HostDeferred
		case r.Result.Final():
			sum = Delivered
		}
	}
	return sum
}

// learnLimit adapts the limit to the result of an attempt. fresh: it began after
// the last change of the limit.
func (c *schedule) learnLimit(t *Thread, sum Result, fresh bool) {
	switch {
	case sum == Delivered:
		t.grow(t.Ring.Policy.most())
		return
	case !fresh || t.next != 0 || sum == Deferred && !t.putOff():
		return
	}
	t.halve()
	t.epoch++
}

// trouble makes the thread wait on its own schedule. Attempts that had started
// before the trouble was known say nothing new.
func (c *schedule) trouble(t *Thread, started uint32, w HostWait, now time.Time) {
	ms := c.ms(now)
	t.fails++
	t.Trouble = w.Text
	if t.answered {
		t.answered = false
		c.proven.Drop(keyOf(t.channel.name, t.Host))
	}
	known := t.next != 0 && started != t.epoch
	// A time that is over would make the host be tried without a pause (M34).
	asked := c.notFar(w.Until, ms)
	if w.Until.IsZero() || asked < ms+time.Second.Milliseconds() {
		asked = 0
	}
	switch {
	case known && asked > t.next:
		t.next, t.asked = asked, true
	case known:
	default:
		if t.tries < math.MaxUint16 {
			t.tries++
		}
		t.epoch++
		t.next, t.asked = asked, asked != 0
		if asked == 0 {
			t.next = c.ms(now.Add(c.delay(&t.Ring.Policy, &t.step)))
		}
	}
	c.update(t, ms)
}

// clear ends the trouble: the host has answered.
func (c *schedule) clear(t *Thread, now time.Time) {
	if t.next == 0 {
		return
	}
	if t.tries > 1 {
		t.reset(t.Ring.Policy.start())
	}
	t.recover()
	c.update(t, c.ms(now))
}

// Relent forgets the trouble of a thread: somebody wants its host tried now.
func (c *Core) Relent(t *Thread, now time.Time) {
	t.slow = 0
	c.clear(t, now)
	c.update(t, c.ms(now))
}

// resumeTrouble takes up the wait that a former process decided on (A5).
func (c *schedule) resumeTrouble(t *Thread, h History, ms int64) {
	next := c.notFar(h.Next, ms)
	if next <= t.next {
		return
	}
	t.resume(next, h, len(t.Ring.Policy.Retries))
	c.update(t, ms)
}

// delay returns the wait after a failed attempt: the next of Policy.Retries, in
// intervals, then over again from a random place, plus some of Policy.Jitter so that
// what failed together does not come back together (M26).
func (c *schedule) delay(p *Policy, step *uint8) time.Duration {
	if int(*step) >= len(p.Retries) {
		*step = uint8(c.rand.IntN(len(p.Retries)))
	}
	d := p.Interval * time.Duration(p.Retries[*step])
	*step++
	if most := int64(d) / 100 * int64(p.Jitter); most > 0 {
		d += time.Duration(c.rand.Int64N(most))
	}
	return max(d, time.Millisecond)
}

// longest returns the longest wait after a failed attempt, in milliseconds. A time that a
// former policy decided on is never farther away.
func (p *Policy) longest() int64 {
	d := p.Interval * time.Duration(slices.Max(p.Retries))
	return (d + d/100*time.Duration(p.Jitter)).Milliseconds()
}

func (v *Vertex) age(p time.Duration) int64 {
	return v.Message.accepted() + v.away() + p.Milliseconds()
}

// attempted reports whether an attempt of the vertex, or of its host since the vertex
// came, has failed.
func (v *Vertex) attempted() bool { return v.Attempts > 0 || v.Thread.fails != v.fails }

// due reports whether expiry counts: an attempt has failed, or none is to be made.
func (v *Vertex) due() bool { return v.attempted() || v.Thread.paused }

// isExpired reports whether attempts end now (M27): expiry wants one attempt, expiry2
// does not.
func (v *Vertex) isExpired(ms int64) bool {
	if v.suspended() || v.isSpared() {
		return false
	}
	p := &v.Thread.Ring.Policy
	if p.Expiry2 > 0 && ms >= v.age(p.Expiry2) {
		return true
	}
	return p.Expiry > 0 && ms >= v.age(p.Expiry) && v.due()
}

// expires is when isExpired is to be asked next, MaxInt64 for never.
func (v *Vertex) expires(ms int64) int64 {
	p := &v.Thread.Ring.Policy
	at := int64(math.MaxInt64)
	if v.suspended() {
		return at
	}
	if p.Expiry2 > 0 {
		at = v.age(p.Expiry2)
	}
	if p.Expiry > 0 {
		e := v.age(p.Expiry)
		if e <= ms && !v.due() {
			// Too old but never tried: ask again when its turn may have come.
			e = max(ms, v.Thread.next) + p.Interval.Milliseconds()
		}
		at = min(at, e)
	}
	if at <= ms && v.isSpared() {
		at = max(ms, v.Thread.next) + p.Interval.Milliseconds()
	}
	return at
}

// Defer counts a failed attempt of a parked vertex and gives the time of its next
// one. Wait lets it wait for that.
func (c *Core) Defer(v *Vertex, now time.Time) time.Time {
	if v.state != parked {
		panic("thread: Defer for a vertex that is not parked")
	}
	if v.Attempts < math.MaxUint16 {
		v.Attempts++
	}
	v.Lost = 0
	v.next = c.ms(now.Add(c.delay(&v.Thread.Ring.Policy, &v.step)))
	v.Thread.again = v.next
	return c.time(v.next)
}

// Outcome is what one attempt came to for one recipient, as far as the scheduler
// has to write it down.
type Outcome struct {
	Offset  int64
	Address string // "": not checked
	Result  Result
	Notary  workspec.Notary
	Text    string // the reply
	// Of a deferral:
	Attempt   int       // number of this attempt, from 1
	Next      time.Time // of the next one
	HostTries int       // failures of the host in a row, if the whole thread waits
}

// Code returns the outcome's status, "X.0.0" of its kind if the agent gave none.
func (o *Outcome) Code() status.Code {
	word, _, _ := strings.Cut(o.Notary.Status, " ")
	if c, ok := status.Parse(word); ok {
		return c
	}
	switch o.Result {
	case Delivered:
		return status.OK
	case Failed:
		return status.Code{Class: 5}
	}
	return status.Code{Class: 4}
}

// LastLine returns the last line of a dialogue that is not empty, without the marks of the
// two sides.
func LastLine(text string) string {
	end := len(text)
	for end > 0 {
		start := end
		for start > 0 && text[start-1] != '\n' {
			start--
		}
		line := trimDialogue(text[start:end])
		if line != "" {
			return line
		}
		end = start - 1
	}
	return ""
}

func trimDialogue(line string) string {
	line = strings.TrimLeft(line, " \t")
	for _, mark := range []string{"->> ", "<<- "} {
		line = strings.TrimPrefix(line, mark)
	}
	return strings.TrimRight(line, " \t")
}
