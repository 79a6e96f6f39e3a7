// Package metrics is what a daemon counts for Prometheus: counters, histograms and values
// that are asked for when somebody reads them, with label sets of bounded number, and
// their text on a Unix socket or a loopback port. docs/metrics.md has the names.
//
//	set := metrics.New("router", place)
//	set.Counter("zmailer_routed_total", "Messages routed.", "channel").With("smtp").Add(1)
//
// It is off unless METRICS names the program: then there is no Set, and every method of a
// nil *Set, *Counter or *Histogram does nothing. It owns nothing on disk but the socket
// while it serves; the numbers begin at 0 with each process.
//
// Diagnostics: it has no errors for its callers. What keeps Serve from answering is logged
// (metrics-not-served, metrics-trouble) and left: mail goes on.
package metrics

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// most is how many label sets a family has at most. What comes later is counted under
// Other: channels and clauses are the postmaster's, but a table may give any channel.
const most = 200

// Other is the value of all labels of what found no place.
const Other = "other"

// Set is the numbers of one process. nil: metrics are off.
type Set struct {
	program, address string

	mu       sync.Mutex // held while they are read, and while a family is added
	families []family
	healthy  func() bool // nil: always
}

// Health has /health, beside the metrics, answer 200 while healthy returns true, else 503: for load
// balancers. Call it before Serve.
func (s *Set) Health(healthy func() bool) {
	if s != nil {
		s.healthy = healthy
	}
}

// family is a metric with all its label sets.
type family interface {
	append(b []byte) []byte
}

// New makes the Set of a program that is to be read at an address: "unix", or host:port.
// Without an address there is none.
func New(program, address string) *Set {
	if address == "" {
		return nil
	}
	s := &Set{program: program, address: address}
	s.process()
	return s
}

// add takes a family in.
func (s *Set) add(f family) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.families = append(s.families, f)
}

// vector is a T for each label set.
type vector[T any] struct {
	name, help string
	labels     []string
	fresh      func() *T

	mu   sync.RWMutex
	by   map[string]*T // by its labels' values with zero bytes between
	sets []labelled[T] // in the order in which they came
}

type labelled[T any] struct {
	values []string
	of     *T
}

func newVector[T any](name, help string, labels []string, fresh func() *T) *vector[T] {
	return &vector[T]{name: name, help: help, labels: labels, fresh: fresh, by: map[string]*T{}}
}

// with is that of a label set.
func (v *vector[T]) with(values []string) *T {
	var room [128]byte
	key := room[:0]
	for _, x := range values {
		key = append(append(key, x...), 0)
	}
	v.mu.RLock()
	t := v.by[string(key)]
	v.mu.RUnlock()
	if t != nil {
		return t
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if t = v.by[string(key)]; t != nil {
		return t
	}
	own := make([]string, len(v.labels))
	for i := range own {
		if own[i] = Other; i < len(values) && len(v.sets) < most {
			own[i] = strings.Clone(values[i])
		}
	}
	if len(v.sets) >= most {
		key = []byte(strings.Repeat(Other+"\x00", len(own)))
		if t = v.by[string(key)]; t != nil {
			return t
		}
	}
	t = v.fresh()
	v.by[string(key)] = t
	v.sets = append(v.sets, labelled[T]{own, t})
	return t
}

// all returns the label sets that there are, in the order of their values.
func (v *vector[T]) all() []labelled[T] {
	v.mu.RLock()
	list := slices.Clone(v.sets)
	v.mu.RUnlock()
	slices.SortFunc(list, func(a, b labelled[T]) int { return slices.Compare(a.values, b.values) })
	return list
}

// Counter only grows.
type Counter struct{ n atomic.Uint64 }

// Add counts n more; below 1 nothing.
func (c *Counter) Add(n int) {
	if c != nil && n > 0 {
		c.n.Add(uint64(n))
	}
}

// Counters is a counter for each label set.
type Counters struct{ v *vector[Counter] }

// Counter makes a family of counters; its name ends in _total.
func (s *Set) Counter(name, help string, labels ...string) *Counters {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.families {
		if c, ok := f.(*Counters); ok && c.v.name == name {
			return c // what is made anew at a reload counts on
		}
	}
	c := &Counters{newVector(name, help, labels, func() *Counter { return &Counter{} })}
	s.families = append(s.families, c)
	return c
}

// With returns the counter of a label set.
func (c *Counters) With(values ...string) *Counter {
	if c == nil {
		return nil
	}
	return c.v.with(values)
}

// Histogram counts times by their length.
type Histogram struct {
	bounds  []float64
	buckets []atomic.Uint64 // one more than bounds
	sum     atomic.Int64    // nanoseconds
}

// Observe takes a time in; one below 0 is not known, and not counted.
func (h *Histogram) Observe(d time.Duration) {
	if h == nil || d < 0 {
		return
	}
	i, _ := slices.BinarySearch(h.bounds, d.Seconds())
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

// Bounds of histograms, in seconds: of what programs do, and of how long mail takes.
func Short() []float64 {
	return []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
}

// Long returns the bounds for the life of mail.
func Long() []float64 {
	return []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 43200, 86400, 259200, 432000}
}

// Histograms is a histogram for each label set.
type Histograms struct{ v *vector[Histogram] }

// Histogram makes a family of histograms; its name ends in _seconds.
func (s *Set) Histogram(name, help string, bounds []float64, labels ...string) *Histograms {
	if s == nil {
		return nil
	}
	h := &Histograms{newVector(name, help, labels, func() *Histogram {
		return &Histogram{bounds: bounds, buckets: make([]atomic.Uint64, len(bounds)+1)}
	})}
	s.add(h)
	return h
}

// With returns the histogram of a label set.
func (h *Histograms) With(values ...string) *Histogram {
	if h == nil {
		return nil
	}
	return h.v.with(values)
}

// Since returns the time since began; -1, which Observe does not count, without a histogram:
// then the clock is not read.
func (h *Histogram) Since(began time.Time) time.Duration {
	if h == nil || began.IsZero() {
		return -1
	}
	return time.Since(began)
}

// Family is a metric whose values are asked for when somebody reads them: a gauge, or a
// counter if its name ends in _total.
type Family struct {
	Name, Help string
	Labels     []string
}

// Put gives a value of a family; those of one label set are summed up.
type Put func(name string, value float64, labels ...string)

// asked are families that one look gives the values of.
type asked struct {
	keep     time.Duration
	at       time.Time
	look     func(put Put)
	families []*vector[float64]
}

// Ask makes families whose values look gives. It is called when the metrics are read, by one
// reader at a time, and not again before keep is over: until then readers get the last values.
func (s *Set) Ask(keep time.Duration, look func(put Put), families ...Family) {
	if s == nil {
		return
	}
	a := &asked{keep: keep, look: look}
	for _, f := range families {
		a.families = append(a.families, newVector(f.Name, f.Help, f.Labels, func() *float64 { return new(float64) }))
	}
	s.add(a)
}

// put is Put; a name that is none of its families means nothing.
func (a *asked) put(name string, value float64, labels ...string) {
	for _, v := range a.families {
		if v.name == name {
			*v.with(labels) += value
		}
	}
}
