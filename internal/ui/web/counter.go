package web

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
)

// ageBounds part the queue by age; the last part has no end.
var ageBounds = [...]time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour}

// AgeParts is how many parts of age there are.
const AgeParts = len(ageBounds) + 1

// AgeName returns the label of a range of ages.
func AgeName(part int) string {
	return [AgeParts]string{"under 10 minutes", "under an hour", "under 6 hours", "under a day", "older"}[part]
}

const (
	// maxHosts is how many threads are counted one by one, shownHosts how many are shown.
	maxHosts   = 100000
	shownHosts = 15
	otherHosts = "all others"
)

// Survey is the whole queue, counted.
type Survey struct {
	Messages   int
	Recipients int // open ones
	States     []StateCount
	Hosts      []HostCount // the fullest first
	More       int         // hosts that are not in Hosts
	Ages       [AgeParts]int
	Oldest     *view.Message // its ID and age
	Problem    string
	Status     *Status
}

// StateCount is how many recipients, or messages that are not routed, are in a state.
type StateCount struct {
	Name string
	N    int
}

// HostCount is what waits for one thread, by age.
type HostCount struct {
	Name    string
	Channel string // "" if it is not routed
	Host    string
	N       int
	Ages    [AgeParts]int
}

// Counter counts a queue: Add each message, then Survey.
type Counter struct {
	now    time.Time
	v      Survey
	states map[string]int
	hosts  map[string]*HostCount
}

// NewCounter begins to count; ages are those of this time.
func NewCounter(now time.Time) *Counter {
	return &Counter{now: now, states: map[string]int{}, hosts: map[string]*HostCount{}}
}

// Add counts a message.
func (c *Counter) Add(m *view.Message) {
	v := &c.v
	v.Messages++
	if v.Oldest == nil || m.Since.Before(v.Oldest.Since) {
		v.Oldest = &view.Message{ID: m.ID, Since: m.Since, AgeSeconds: m.AgeSeconds}
	}
	part := agePart(c.now.Sub(m.Since))
	if len(m.Recipients) == 0 {
		c.states[m.State]++
	}
	for i := range m.Recipients {
		r := &m.Recipients[i]
		if r.Channel == "" {
			c.states[m.State]++
		} else {
			c.states[r.State]++
		}
		if !r.Open() {
			continue
		}
		v.Recipients++
		v.Ages[part]++
		h := c.host(m, r)
		h.N++
		h.Ages[part]++
	}
}

func agePart(age time.Duration) int {
	i := 0
	for i < len(ageBounds) && age >= ageBounds[i] {
		i++
	}
	return i
}

func (c *Counter) host(m *view.Message, r *view.Recipient) *HostCount {
	name, channel, host := r.Channel+"/"+r.Host, r.Channel, r.Host
	if channel == "" {
		name = "(" + m.State + ")"
	}
	h := c.hosts[name]
	if h == nil && len(c.hosts) >= maxHosts {
		name, channel, host = otherHosts, "", ""
		h = c.hosts[name]
	}
	if h == nil {
		h = &HostCount{Name: strings.Clone(name), Channel: strings.Clone(channel), Host: strings.Clone(host)}
		c.hosts[h.Name] = h
	}
	return h
}

// Survey returns the counts.
func (c *Counter) Survey() *Survey {
	v := &c.v
	for name, n := range c.states {
		v.States = append(v.States, StateCount{name, n})
	}
	slices.SortFunc(v.States, func(a, b StateCount) int { return cmp.Or(b.N-a.N, strings.Compare(a.Name, b.Name)) })
	for _, h := range c.hosts {
		v.Hosts = append(v.Hosts, *h)
	}
	slices.SortFunc(v.Hosts, func(a, b HostCount) int { return cmp.Or(b.N-a.N, strings.Compare(a.Name, b.Name)) })
	if n := len(v.Hosts) - shownHosts; n > 0 {
		v.Hosts, v.More = slices.Clone(v.Hosts[:shownHosts]), n
	}
	return v
}
