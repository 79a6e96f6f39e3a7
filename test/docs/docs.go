// Package docs runs the commands that the documentation shows and compares what they print
// with what it says they print. A page is run in one shell, from top to bottom, in
// directories of its own, so that later commands go on with what earlier ones have left.
//
// What is run are fenced blocks of the kind console: lines that begin with "$ " are commands
// ("> " goes on with the one above), the others are their output. Values that differ from
// run to run (spool IDs, inode numbers, pids, times) need only be such values, and the ones
// that are shown may be used in later commands: the runner puts those of the run in their
// place. A line "..." stands for any lines, "..." in a line for any text. A last line "^C"
// is the reader's: the command is interrupted when the rest is printed.
//
// Comments tell what a reader need not see:
//
//	<!-- run: COMMAND -->      or several lines; it must succeed
//	<!-- file: PATH -->        the fenced block below is that file, and is written
//	<!-- not run: WHY -->      the block below is not run
//	<!-- root -->              the block below, and the rest of the page, need root
package docs

import (
	"fmt"
	"strings"
)

// kind is what a step is.
type kind int

const (
	shown  kind = iota // a command with its output
	hidden             // a command of a comment
	file               // a file to be written
	root               // from here on root is needed
)

// step is one thing that a page does.
type step struct {
	kind kind
	line int    // of the page, from 1
	text string // command, or content of the file
	want string // output; of a file its path
	bare bool   // nothing is shown: the next step is another command
}

// page is what a file of the documentation has to be run.
type page struct {
	steps  []step
	notRun []string // reasons for blocks that are left out
}

// parse takes a page apart.
func parse(text string) (page, error) {
	p := parser{lines: strings.Split(text, "\n")}
	for p.at < len(p.lines) {
		if err := p.next(); err != nil {
			return page{}, fmt.Errorf("line %d: %w", p.at+1, err)
		}
	}
	return p.page, nil
}

type parser struct {
	page
	lines []string
	at    int
	path  string // of the file that the next block is
	skip  string // why the next block is not run
}

// next takes a line, a comment or a block.
func (p *parser) next() error {
	line := p.lines[p.at]
	switch {
	case strings.HasPrefix(line, "<!--"):
		return p.comment()
	case strings.HasPrefix(line, "```"):
		return p.block(strings.TrimPrefix(line, "```"))
	}
	p.at++
	return nil
}

func (p *parser) comment() error {
	begin := p.at
	var list []string
	for ; p.at < len(p.lines); p.at++ {
		list = append(list, p.lines[p.at])
		if strings.Contains(p.lines[p.at], "-->") {
			break
		}
	}
	p.at++
	text := strings.Join(list, "\n")
	text, _, ok := strings.Cut(strings.TrimPrefix(text, "<!--"), "-->")
	if !ok {
		return fmt.Errorf("a comment without end")
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(text), ":")
	rest = strings.TrimSpace(rest)
	switch word {
	case "run":
		p.steps = append(p.steps, step{kind: hidden, line: begin + 1, text: rest})
	case "file":
		p.path = rest
	case "not run":
		p.skip = rest
		p.notRun = append(p.notRun, rest)
	case "root":
		p.steps = append(p.steps, step{kind: root, line: begin + 1})
	default:
		return fmt.Errorf("a comment that says nothing to the runner: %q", word)
	}
	return nil
}

func (p *parser) block(language string) error {
	begin := p.at
	var list []string
	for p.at++; p.at < len(p.lines) && !strings.HasPrefix(p.lines[p.at], "```"); p.at++ {
		list = append(list, p.lines[p.at])
	}
	if p.at == len(p.lines) {
		return fmt.Errorf("a block without end")
	}
	p.at++
	switch {
	case p.skip != "":
		p.skip = ""
	case p.path != "":
		p.steps = append(p.steps, step{kind: file, line: begin + 1, text: strings.Join(list, "\n") + "\n", want: p.path})
		p.path = ""
	case strings.TrimSpace(language) == "console":
		return p.commands(begin+2, list)
	}
	return nil
}

// commands takes the lines of a console block.
func (p *parser) commands(first int, list []string) error {
	for i := 0; i < len(list); {
		command, ok := strings.CutPrefix(list[i], "$ ")
		if !ok {
			return fmt.Errorf("output without a command: %q", list[i])
		}
		s := step{kind: shown, line: first + i, text: command}
		for i++; i < len(list) && (list[i] == ">" || strings.HasPrefix(list[i], "> ")); i++ {
			s.text += "\n" + strings.TrimPrefix(strings.TrimPrefix(list[i], ">"), " ")
		}
		var out []string
		for ; i < len(list) && !strings.HasPrefix(list[i], "$ "); i++ {
			out = append(out, list[i])
		}
		s.want, s.bare = strings.Join(out, "\n"), len(out) == 0
		p.steps = append(p.steps, s)
	}
	return nil
}
