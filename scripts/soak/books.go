package main

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// fate is what must become of a recipient.
type fate int

const (
	delivers fate = iota // delivered
	fails                // failed, with a report if one is wanted
	expires              // one or the other: its server never takes it, and time runs
)

// state is what a submitter was told.
type state int

const (
	refused  state = iota // no, or nothing could have been accepted
	accepted              // yes
	unsure                // the answer did not come: all of it happens, or nothing
)

func (s state) String() string { return [...]string{"refused", "accepted", "unsure"}[s] }

// message is what the books know of a submission.
type message struct {
	content
	sum     [sha256.Size]byte
	from    string // envelope sender, "" null
	notify  string // NOTIFY of all recipients, "" none
	rcpts   []string
	places  map[string]*place // by final address or mailbox
	state   state
	closed  bool // the submitter has got its answer, or never will
	open    int  // places that nothing has come to
	copies  int  // made by hand
	removed bool // by hand, of that or a copy: may have come to no one
	again   int  // edits that may deliver it again
	touched bool // by hand, or a report on it was
	reports edited
}

// edited is what was done by hand to the reports on a message.
type edited struct {
	copies  int
	removed bool
	doubts  int
}

// place is where a recipient's mail must come to.
type place struct {
	fate     fate
	arrivals int
	doubts   int            // deliveries that the log calls in doubt
	failures map[string]int // reports of its failure, by Message-ID, and how often each came
	success  map[string]int // reports of its delivery
}

// books hold what was accepted and what has arrived. Safe for concurrent use.
type books struct {
	mu       sync.Mutex
	messages map[int]*message // by number
	ids      map[string]int   // spool ID → number of the message
	reports  map[string]int   // spool ID of a report → number of the message
	tidied   map[string]bool  // spool IDs of files put there by hand and taken away at the end
	doubts   []doubt
	torn     map[string]int // by place: parts of a message that a dead agent left
	wrong    []string       // arrivals that belong to nothing
	large    int64          // bytes of large messages under way
	count    map[string]int // events of the log
}

// doubt is one in-doubt event of the log, which may come before its message is known.
type doubt struct{ id, rcpt string }

// large is what bounds the bytes under way.
const large = 1 << 20

func newBooks() *books {
	return &books{messages: map[int]*message{}, ids: map[string]int{}, reports: map[string]int{}, tidied: map[string]bool{}, torn: map[string]int{}, count: map[string]int{}}
}

// sender returns the envelope sender of a message, which has its number.
func sender(seq int) string { return fmt.Sprintf("b.%d@%s", seq, backDomain) }

// numberIn returns the number in an address that is one message's own; 0: it is shared.
func numberIn(address string) int {
	_, rest, ok := strings.Cut(address, ".")
	if !ok {
		return 0
	}
	rest, _, _ = strings.Cut(rest, "@")
	digits, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// begin notes a message that is about to be submitted.
func (b *books) begin(m *message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.open = len(m.places)
	b.messages[m.seq] = m
	if m.size >= large {
		b.large += m.size
	}
}

// answered notes what the submitter of a message was told.
func (b *books) answered(m *message, s state, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.state, m.closed = s, true
	if id != "" {
		b.ids[id] = m.seq
	}
	if s != accepted {
		b.done(m)
	}
}

// done takes a message out of what is under way.
func (b *books) done(m *message) {
	if m.open > 0 && m.size >= large {
		b.large -= m.size
	}
	m.open = 0
}

// underWay returns how many bytes of large messages are under way.
func (b *books) underWay() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.large
}

// edit changes what is expected of a message.
func (b *books) edit(seq int, change func(m *message)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.messages[seq]; m != nil {
		change(m)
		if m.removed {
			b.done(m)
		}
	}
}

// named notes a spool ID of a message, or of a report on one.
func (b *books) named(id string, seq int, report bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if report {
		b.reports[id] = seq
	} else {
		b.ids[id] = seq
	}
}

// taken notes the spool ID of a file that was put there by hand, and is taken away.
func (b *books) taken(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tidied[id] = true
}

// arrived notes that a message has come to a place.
func (b *books) arrived(at string, a *arrival) {
	sum := a.sum()
	b.mu.Lock()
	defer b.mu.Unlock()
	seq := numberIn(at)
	if seq == 0 {
		seq = a.seq
	}
	m := b.messages[seq]
	if m == nil {
		b.wrong = append(b.wrong, fmt.Sprintf("%s: a message came that no one sent, with mark %d", at, a.seq))
		return
	}
	p := m.places[at]
	switch {
	case p == nil:
		b.wrong = append(b.wrong, fmt.Sprintf("message %d came to %s, to whom it was not sent", seq, at))
		return
	case sum != m.sum:
		b.wrong = append(b.wrong, fmt.Sprintf("message %d (%d bytes) came to %s with other bytes, and mark %d", seq, m.size, at, a.seq))
	}
	if p.arrivals++; p.arrivals == 1 && m.open > 0 {
		if m.open == 1 {
			b.done(m)
		} else {
			m.open--
		}
	}
}

// reported notes a report that has come to a sender.
func (b *books) reported(to string, r *report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.messages[numberIn(to)]
	if m == nil || r.id == "" || len(r.outcomes) == 0 {
		b.wrong = append(b.wrong, fmt.Sprintf("%s: a report came that is none: %+v", to, *r))
		return
	}
	for _, o := range r.outcomes {
		p := m.places[m.placeOf(o.rcpt)]
		if p == nil {
			b.wrong = append(b.wrong, fmt.Sprintf("message %d: a report speaks of %s, to whom it was not sent", m.seq, o.rcpt))
			continue
		}
		switch o.action {
		case "failed":
			p.failures = counted(p.failures, r.id)
		case "delivered":
			p.success = counted(p.success, r.id)
		}
	}
}

func counted(m map[string]int, key string) map[string]int {
	if m == nil {
		m = map[string]int{}
	}
	m[key]++
	return m
}

// placeOf returns the place of an address in reports and in the log.
func (m *message) placeOf(rcpt string) string {
	if m.places[rcpt] == nil {
		for name := range m.places {
			if strings.HasPrefix(name, "/") && strings.Contains(rcpt, name) {
				return name // a file
			}
		}
	}
	return rcpt
}

// event takes in what the log says.
func (b *books) event(word, id, rcpt, from, report string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count[word]++
	if seq := numberIn(from); seq > 0 && id != "" {
		b.ids[id] = seq
	}
	if word == "report" {
		b.reports[report] = numberIn(rcpt)
	}
	if word == "in-doubt" {
		b.doubts = append(b.doubts, doubt{id, rcpt})
	}
}

// settleDoubts counts the doubts at the places they are about.
func (b *books) settleDoubts() {
	for _, d := range b.doubts {
		seq := numberIn(d.rcpt)
		if seq == 0 {
			seq = b.ids[d.id]
		}
		m := b.messages[seq]
		if m == nil {
			b.wrong = append(b.wrong, fmt.Sprintf("the log is in doubt about %s of %s, which is unknown", d.rcpt, d.id))
			continue
		}
		if d.rcpt == sender(seq) {
			m.reports.doubts++
		} else if p := m.places[m.placeOf(d.rcpt)]; p != nil {
			p.doubts++
		}
	}
	b.doubts = nil
}
