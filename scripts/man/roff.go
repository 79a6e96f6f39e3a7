package main

import (
	"fmt"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

// roff returns the page as man(1) reads it.
func (p page) roff(date string) []byte {
	names := strings.Join(append([]string{p.name}, p.also...), ", ")
	about := strings.NewReplacer("`", "", "*", "", "<", "", ">", "").Replace(p.about)
	text := fmt.Sprintf("# %s %d %q \"zmailer\" \"zmailer manual\"\n\n# NAME\n\n%s - %s\n\n%s",
		strings.ToUpper(p.name), p.section, date, names, about, p.body)
	return []byte(literal(string(md2man.Render([]byte(text)))))
}

// literal writes what stands for itself, code and names in bold, so that it can be copied:
// roff makes typographic signs of some characters otherwise.
func literal(roff string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(roff) {
		switch {
		case strings.HasPrefix(line, ".TH "):
			// Words that are to be copied are not parted, and lines not stretched.
			line += ".nh\n.ad l\n"
		case line == ".EX\n":
			code = true
			line = ".RS 4\n" + line
		case line == ".EE\n":
			code = false
			line += ".RE\n"
		case code:
			line = copyable(line)
		case !strings.HasPrefix(line, "."):
			line = boldParts(line)
		}
		b.WriteString(line)
	}
	return b.String()
}

// boldParts has what is bold in a line copyable.
func boldParts(line string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(line, `\fB`)
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		end := strings.Index(rest, `\f`)
		if end < 0 {
			end = len(rest)
		}
		b.WriteString(`\fB` + copyable(rest[:end]))
		line = rest[end:]
	}
}

var signs = strings.NewReplacer(`\-`, `\-`, `\\`, `\\`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

func copyable(text string) string { return signs.Replace(text) }
