package thread

// How many deliveries at once a host is given: a start, then more while it serves them,
// half as many when it refuses connections, answers that it has too many, or puts off one
// message after the other; never less than one (docs/notes/concurrency.md).

// hostLimit is how many deliveries at once a host is given.
type hostLimit struct {
	limit   int32 // deliveries at once
	gain    int32 // served since the limit grew
	ceiling int32 // the limit when it was halved last, 0: it was not
	put     int32 // put off in a row
	peak    int32 // most that ran at once since the limit was halved
	met     bool  // the limit was too high once
}

// usualStart is where the limit starts if the policy does not say.
const usualStart = 5

// mostEver bounds a limit that the policy does not bound.
const mostEver = 10_000

// start returns the limit for a host of which nothing is known.
func (p *Policy) start() int32 {
	n := p.Start
	if n <= 0 {
		n = usualStart
	}
	return int32(min(n, p.most()))
}

// most returns what a limit does not exceed.
func (p *Policy) most() int {
	if p.MaxThread > 0 {
		return p.MaxThread
	}
	return mostEver
}

// Limit returns how many deliveries at once the host is given now.
func (t *Thread) Limit() int { return t.bound() }

// grow takes note that the host has served a delivery: one more for each, until the
// limit was too high once, then one more when as many were served as run at once.
// It does not exceed twice of what ran at once: the rest shows nothing about what the host
// bears. most bounds it.
func (t *hostLimit) grow(most int) {
	t.put = 0
	if t.limit >= 2*t.peak || int(t.limit) >= most {
		return
	}
	if t.met {
		need := t.limit
		if t.limit+1 == t.ceiling {
			need *= patience
		}
		if t.gain++; t.gain < need {
			return
		}
	}
	t.gain = 0
	t.limit++
}

// patience is how many times more deliveries it takes to go again to where the host had
// too much than to any other limit.
const patience = 20

// halve takes note that the host has too much.
func (t *hostLimit) halve() {
	t.ceiling = t.limit
	t.limit = max(t.limit/2, 1)
	t.met, t.gain, t.put, t.peak = true, 0, 0, 0
}

// putOff takes note that the host put a message off, and reports whether that were too many
// without another answer between them: twice as many as run at once, ten at least.
func (t *hostLimit) putOff() bool {
	t.put++
	return t.put >= max(10, 2*t.limit)
}

// reset has the limit be as for a host of which nothing is known.
func (t *hostLimit) reset(start int32) { *t = hostLimit{limit: start} }
