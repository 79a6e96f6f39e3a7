package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is what results.json has. A later run replaces the scenarios that it has made.
type report struct {
	Machine   string
	Systems   []described
	Scenarios []measured
}

type described struct{ Name, Version, Settings string }

// measured is a scenario with its runs.
type measured struct {
	Name, Title, What, When, Commit string
	Figures                         []figure
	Systems                         []string
	Runs                            map[string][]values
}

func newReport(o options, list []contender) *report {
	r := &report{}
	if b, err := os.ReadFile(filepath.Join(o.out, "results.json")); o.out != "" && err == nil {
		_ = json.Unmarshal(b, r) // one that cannot be read is written anew
	}
	r.Machine = machine()
	for _, c := range list {
		d := described{c.name, c.version, c.settings}
		if i := slices.IndexFunc(r.Systems, func(d described) bool { return d.Name == c.name }); i >= 0 {
			r.Systems[i] = d
		} else {
			r.Systems = append(r.Systems, d)
		}
	}
	for _, s := range scenarios() {
		if chosen(o.only, s.name) {
			r.Scenarios = slices.DeleteFunc(r.Scenarios, func(m measured) bool { return m.Name == s.name })
		}
	}
	return r
}

// machine is in words what this is measured on.
func machine() string {
	model := said(`model name\s*: (.*)`, "cat", "/proc/cpuinfo")
	kernel := said(`^(\S+)`, "uname", "-r")
	disk := said(`\s(\S+)\n`, "df", "--output=fstype", os.TempDir())
	return fmt.Sprintf("%d processors (%s), %s GB, Linux %s, working directory on %s, %s", runtime.NumCPU(), model,
		said(`Mem:\s+(\d+)`, "free", "-g"), kernel, disk, runtime.Version())
}

func (s scenario) text(o options) string { return sized(s.what, o) }

// sized fills in the numbers of a text.
func sized(text string, o options) string {
	if !strings.Contains(text, "%[") {
		return text
	}
	return fmt.Sprintf(text, o.sizes()...)
}

func (r *report) add(s scenario, o options, system string, v values) {
	i := slices.IndexFunc(r.Scenarios, func(m measured) bool { return m.Name == s.name })
	if i < 0 {
		m := measured{Name: s.name, Title: s.title, What: s.text(o), When: time.Now().Format("2006-01-02") + ", load average " + said(`^(\S+)`, "cat", "/proc/loadavg") + " as the first run ended",
			Commit: said(`^(\w+)`, "git", "rev-parse", "--short", "HEAD"), Runs: map[string][]values{}}
		for _, f := range s.figures {
			f.Title = sized(f.Title, o)
			m.Figures = append(m.Figures, f)
		}
		r.Scenarios = append(r.Scenarios, m)
		order := scenarios()
		place := func(m measured) int {
			return slices.IndexFunc(order, func(s scenario) bool { return s.name == m.Name })
		}
		slices.SortStableFunc(r.Scenarios, func(a, b measured) int { return place(a) - place(b) })
		i = slices.IndexFunc(r.Scenarios, func(m measured) bool { return m.Name == s.name })
	}
	m := &r.Scenarios[i]
	if !slices.Contains(m.Systems, system) {
		m.Systems = append(m.Systems, system)
	}
	m.Runs[system] = append(m.Runs[system], v)
}

// spread is a figure's median and range over the runs of a system.
type spread struct {
	Low, Median, High float64
	ok                bool
}

func (m *measured) spread(system, key string) spread {
	var all []float64
	for _, v := range m.Runs[system] {
		all = append(all, v[key]...)
	}
	if len(all) == 0 {
		return spread{}
	}
	slices.Sort(all)
	return spread{all[0], all[len(all)/2], all[len(all)-1], true}
}

// medians takes each figure's median on its own.
func medians(runs []values) values {
	m := &measured{Runs: map[string][]values{"": runs}}
	out := values{}
	for _, v := range runs {
		for key := range v {
			out[key] = []float64{m.spread("", key).Median}
		}
	}
	return out
}

// line returns a run's figures.
func (s scenario) line(v values) string {
	var parts []string
	for _, f := range s.figures {
		var numbers []string
		for _, x := range v[f.Key] {
			numbers = append(numbers, short(x))
		}
		if len(numbers) > 0 {
			parts = append(parts, f.Key+" "+strings.Join(numbers, " ")+f.unit())
		}
	}
	return strings.Join(parts, "  ")
}

func (f figure) unit() string {
	if f.Unit == "" || strings.HasPrefix(f.Unit, "/") {
		return f.Unit
	}
	return " " + f.Unit
}

// short writes a number with three digits.
func short(x float64) string {
	switch abs := max(x, -x); {
	case abs >= 100:
		return fmt.Sprintf("%.0f", x)
	case abs >= 10:
		return fmt.Sprintf("%.1f", x)
	case abs == 0:
		return "0"
	}
	return fmt.Sprintf("%.2f", x)
}

// ratios compares us with each of the others: medians.
func (r *report) ratios(s scenario) string {
	i := slices.IndexFunc(r.Scenarios, func(m measured) bool { return m.Name == s.name })
	if i < 0 {
		return ""
	}
	m := &r.Scenarios[i]
	var b strings.Builder
	for _, f := range m.Figures {
		fmt.Fprintf(&b, "  %-45s", f.Title)
		mine := m.spread("zmailer", f.Key)
		for _, name := range m.Systems {
			if x := m.spread(name, f.Key); x.ok {
				fmt.Fprintf(&b, "  %s %s%s", name, short(x.Median), f.unit())
				if name != "zmailer" && mine.ok && x.Median != 0 {
					fmt.Fprintf(&b, " (ratio %s)", short(mine.Median/x.Median))
				}
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Where docs/performance.md has the tables.
const (
	begins = "<!-- bench -peers: begins -->"
	ends   = "<!-- bench -peers: ends -->"
)

// write writes results.json, the plots, and the tables into the page beside the directory
// if that has a place for them, else into results.md.
func (r *report) write(o options) error {
	if o.out == "" {
		return nil
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	errs := []error{os.WriteFile(filepath.Join(o.out, "results.json"), append(b, '\n'), 0o644)}
	for i := range r.Scenarios {
		m := &r.Scenarios[i]
		errs = append(errs, os.WriteFile(filepath.Join(o.out, m.Name+".svg"), []byte(plot(m)), 0o644))
	}
	page := strings.TrimSuffix(o.out, "/") + ".md"
	text, err := os.ReadFile(page)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	before, rest, found := strings.Cut(string(text), begins)
	_, after, closed := strings.Cut(rest, ends)
	if found && closed {
		errs = append(errs, os.WriteFile(page, []byte(before+begins+"\n"+r.tables(filepath.Base(o.out))+ends+after), 0o644))
	} else {
		errs = append(errs, os.WriteFile(filepath.Join(o.out, "results.md"), []byte(r.tables(".")), 0o644))
	}
	return errors.Join(errs...)
}

// tables returns the Markdown text of the results; the plots are in dir.
func (r *report) tables(dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nMachine: %s.\n\n| system | version | settings |\n|---|---|---|\n", r.Machine)
	for _, d := range r.Systems {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", d.Name, d.Version, d.Settings)
	}
	for i := range r.Scenarios {
		m := &r.Scenarios[i]
		runs := 0
		for _, list := range m.Runs {
			for _, v := range list {
				for _, x := range v {
					runs = max(runs, len(list), len(x))
				}
			}
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s. Medians of %d runs, lowest and highest in brackets; %s, %s.\n\n![%s](%s/%s.svg)\n\n|",
			m.Title, strings.ToUpper(m.What[:1])+m.What[1:], runs, m.When, m.Commit, m.Title, dir, m.Name)
		for _, name := range m.Systems {
			fmt.Fprintf(&b, " | %s", name)
		}
		for _, name := range m.Systems {
			if name != "zmailer" {
				fmt.Fprintf(&b, " | ours to %s", name)
			}
		}
		fmt.Fprintf(&b, " |\n|%s\n", strings.Repeat("---|", 2*len(m.Systems)))
		for _, f := range m.Figures {
			m.row(&b, f)
		}
	}
	return b.String() + "\n"
}

func (m *measured) row(b *strings.Builder, f figure) {
	fmt.Fprintf(b, "| %s", f.Title)
	if u := strings.TrimSpace(f.unit()); u != "" {
		fmt.Fprintf(b, ", %s", u)
	}
	mine := m.spread("zmailer", f.Key)
	for _, name := range m.Systems {
		switch x := m.spread(name, f.Key); {
		case !x.ok:
			b.WriteString(" | ")
		case x.Low == x.High:
			fmt.Fprintf(b, " | %s", short(x.Median))
		default:
			fmt.Fprintf(b, " | %s (%s–%s)", short(x.Median), short(x.Low), short(x.High))
		}
	}
	for _, name := range m.Systems {
		if name == "zmailer" {
			continue
		}
		if x := m.spread(name, f.Key); x.ok && mine.ok && x.Median != 0 {
			fmt.Fprintf(b, " | %s", short(mine.Median/x.Median))
		} else {
			b.WriteString(" | ")
		}
	}
	b.WriteString(" |\n")
}
