package text

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// Tree is the view --tree: channel and host, below them messages. It keeps the oldest
// few of each, so its memory grows with the hosts and not with the mail.
type Tree struct {
	w      io.Writer
	now    time.Time
	top    int
	json   bool
	answer int // how much of one is shown
	n      int
	all    *tallies
	leaves map[string][]leaf
}

// leaf is a message below a host.
type leaf struct {
	ID         string    `json:"id"`
	Since      time.Time `json:"since"`
	Sender     string    `json:"sender"`
	Size       int64     `json:"size"`
	State      string    `json:"state"`
	Recipients []string  `json:"recipients"` // the first few
	Count      int       `json:"recipient_count"`
	Next       string    `json:"words"` // of the first
	Last       string    `json:"last,omitempty"`
	state      string    // of the first
}

// leafAddresses is how many recipients of a message are named in the tree.
const leafAddresses = 3

func NewTree(w io.Writer, now time.Time, top int, asJSON bool) *Tree {
	t := &Tree{w: w, now: now, top: top, json: asJSON, answer: longAnswer, all: newTallies(), leaves: map[string][]leaf{}}
	if !asJSON {
		t.answer = term.Room(w, 8, longAnswer)
	}
	return t
}

func (t *Tree) Add(m *view.Message) error {
	t.n++
	branches := map[string]*leaf{}
	var names []string
	for i := range m.Recipients {
		r := &m.Recipients[i]
		if !r.Open() {
			continue
		}
		name := "(" + m.State + ")"
		if r.Channel != "" {
			name = r.Channel + "/" + r.Host
		}
		name = t.all.add(name, m, r).Name
		l := branches[name]
		if l == nil {
			l = &leaf{ID: m.ID, Since: m.Since, Sender: m.From(), Size: m.Size, State: m.State, Next: r.Words(t.now), Last: human.Cut(r.Last, t.answer), state: r.State}
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
func (t *Tree) hang(name string, l *leaf) {
	list := t.leaves[name]
	at, _ := slices.BinarySearchFunc(list, *l, func(a, b leaf) int { return a.Since.Compare(b.Since) })
	if t.top > 0 && at >= t.top {
		return
	}
	list = slices.Insert(list, at, *l)
	if t.top > 0 && len(list) > t.top {
		list = list[:t.top]
	}
	t.leaves[name] = list
}

func (t *Tree) End(bool) error {
	type branch struct {
		*tally
		Oldest []leaf `json:"oldest"`
	}
	list := t.all.top(t.top)
	if t.json {
		out := make([]branch, 0, len(list))
		for _, v := range list {
			out = append(out, branch{v, t.leaves[v.Name]})
		}
		return PrintJSON(t.w, out)
	}
	var errs []error
	p := term.For(t.w)
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(t.w, format, args...)
		errs = append(errs, err)
	}
	for _, v := range list {
		say("%s  %s, %s, %s, oldest %s\n", p.Bold(v.Name), human.Count(v.Recipients, "recipient"), human.Count(v.Messages, "message"), human.Size(v.Bytes),
			human.Span(time.Duration(v.OldestSeconds)*time.Second))
		for _, l := range t.leaves[v.Name] {
			more := ""
			if n := l.Count - len(l.Recipients); n > 0 {
				more = fmt.Sprintf(" and %d more", n)
			}
			id := l.ID
			if id == "" {
				id = "(gone)"
			}
			say("    %s  %s  %s  %s -> %s%s\n        %s\n", p.Bold(id), human.Span(t.now.Sub(l.Since)), human.Size(l.Size), l.Sender, strings.Join(l.Recipients, ", "), more, p.State(l.state, l.Next))
			if l.Last != "" {
				say("        %s\n", l.Last)
			}
		}
		if n := v.Messages - len(t.leaves[v.Name]); n > 0 {
			say("    and %s\n", human.Count(n, "younger message"))
		}
	}
	if n := len(t.all.of) - len(list); n > 0 {
		say("and %s\n", human.Count(n, "more host"))
	}
	say("%s\n", human.Count(t.n, "message"))
	return errors.Join(errs...)
}

// Summary is the view --summary.
type Summary struct {
	w          io.Writer
	now        time.Time
	json       bool
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

func NewSummary(w io.Writer, now time.Time, asJSON bool) *Summary {
	return &Summary{w: w, now: now, json: asJSON, States: map[string]int{}, hosts: newTallies()}
}

func (s *Summary) Add(m *view.Message) error {
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
	return nil
}

func (s *Summary) End(bool) error {
	s.Hosts = len(s.hosts.of)
	if s.json {
		return PrintJSON(s.w, s)
	}
	p := term.For(s.w)
	text := fmt.Sprintf("%s, %s, %s to %s, %s\n", human.Count(s.Messages, "message"), human.Size(s.Bytes),
		human.Count(s.Recipients, "open recipient"), human.Count(s.Hosts, "host"), s.states(p))
	if s.Messages > 0 {
		text += fmt.Sprintf("oldest %s: %s\n", human.Span(time.Duration(s.OldestAge)*time.Second), p.Bold(s.Oldest))
	}
	for _, v := range s.hosts.top(1) {
		text += fmt.Sprintf("most to %s: %s\n", p.Bold(v.Name), human.Count(v.Recipients, "recipient"))
	}
	if s.Problems > 0 {
		text += p.Red(human.Count(s.Problems, "message") + " with a problem; see zmctl check\n")
	}
	_, err := io.WriteString(s.w, text)
	return err
}

func (s *Summary) states(p term.Paint) string {
	var list []string
	for _, name := range []string{view.ToRoute, view.Waiting, view.Delivering, view.Stale, view.Held, view.Frozen, view.Unserved, view.Delivered, view.Failed, view.Removed, view.Rerouted} {
		if n := s.States[name]; n > 0 {
			list = append(list, p.State(name, fmt.Sprintf("%d %s", n, name)))
		}
	}
	if len(list) == 0 {
		return "nothing waits"
	}
	return strings.Join(list, ", ")
}
