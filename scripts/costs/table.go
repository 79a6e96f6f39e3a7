package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// row is a line of a table: a value of each set.
type row struct {
	name   string
	format string
	value  func(c *counts) float64
}

// printAll prints a table for each program, and one for all together.
func printAll(w io.Writer, sets []set) {
	for i := range sets {
		whole := &counts{calls: map[string]float64{}}
		for _, c := range sets[i].sum {
			whole.add(c, 1)
		}
		sets[i].sum["all processes"] = whole
	}
	fmt.Fprint(w, "Delivered: ")
	for i, s := range sets {
		fmt.Fprintf(w, "%s%s %.0f/s", strings.Repeat(", ", min(i, 1)), s.name, s.rate)
	}
	fmt.Fprintln(w, " (a speed beside the counting, of few runs).")
	for _, program := range append(slices.Clone(programs), "all processes") {
		printProgram(w, sets, program)
	}
}

// printProgram prints a program's table.
func printProgram(w io.Writer, sets []set, program string) {
	fmt.Fprintf(w, "\n| %s |", program)
	for _, s := range sets {
		fmt.Fprintf(w, " %s |", s.name)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---:|", len(sets)))
	for _, r := range rows(sets, program) {
		line, shown := "| "+r.name+" |", false
		for _, s := range sets {
			v := 0.0
			if c := s.sum[program]; c != nil {
				v = r.value(c)
			}
			text := fmt.Sprintf(r.format, v)
			shown = shown || strings.Trim(text, "0.") != ""
			line += " " + text + " |"
		}
		if shown {
			fmt.Fprintln(w, line)
		}
	}
}

// rows returns what a program's table shows: calls by their number, then the rest. Calls
// that are seldom are one row.
func rows(sets []set, program string) []row {
	most := map[string]float64{}
	for _, s := range sets {
		if c := s.sum[program]; c != nil {
			for name, n := range c.calls {
				most[name] = max(most[name], n)
			}
		}
	}
	const seldom = 0.05
	list := []row{{"**system calls**", "**%.1f**", (*counts).total}}
	for _, name := range slices.SortedFunc(maps.Keys(most), func(a, b string) int {
		return cmp.Or(cmp.Compare(most[b], most[a]), cmp.Compare(a, b))
	}) {
		if most[name] >= seldom {
			list = append(list, row{name, "%.2f", func(c *counts) float64 { return c.calls[name] }})
		}
	}
	return append(list,
		row{"others", "%.2f", func(c *counts) (n float64) {
			for name, of := range c.calls {
				if most[name] < seldom {
					n += of
				}
			}
			return n
		}},
		row{"of these, answered EAGAIN", "%.2f", func(c *counts) float64 { return c.again }},
		row{"switches, waiting", "%.2f", func(c *counts) float64 { return c.voluntary }},
		row{"switches, preempted", "%.2f", func(c *counts) float64 { return c.involuntary }},
		row{"processor, user, µs", "%.0f", func(c *counts) float64 { return c.user }},
		row{"processor, system, µs", "%.0f", func(c *counts) float64 { return c.sys }},
		row{"bytes written", "%.0f", func(c *counts) float64 { return c.written }},
		row{"bytes for the disk", "%.0f", func(c *counts) float64 { return c.disk }},
		row{"allocations", "%.1f", func(c *counts) float64 { return c.allocs }},
		row{"bytes allocated", "%.0f", func(c *counts) float64 { return c.allocated }},
		row{"collections per 1,000 messages", "%.1f", func(c *counts) float64 { return 1000 * c.collections }},
		row{"largest process, MB", "%.1f", func(c *counts) float64 { return c.memory / (1 << 20) }},
	)
}
