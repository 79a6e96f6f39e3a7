package view

import (
	"slices"
	"time"
	"zmailer/internal/run/human"
)

// Tree counts channels and hosts, with the oldest messages of each. Its memory grows with the
// hosts and not with the mail.
type Tree struct {
	Messages int

	now    time.Time
	top    int
	all    *tallies
	leaves map[string][]Leaf
}

// Leaf is a message below a host.
type Leaf struct {
	ID         string    `json:"id"`
	Since      time.Time `json:"since"`
	Sender     string    `json:"sender"`
	Size       int64     `json:"size"`
	State      string    `json:"state"`
	Recipients []string  `json:"recipients"` // the first few
	Count      int       `json:"recipient_count"`
	Next       string    `json:"words"` // of the first
	Last       string    `json:"last,omitempty"`

	First string `json:"-"` // state of the first
}

// leafAddresses is how many recipients of a message are named in the tree.
const leafAddresses = 3

// leafAnswer is how much of a recipient's last answer the tree keeps, in characters.
const leafAnswer = 300

// NewTree begins to count; it keeps so many messages of each host, 0: all of them.
func NewTree(now time.Time, top int) *Tree {
	return &Tree{now: now, top: top, all: newTallies(), leaves: map[string][]Leaf{}}
}

// Add counts a message; it returns no error.
func (t *Tree) Add(m *Message) error {
	t.Messages++
	branches := map[string]*Leaf{}
	var names []string
	for i := range m.Recipients {
		r := &m.Recipients[i]
		if !r.Open() {
			continue
		}
		name := t.all.add(m.branch(r), m, r).Name
		l := branches[name]
		if l == nil {
			l = &Leaf{ID: m.ID, Since: m.Since, Sender: m.From(), Size: m.Size, State: m.State, Next: r.Words(t.now), Last: human.Cut(r.Last, leafAnswer), First: r.State}
			branches[name] = l
			names = append(names, name)
		}
		if l.Count++; len(l.Recipients) < leafAddresses {
			l.Recipients = append(l.Recipients, r.Address)
		}
	}
	for _, name := range names {
		t.hang(name, branches[name])
	}
	return nil
}

// hang puts a message below its host if it is among the oldest.
func (t *Tree) hang(name string, l *Leaf) {
	list := t.leaves[name]
	at, _ := slices.BinarySearchFunc(list, *l, func(a, b Leaf) int { return a.Since.Compare(b.Since) })
	if t.top > 0 && at >= t.top {
		return
	}
	list = slices.Insert(list, at, *l)
	if t.top > 0 && len(list) > t.top {
		list = list[:t.top]
	}
	t.leaves[name] = list
}

// Branch is a host with its oldest messages.
type Branch struct {
	*Tally
	Oldest []Leaf `json:"oldest"`
}

// Branches returns the largest hosts, and how many more there are.
func (t *Tree) Branches() (list []Branch, more int) {
	list = []Branch{}
	for _, v := range t.all.top(t.top) {
		list = append(list, Branch{v, t.leaves[v.Name]})
	}
	return list, len(t.all.of) - len(list)
}

// Summary is the totals of a queue.
type Summary struct {
	Messages   int            `json:"messages"`
	Recipients int            `json:"recipients"` // that are open
	Bytes      int64          `json:"bytes"`
	States     map[string]int `json:"states"` // recipients, open or not
	Hosts      int            `json:"hosts"`
	Oldest     string         `json:"oldest_id,omitempty"`
	OldestAge  int64          `json:"oldest_seconds"`
	Problems   int            `json:"problems"`

	hosts *tallies
}

// NewSummary begins to count.
func NewSummary() *Summary { return &Summary{States: map[string]int{}, hosts: newTallies()} }

// Add counts a message; it returns no error.
func (s *Summary) Add(m *Message) error {
	s.Messages++
	s.Bytes += m.Size
	if m.AgeSeconds > s.OldestAge || s.Oldest == "" {
		s.OldestAge, s.Oldest = m.AgeSeconds, m.ID
	}
	if m.Problem != "" {
		s.Problems++
	}
	for i := range m.Recipients {
		r := &m.Recipients[i]
		s.States[r.State]++
		if !r.Open() {
			continue
		}
		s.Recipients++
		if r.Channel != "" {
			s.hosts.add(r.Channel+"/"+r.Host, m, r)
		}
	}
	s.Hosts = len(s.hosts.of)
	return nil
}

// Largest returns the host with the most open recipients; nil if there is none.
func (s *Summary) Largest() *Tally {
	for _, v := range s.hosts.top(1) {
		return v
	}
	return nil
}
