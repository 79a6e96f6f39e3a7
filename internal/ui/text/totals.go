package text

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// maxKeys bounds how many hosts or senders are counted one by one. What comes beyond is
// counted as others.
const maxKeys = 200000

// others is the key of all beyond maxKeys.
const others = "(others)"

// tally has the counts of one host, sender or state.
type tally struct {
	Name          string `json:"name"`
	Messages      int    `json:"messages"`
	Recipients    int    `json:"recipients"`
	Bytes         int64  `json:"bytes"` // of the messages
	OldestSeconds int64  `json:"oldest_seconds"`

	last *view.Message // counted last: a message counts once for each name
}

// tallies are counted by name.
type tallies struct {
	of map[string]*tally
}

func newTallies() *tallies { return &tallies{map[string]*tally{}} }

// add counts a recipient of m; r may be nil.
func (t *tallies) add(name string, m *view.Message, r *view.Recipient) *tally {
	n := t.of[name]
	if n == nil {
		if len(t.of) >= maxKeys {
			name = others
		}
		if n = t.of[name]; n == nil {
			n = &tally{Name: strings.Clone(name)}
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

// top are the n largest, 0: all of them.
func (t *tallies) top(n int) []*tally {
	list := make([]*tally, 0, len(t.of))
	for _, v := range t.of {
		v.last = nil
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b *tally) int {
		return cmp.Or(cmp.Compare(b.Recipients, a.Recipients), cmp.Compare(b.Messages, a.Messages), strings.Compare(a.Name, b.Name))
	})
	if n > 0 && len(list) > n {
		list = list[:n]
	}
	return list
}

// Counts is the view --counts.
type Counts struct {
	w        io.Writer
	top      int
	json     bool
	messages int
	parts    []*countPart
}

type countPart struct {
	title string
	of    func(m *view.Message, r *view.Recipient) string // "" counts nowhere
	all   *tallies
}

func NewCounts(w io.Writer, _ time.Time, top int, asJSON bool) *Counts {
	of := func(title string, of func(m *view.Message, r *view.Recipient) string) *countPart {
		return &countPart{title, of, newTallies()}
	}
	return &Counts{w: w, top: top, json: asJSON, parts: []*countPart{
		of("state", func(m *view.Message, r *view.Recipient) string {
			if r == nil || r.State == view.ToRoute {
				return m.State
			}
			return r.State
		}),
		of("channel", func(_ *view.Message, r *view.Recipient) string {
			if r == nil {
				return ""
			}
			return r.Channel
		}),
		of("host", func(_ *view.Message, r *view.Recipient) string {
			if r == nil || r.Channel == "" {
				return ""
			}
			return r.Channel + "/" + r.Host
		}),
		of("sender", func(m *view.Message, _ *view.Recipient) string { return m.From() }),
	}}
}

func (c *Counts) Add(m *view.Message) error {
	c.messages++
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

func (c *Counts) End(bool) error {
	if c.json {
		out := map[string]any{"messages": c.messages}
		for _, p := range c.parts {
			out[p.title] = p.all.top(c.top)
		}
		return PrintJSON(c.w, out)
	}
	colours, t := term.For(c.w), term.NewTable(c.w)
	for _, p := range c.parts {
		list := p.all.top(c.top)
		if len(list) == 0 {
			continue
		}
		fmt.Fprint(t, colours.Heading(strings.ToUpper(p.title)+"\tRECIPIENTS\tMESSAGES\tSIZE\tOLDEST\n"))
		for _, v := range list {
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\n", colours.State(v.Name, v.Name), v.Recipients, v.Messages, human.Size(v.Bytes), human.Span(time.Duration(v.OldestSeconds)*time.Second))
		}
		if more := len(p.all.of) - len(list); more > 0 {
			fmt.Fprintf(t, "and %d more\n", more)
		}
		fmt.Fprintln(t)
	}
	_, err := fmt.Fprintln(t, human.Count(c.messages, "message"))
	return errors.Join(err, t.Flush())
}

// Ages is the view --ages: hosts and how old their mail is.
type Ages struct {
	w    io.Writer
	now  time.Time
	top  int
	json bool
	all  *tallies
	rows map[string]*ageRow
	sum  ageRow
}

type ageRow struct {
	Name       string `json:"name"`
	Recipients int    `json:"recipients"`
	// Younger counts recipients of each age: below the bound of the same place in
	// age_minutes, and the last one all that are older.
	Younger [len(ageBounds) + 1]int `json:"younger"`
}

// ageBounds are the columns' ends.
var ageBounds = [...]time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, 80 * time.Minute,
	160 * time.Minute, 320 * time.Minute, 640 * time.Minute, 1280 * time.Minute}

func NewAges(w io.Writer, now time.Time, top int, asJSON bool) *Ages {
	return &Ages{w: w, now: now, top: top, json: asJSON, all: newTallies(), rows: map[string]*ageRow{}}
}

func (a *Ages) Add(m *view.Message) error {
	column := 0
	for column < len(ageBounds) && a.now.Sub(m.Since) >= ageBounds[column] {
		column++
	}
	for i := range m.Recipients {
		r := &m.Recipients[i]
		if !r.Open() {
			continue
		}
		name := "(" + m.State + ")"
		if r.Channel != "" {
			name = r.Channel + "/" + r.Host
		}
		name = a.all.add(name, m, r).Name
		row := a.rows[name]
		if row == nil {
			row = &ageRow{Name: name}
			a.rows[name] = row
		}
		for _, to := range []*ageRow{row, &a.sum} {
			to.Recipients++
			to.Younger[column]++
		}
	}
	return nil
}

func (a *Ages) End(bool) error {
	list := a.all.top(a.top)
	rows := make([]*ageRow, 0, len(list))
	for _, t := range list {
		rows = append(rows, a.rows[t.Name])
	}
	if a.json {
		var minutes []int
		for _, b := range ageBounds {
			minutes = append(minutes, int(b/time.Minute))
		}
		a.sum.Name = "total"
		return PrintJSON(a.w, map[string]any{"age_minutes": minutes, "hosts": rows, "total": a.sum})
	}
	t := tabwriter.NewWriter(a.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "open recipients\tall\t")
	for _, b := range ageBounds {
		fmt.Fprintf(t, "<%s\t", human.Span(b))
	}
	fmt.Fprintln(t, "older\t")
	a.sum.Name = "TOTAL"
	for _, row := range append([]*ageRow{&a.sum}, rows...) {
		fmt.Fprintf(t, "%s\t%d\t", row.Name, row.Recipients)
		for _, n := range row.Younger {
			if n == 0 {
				fmt.Fprint(t, ".\t")
				continue
			}
			fmt.Fprint(t, strconv.Itoa(n)+"\t")
		}
		fmt.Fprintln(t)
	}
	err := t.Flush()
	if more := len(a.rows) - len(rows); more > 0 {
		_, perr := fmt.Fprintf(a.w, "and %s\n", human.Count(more, "more host"))
		err = errors.Join(err, perr)
	}
	return err
}
