package main

import (
	"fmt"
	"strings"
)

// tally is what the summary says of the recipients.
type tally struct {
	messages, accepted, unsure, refused int // submissions
	recipients                          int // of what was accepted
	delivered, failed, reports          int
	twice                               int // deliveries beyond the first that are explained
	removed                             int // recipients that a removal by hand has cost
	doubts                              int
}

// compare holds what arrived against what was accepted and names all that does not
// fit. It is called once, when nothing is under way.
func (b *books) compare() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleDoubts()
	problems := b.wrong
	for _, m := range b.messages {
		problems = append(problems, m.compare()...)
	}
	for at, n := range b.torn {
		doubts := 0
		for _, m := range b.messages {
			if p := m.places[at]; p != nil {
				doubts += p.doubts
			}
		}
		if n > doubts {
			problems = append(problems, fmt.Sprintf("%s holds %d torn messages, and %d deliveries to it were in doubt", at, n, doubts))
		}
	}
	return problems
}

// compare names what does not fit of one message.
func (m *message) compare() (problems []string) {
	miss := func(at, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("message %d (%v, %d bytes, %d recipients, copies %d, removed %v, again %d) %s: ",
			m.seq, m.state, m.size, len(m.places), m.copies, m.removed, m.again, at)+fmt.Sprintf(format, args...))
	}
	happened := m.happened()
	if m.state == refused && happened > 0 {
		miss("", "it was refused, and something came of it")
	}
	if m.state == refused || m.state == unsure && happened == 0 {
		return problems
	}
	low, high := 1+m.copies, 1+m.copies+m.again
	if m.removed {
		low = 0
	}
	for at, p := range m.places {
		failures := len(p.failures)
		switch {
		case p.fate == delivers && failures > 0:
			miss(at, "reported as failed %d times, want delivered", failures)
		case p.fate == delivers && (p.arrivals < low || p.arrivals > high+p.doubts):
			miss(at, "arrived %d times, want %d to %d and %d in doubt", p.arrivals, low, high, p.doubts)
		case p.fate == fails && p.arrivals > 0:
			miss(at, "arrived, want failed")
		}
		m.compareReports(at, p, low, high, miss)
	}
	return problems
}

// compareReports holds the reports on a recipient against what its sender wanted.
func (m *message) compareReports(at string, p *place, low, high int, miss func(at, format string, args ...any)) {
	if m.reports.removed {
		low = 0
	}
	for _, list := range []map[string]int{p.failures, p.success} {
		for id, n := range list {
			if n > 1+m.reports.doubts+m.reports.copies {
				miss(at, "its report %s came %d times, with %d in doubt and %d copies", id, n, m.reports.doubts, m.reports.copies)
			}
		}
	}
	wantFailure, wantSuccess := m.wants()
	failures := len(p.failures)
	switch {
	case p.fate == fails && wantFailure && (failures < low || failures > high):
		miss(at, "its failure was reported %d times, want %d to %d", failures, low, high)
	case p.fate == expires && wantFailure && (failures+p.arrivals < low || failures+p.arrivals > high+p.doubts):
		miss(at, "arrived %d times, its failure was reported %d times, want %d to %d in all", p.arrivals, failures, low, high)
	case !wantFailure && failures > 0:
		miss(at, "its failure was reported, which its sender did not want")
	case p.fate == delivers && wantSuccess && m.local(at) && (len(p.success) < low || len(p.success) > high+p.doubts):
		miss(at, "its delivery was reported %d times, want %d to %d", len(p.success), low, high)
	case !wantSuccess && len(p.success) > 0:
		miss(at, "its delivery was reported, which its sender did not want")
	}
}

// wants is what the sender wants to hear of.
func (m *message) wants() (failure, success bool) {
	if m.from == "" {
		return false, false
	}
	if m.notify == "" {
		return true, false
	}
	return strings.Contains(m.notify, "FAILURE"), strings.Contains(m.notify, "SUCCESS")
}

// local reports whether we report the delivery to a place ourselves: other servers here
// take that over (RFC 3461 §6.2.2).
func (m *message) local(at string) bool { return strings.HasSuffix(at, "@"+hostname) }

// happened counts what became known of a message anywhere.
func (m *message) happened() (n int) {
	for _, p := range m.places {
		n += p.arrivals + len(p.failures) + len(p.success)
	}
	return n
}

// tally sums up; after compare.
func (b *books) tally() tally {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := tally{messages: len(b.messages), doubts: b.count["in-doubt"]}
	reports := map[string]bool{}
	for _, m := range b.messages {
		switch m.state {
		case accepted:
			t.accepted++
		case unsure:
			t.unsure++
		default:
			t.refused++
		}
		if m.state == refused || m.state == unsure && m.happened() == 0 {
			continue
		}
		t.recipients += len(m.places) * (1 + m.copies)
		for _, p := range m.places {
			t.delivered += min(p.arrivals, 1+m.copies)
			t.twice += max(0, p.arrivals-1-m.copies)
			if p.fate == fails || len(p.failures) > 0 {
				t.failed += 1 + m.copies
			} else if m.removed {
				t.removed += max(0, 1+m.copies-p.arrivals)
			}
			for id := range p.failures {
				reports[id] = true
			}
			for id := range p.success {
				reports[id] = true
			}
		}
	}
	t.reports = len(reports)
	return t
}
