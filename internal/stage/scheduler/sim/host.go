package sim

import (
	"math"
	"strings"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// Host is a model of a destination. Zero values: it takes everything at once.
type Host struct {
	Name    string // channel/host
	Latency time.Duration
	Spread  float64       // how much the latency varies: 0.5 is from half of it to one and a half
	PerRcpt time.Duration // for each recipient besides
	Connect time.Duration // of making a connection
	Timeout time.Duration // how long a connection attempt takes when the host is down
	// Capacity is how many connections it takes at once; it answers 421 to others. 0: any.
	Capacity int
	// Rate is how many transactions it takes in Per; it puts off others. 0: any.
	Rate int
	Per  time.Duration
	Down []Outage
	// Decide, if set, decides about a delivery that the host answers.
	Decide func(l *Delivery, now time.Time) Verdict

	Connects  int // connections that were tried
	Attempts  int // transactions, those without a connection included
	Delivered int
	Peak      int       // transactions at once
	Last      time.Time // of the last delivery

	active     int
	window     time.Time
	inside     int
	deliveries int
}

// Outage is a time in which a host cannot be reached.
type Outage struct{ From, To time.Duration }

// Forever is the end of an outage that has none.
const Forever = time.Duration(math.MaxInt64)

// Verdict is the answer of a host to a delivery.
type Verdict struct {
	Result thread.Result // None: Delivered
	Until  time.Time     // of HostDeferred: not before
	Busy   bool          // of HostDeferred: it lives and has too many connections
	Took   time.Duration // 0: as always
}

// Host finds a host by its channel/host or makes it.
func (w *World) Host(name string) *Host {
	key := strings.ToLower(name)
	h := w.hosts[key]
	if h == nil {
		h = &Host{Name: name}
		w.hosts[key] = h
	}
	return h
}

// Hosts calls fn for each host, in no order.
func (w *World) Hosts(fn func(*Host)) {
	for _, h := range w.hosts {
		fn(h)
	}
}

// down reports whether the host cannot be reached at a time since the beginning.
func (h *Host) down(at time.Duration) bool {
	for _, o := range h.Down {
		if o.From <= at && at < o.To {
			return true
		}
	}
	return false
}

// throttles counts a transaction and reports whether it is one too many.
func (h *Host) throttles(now time.Time) bool {
	if h.Rate == 0 {
		return false
	}
	if now.Sub(h.window) >= h.Per {
		h.window, h.inside = now, 0
	}
	h.inside++
	return h.inside > h.Rate
}

// answer returns the host's answer to an attempt that begins now. connected: over a
// connection that was kept.
func (w *World) answer(h *Host, l *Delivery, connected bool) Verdict {
	h.Attempts++
	if !connected {
		h.Connects++
	}
	h.active++
	h.Peak = max(h.Peak, h.active)
	took := h.Latency + time.Duration(l.Rcpts-1)*h.PerRcpt
	if h.Spread > 0 {
		took += time.Duration(float64(took) * h.Spread * (2*w.rand.Float64() - 1))
	}
	if !connected {
		took += h.Connect
	}
	switch {
	case h.down(w.Since()):
		return Verdict{Result: thread.HostDeferred, Took: h.Timeout}
	case h.Capacity > 0 && h.active > h.Capacity, h.throttles(w.now):
		return Verdict{Result: thread.HostDeferred, Busy: true, Took: h.Connect + h.Latency/10}
	}
	v := Verdict{Result: thread.Delivered}
	if h.Decide != nil {
		v = h.Decide(l, w.now)
	}
	if v.Result == thread.None {
		v.Result = thread.Delivered
	}
	if v.Took == 0 {
		v.Took = took
	}
	return v
}
