// Package confimport makes a configuration of this mail system from that of Postfix: its
// files, and a report that says of each setting what became of it.
//
// It owns nothing and changes nothing; it reads the directory of the other mail system's
// configuration and the files that it names.
//
// Diagnostics: Postfix returns a *config.Error for main.cf or master.cf that cannot be read or
// parsed. A table that cannot be read is no error but a row of the report.
package confimport

import (
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/run/human"
)

// Outcome is what became of a setting.
type Outcome string

// Outcomes.
const (
	Converted Outcome = "converted"  // it has the same effect in the new files
	NotNeeded Outcome = "not needed" // it is the default here, or has no meaning
	ByHand    Outcome = "by hand"    // somebody has to decide
)

// Row is what became of a setting of the other mail system, or of an entry of master.cf.
type Row struct {
	Setting string  `json:"setting"`
	Value   string  `json:"value"`
	Where   string  `json:"where"` // file:line
	Outcome Outcome `json:"outcome"`
	Became  string  `json:"became"` // the new setting, or why there is none
	Page    string  `json:"page,omitempty"`
}

// File is one of the new configuration.
type File struct {
	Name   string
	Text   string
	Secret bool // it holds passwords, or what not every user may read in the other configuration
}

// Result is a new configuration with the report.
type Result struct {
	Files []File
	Rows  []Row
}

// Left returns how many settings somebody has to look at.
func (r *Result) Left() int {
	n := 0
	for _, row := range r.Rows {
		if row.Outcome == ByHand {
			n++
		}
	}
	return n
}

// Report returns the rows as text.
func (r *Result) Report() string {
	var b strings.Builder
	counts := map[Outcome]int{}
	for _, outcome := range []Outcome{ByHand, Converted, NotNeeded} {
		for _, row := range r.Rows {
			if row.Outcome != outcome {
				continue
			}
			if counts[outcome]++; counts[outcome] == 1 {
				fmt.Fprintf(&b, "%s:\n", strings.ToUpper(string(outcome[:1]))+string(outcome[1:]))
			}
			fmt.Fprintf(&b, "  %s = %s\n      %s", human.Mask(row.Setting), human.Mask(row.Value), human.Mask(row.Became))
			if row.Page != "" {
				fmt.Fprintf(&b, " (docs/%s)", row.Page)
			}
			fmt.Fprintf(&b, "\n")
		}
		if counts[outcome] > 0 {
			b.WriteByte('\n')
		}
	}
	fmt.Fprintf(&b, "%d settings: %d converted, %d not needed, %d by hand\n", len(r.Rows), counts[Converted], counts[NotNeeded], counts[ByHand])
	return b.String()
}

// builder collects the new files.
type builder struct {
	// closed: not every user may read a file that was looked for since text was added.
	closed bool
	conf   []assignment
	tables map[string]*draft
	order  []string
}

// draft is a File that is written.
type draft struct {
	name   string
	text   strings.Builder
	secret bool
}

// assignment is a line of zmailer.conf.
type assignment struct{ name, value, comment string }

func (b *builder) set(name, value, comment string) {
	a := assignment{name, value, comment}
	if i := slices.IndexFunc(b.conf, func(o assignment) bool { return o.name == name }); i >= 0 {
		b.conf[i] = a
		return
	}
	b.conf = append(b.conf, a)
}

// add appends text to a file.
func (b *builder) add(name, text string) {
	if b.tables == nil {
		b.tables = map[string]*draft{}
	}
	f := b.tables[name]
	if f == nil {
		f = &draft{name: name}
		b.tables[name] = f
		b.order = append(b.order, name)
	}
	f.text.WriteString(text)
	f.secret = f.secret || b.closed
	b.closed = false
}

// secret makes a file one of passwords, if there is one of that name.
func (b *builder) secret(name string) {
	if f := b.tables[name]; f != nil {
		f.secret = true
	}
}

// files returns what was collected.
func (b *builder) files(head string) []File {
	var conf strings.Builder
	conf.WriteString(head)
	for _, a := range b.conf {
		if a.comment != "" {
			fmt.Fprintf(&conf, "\n# %s\n", a.comment)
		}
		fmt.Fprintf(&conf, "%s=%s\n", a.name, quote(a.value))
	}
	list := []File{{Name: "zmailer.conf", Text: conf.String()}}
	for _, name := range b.order {
		f := b.tables[name]
		list = append(list, File{f.name, f.text.String(), f.secret})
	}
	return list
}

// quote puts a value with blanks into quotes.
func quote(value string) string {
	switch {
	case value != "" && !strings.ContainsAny(value, " \t'\"#$"):
		return value
	case !strings.Contains(value, `"`) && !strings.Contains(value, "$"):
		return `"` + value + `"`
	}
	return "'" + value + "'"
}
