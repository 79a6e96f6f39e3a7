package web

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/internal/selector"
)

// ageBounds part the queue by age; the last part has no end.
var ageBounds = [...]time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour}

const ageParts = len(ageBounds) + 1

// ageNames are the parts for people.
var ageNames = [ageParts]string{"under 10 minutes", "under an hour", "under 6 hours", "under a day", "older"}

const (
	// maxHosts bounds how many threads are counted one by one, shownHosts how many are shown.
	maxHosts   = 100000
	shownHosts = 15
	otherHosts = "all others"
	// surveyLeast is how long a survey is good for, at least; one that took long is good
	// for surveyTimes as long.
	surveyLeast = 2 * time.Second
	surveyTimes = 5
)

// survey is the whole queue, counted.
type survey struct {
	at         time.Time
	Messages   int
	Recipients int // open ones
	States     []stateCount
	Hosts      []hostCount // the fullest first
	More       int         // hosts that are not in Hosts
	Ages       [ageParts]int
	Oldest     *Message
	Problem    string
	Status     *Status
}

type stateCount struct {
	Name string
	N    int
}

// hostCount is what waits for one thread, by age.
type hostCount struct {
	Name    string
	Channel string // "" of what is not routed
	Host    string
	N       int
	Ages    [ageParts]int
}

// surveyor makes surveys, one at a time, and gives the last one while it is fresh.
type surveyor struct {
	source Source
	now    func() time.Time
	mu     sync.Mutex
	last   *survey
	good   time.Time // until then
}

func (s *surveyor) get(ctx context.Context) (*survey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := s.now()
	if s.last != nil && began.Before(s.good) {
		return s.last, nil
	}
	v, err := take(ctx, s.source, began)
	if err != nil {
		return nil, err
	}
	end := s.now()
	s.last, s.good = v, end.Add(max(surveyLeast, surveyTimes*end.Sub(began)))
	return v, nil
}

// fresh has the next survey made anew: something was changed.
func (s *surveyor) fresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = nil
}

// take counts the queue.
func take(ctx context.Context, source Source, now time.Time) (*survey, error) {
	v := &survey{at: now}
	states, hosts := map[string]int{}, map[string]*hostCount{}
	_, err := source.Walk(ctx, selector.Selector{}, func(m *Message) error {
		v.Messages++
		if v.Oldest == nil || m.Since.Before(v.Oldest.Since) {
			v.Oldest = m
		}
		part := agePart(now.Sub(m.Since))
		if len(m.Recipients) == 0 {
			states[m.State]++
		}
		for i := range m.Recipients {
			r := &m.Recipients[i]
			if r.Channel == "" {
				states[m.State]++
			} else {
				states[r.State]++
			}
			if !r.Open {
				continue
			}
			v.Recipients++
			v.Ages[part]++
			h := hostOf(hosts, m, r)
			h.N++
			h.Ages[part]++
		}
		return nil
	})
	if err != nil && (ctx.Err() != nil || v.Messages == 0) {
		return nil, err
	}
	if err != nil {
		v.Problem = err.Error()
	}
	v.settle(states, hosts)
	v.Status, err = source.Status(ctx)
	return v, err
}

func agePart(age time.Duration) int {
	i := 0
	for i < len(ageBounds) && age >= ageBounds[i] {
		i++
	}
	return i
}

// hostOf is where a recipient is counted.
func hostOf(hosts map[string]*hostCount, m *Message, r *Recipient) *hostCount {
	name, channel, host := r.Thread(), r.Channel, r.Host
	if name == "" {
		name = "(" + m.State + ")"
	}
	h := hosts[name]
	if h == nil && len(hosts) >= maxHosts {
		name, channel, host = otherHosts, "", ""
		h = hosts[name]
	}
	if h == nil {
		h = &hostCount{Name: strings.Clone(name), Channel: strings.Clone(channel), Host: strings.Clone(host)}
		hosts[h.Name] = h
	}
	return h
}

func (v *survey) settle(states map[string]int, hosts map[string]*hostCount) {
	for name, n := range states {
		v.States = append(v.States, stateCount{name, n})
	}
	slices.SortFunc(v.States, func(a, b stateCount) int { return cmp.Or(b.N-a.N, strings.Compare(a.Name, b.Name)) })
	for _, h := range hosts {
		v.Hosts = append(v.Hosts, *h)
	}
	slices.SortFunc(v.Hosts, func(a, b hostCount) int { return cmp.Or(b.N-a.N, strings.Compare(a.Name, b.Name)) })
	if n := len(v.Hosts) - shownHosts; n > 0 {
		v.Hosts, v.More = slices.Clone(v.Hosts[:shownHosts]), n
	}
}
