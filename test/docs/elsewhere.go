package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Elsewhere are commands that a page shows for another kind of machine than a test runs
// on. The page's side file says "not run: by TEST"; that test runs them.
type Elsewhere struct {
	steps []step
	match *matcher
}

// ForElsewhere returns the commands of a section of a page, also of blocks whose side file says
// "not run: by TEST". Docs is the directory of the pages.
func ForElsewhere(docs, name, title string) (*Elsewhere, error) {
	text, err := os.ReadFile(filepath.Join(docs, name))
	if err != nil {
		return nil, err
	}
	lines, err := pageLines(filepath.Join(docs, "../test/docs", sides), name, string(text))
	if err != nil {
		return nil, err
	}
	var section []numbered
	in := false
	for _, l := range lines {
		if strings.HasPrefix(l.text, "## ") {
			in = l.text == "## "+title
		}
		if in && !strings.HasPrefix(l.text, "<!-- not run: by ") {
			section = append(section, l)
		}
	}
	p, err := parseLines(section)
	if err != nil {
		return nil, err
	}
	for _, s := range p.steps {
		if s.kind != shown && s.kind != hidden {
			return nil, fmt.Errorf("line %d: only commands are run elsewhere", s.line)
		}
	}
	if len(p.steps) == 0 {
		return nil, fmt.Errorf("it shows no commands")
	}
	return &Elsewhere{steps: p.steps, match: newMatcher()}, nil
}

// Run runs them, one after the other, each by a shell of its own that command returns, and
// returns the error of the first that does not do or print what the page shows.
func (e *Elsewhere) Run(command func(text string) *exec.Cmd) error {
	for _, s := range e.steps {
		for end := time.Now().Add(settling); ; <-time.After(100 * time.Millisecond) {
			out, err := command(e.match.real(s.text)).CombinedOutput()
			same := s.kind == hidden
			if !same {
				var merr error
				if same, merr = e.match.match(s.want, string(out)); merr != nil {
					return merr
				}
			}
			if same && err == nil {
				break
			}
			if !looks(s.text) || time.Now().After(end) {
				return fmt.Errorf("$ %s\ngot (%v)\n%s\nwant\n%s", s.text, err, out, s.want)
			}
		}
	}
	return nil
}
