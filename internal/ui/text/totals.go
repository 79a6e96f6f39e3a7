package text

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// counts is the view --counts.
type counts struct {
	*view.Counts
	w    io.Writer
	top  int
	json bool
}

// NewCounts prints the top counts of each kind.
func NewCounts(w io.Writer, top int, asJSON bool) QueueView {
	return &counts{view.NewCounts(), w, top, asJSON}
}

func (c *counts) End(bool) error {
	if c.json {
		out := map[string]any{"messages": c.Messages}
		c.Each(c.top, func(title string, list []*view.Tally, _ int) { out[title] = list })
		return PrintJSON(c.w, out)
	}
	colours, t := term.For(c.w), term.NewTable(c.w)
	c.Each(c.top, func(title string, list []*view.Tally, more int) {
		if len(list) == 0 {
			return
		}
		fmt.Fprint(t, colours.Heading(strings.ToUpper(title)+"\tRECIPIENTS\tMESSAGES\tSIZE\tOLDEST\n"))
		for _, v := range list {
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\n", colours.State(v.Name, v.Name), v.Recipients, v.Messages, human.Size(v.Bytes), human.Span(time.Duration(v.OldestSeconds)*time.Second))
		}
		if more > 0 {
			fmt.Fprintf(t, "and %d more\n", more)
		}
		fmt.Fprintln(t)
	})
	_, err := fmt.Fprintln(t, human.Count(c.Messages, "message"))
	return errors.Join(err, t.Flush())
}

// ages is the view --ages: hosts and how old their mail is.
type ages struct {
	*view.Ages
	w    io.Writer
	top  int
	json bool
}

// NewAges prints the top hosts.
func NewAges(w io.Writer, now time.Time, top int, asJSON bool) QueueView {
	return &ages{view.NewAges(now), w, top, asJSON}
}

func (a *ages) End(bool) error {
	rows, more := a.Top(a.top)
	if a.json {
		var minutes []int
		for _, b := range view.AgeBounds {
			minutes = append(minutes, int(b/time.Minute))
		}
		a.Total.Name = "total"
		return PrintJSON(a.w, map[string]any{"age_minutes": minutes, "hosts": rows, "total": a.Total})
	}
	t := tabwriter.NewWriter(a.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "open recipients\tall\t")
	for _, b := range view.AgeBounds {
		fmt.Fprintf(t, "<%s\t", human.Span(b))
	}
	fmt.Fprintln(t, "older\t")
	a.Total.Name = "TOTAL"
	for _, row := range append([]*view.AgeRow{&a.Total}, rows...) {
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
	if more > 0 {
		_, perr := fmt.Fprintf(a.w, "and %s\n", human.Count(more, "more host"))
		err = errors.Join(err, perr)
	}
	return err
}
