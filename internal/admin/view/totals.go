package view

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// maxKeys bounds how many hosts or senders are counted one by one. What comes beyond is
// counted as others.
const maxKeys = 200000

// others is the key of all beyond maxKeys.
const others = "(others)"

// Tally has the counts of one host, sender or state.
type Tally struct {
	Name          string `json:"name"`
	Messages      int    `json:"messages"`
	Recipients    int    `json:"recipients"`
	Bytes         int64  `json:"bytes"` // of the messages
	OldestSeconds int64  `json:"oldest_seconds"`

	last *Message // counted last: a message counts once for each name
}

// tallies are counted by name.
type tallies struct {
	of map[string]*Tally
}

func newTallies() *tallies { return &tallies{map[string]*Tally{}} }

// add counts a recipient of m; r may be nil.
func (t *tallies) add(name string, m *Message, r *Recipient) *Tally {
	n := t.of[name]
	if n == nil {
		if len(t.of) >= maxKeys {
			name = others
		}
		if n = t.of[name]; n == nil {
			n = &Tally{Name: strings.Clone(name)}
			t.of[n.Name] = n
		}
	}
	if n.last != m {
		n.last = m
		n.Messages++
		n.Bytes += m.Size
		n.OldestSeconds = max(n.OldestSeconds, m.AgeSeconds)
	}
	if r != nil {
		n.Recipients++
	}
	return n
}

// top returns the n largest, 0: all of them.
func (t *tallies) top(n int) []*Tally {
	list := make([]*Tally, 0, len(t.of))
	for _, v := range t.of {
		v.last = nil
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b *Tally) int {
		return cmp.Or(cmp.Compare(b.Recipients, a.Recipients), cmp.Compare(b.Messages, a.Messages), strings.Compare(a.Name, b.Name))
	})
	if n > 0 && len(list) > n {
		list = list[:n]
	}
	return list
}

// branch names where an open recipient is counted: its thread or, before it is routed, the state
// of its message.
func (m *Message) branch(r *Recipient) string {
	if r.Channel == "" {
		return "(" + m.State + ")"
	}
	return r.Channel + "/" + r.Host
}

// Counts counts messages by state, channel, host and sender.
type Counts struct {
	Messages int
	parts    []*countPart
}

type countPart struct {
	title string
	of    func(m *Message, r *Recipient) string // "" counts nowhere
	all   *tallies
}

// NewCounts begins to count.
func NewCounts() *Counts {
	of := func(title string, of func(m *Message, r *Recipient) string) *countPart {
		return &countPart{title, of, newTallies()}
	}
	return &Counts{parts: []*countPart{
		of("state", func(m *Message, r *Recipient) string {
			if r == nil || r.State == ToRoute {
				return m.State
			}
			return r.State
		}),
		of("channel", func(_ *Message, r *Recipient) string {
			if r == nil {
				return ""
			}
			return r.Channel
		}),
		of("host", func(_ *Message, r *Recipient) string {
			if r == nil || r.Channel == "" {
				return ""
			}
			return r.Channel + "/" + r.Host
		}),
		of("sender", func(m *Message, _ *Recipient) string { return m.From() }),
	}}
}

// Add counts a message; it returns no error.
func (c *Counts) Add(m *Message) error {
	c.Messages++
	for _, p := range c.parts {
		if len(m.Recipients) == 0 {
			if name := p.of(m, nil); name != "" {
				p.all.add(name, m, nil)
			}
		}
		for i := range m.Recipients {
			if name := p.of(m, &m.Recipients[i]); name != "" {
				p.all.add(name, m, &m.Recipients[i])
			}
		}
	}
	return nil
}

// Each calls fn with the n largest counts of each kind, 0: all of them, and how many more there are.
func (c *Counts) Each(n int, fn func(title string, list []*Tally, more int)) {
	for _, p := range c.parts {
		list := p.all.top(n)
		fn(p.title, list, len(p.all.of)-len(list))
	}
}

// Ages counts open recipients by host and age.
type Ages struct {
	Total AgeRow

	now  time.Time
	all  *tallies
	rows map[string]*AgeRow
}

// AgeRow is the open recipients of one host, by age.
type AgeRow struct {
	Name       string `json:"name"`
	Recipients int    `json:"recipients"`
	// Younger counts recipients of each age: below the bound of the same place in
	// age_minutes, and the last one all that are older.
	Younger [len(AgeBounds) + 1]int `json:"younger"`
}

// AgeBounds are the upper ends of the ranges of AgeRow; the last range has none.
var AgeBounds = [...]time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, 80 * time.Minute,
	160 * time.Minute, 320 * time.Minute, 640 * time.Minute, 1280 * time.Minute}

// NewAges begins to count; ages are those of this time.
func NewAges(now time.Time) *Ages {
	return &Ages{now: now, all: newTallies(), rows: map[string]*AgeRow{}}
}

// Add counts a message; it returns no error.
func (a *Ages) Add(m *Message) error {
	column := 0
	for column < len(AgeBounds) && a.now.Sub(m.Since) >= AgeBounds[column] {
		column++
	}
	for i := range m.Recipients {
		r := &m.Recipients[i]
		if !r.Open() {
			continue
		}
		name := a.all.add(m.branch(r), m, r).Name
		row := a.rows[name]
		if row == nil {
			row = &AgeRow{Name: name}
			a.rows[name] = row
		}
		for _, to := range []*AgeRow{row, &a.Total} {
			to.Recipients++
			to.Younger[column]++
		}
	}
	return nil
}

// Top returns the n largest rows, 0: all of them, and how many more there are.
func (a *Ages) Top(n int) (rows []*AgeRow, more int) {
	list := a.all.top(n)
	rows = make([]*AgeRow, 0, len(list))
	for _, t := range list {
		rows = append(rows, a.rows[t.Name])
	}
	return rows, len(a.rows) - len(rows)
}
