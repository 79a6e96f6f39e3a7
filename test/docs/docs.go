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
// What a reader need not see is in the page's side file, pages/NAME.md.txt: comments, each
// below a line "=== before LINE", which names the block that they precede by its first line
// ("=== before 2: LINE" is the second such block from there on), or "=== at the end":
//
//	<!-- system: SETTINGS -->  a mail system is made and runs from here on: system.sh says
//	                           which; SETTINGS are lines of its zmailer.conf, or nothing
//	<!-- run: COMMAND -->      or several lines; it must succeed. "host 127.0.0.1:2626" is
//	                           another host's SMTP server from here on, see
//	                           host.go for more; "mail
//	                           127.0.0.1:2626 2 DIR" waits until it has had two messages and
//	                           writes them into DIR/1 and DIR/2, in the order of their
//	                           senders; "names 127.0.0.1:2628" is a name server, with a zone in
//	                           the lines below, or in the file whose path stands behind it;
//	                           "source FROM TO" copies a directory of the sources
//	<!-- wait: COMMAND -->     it is given again until it succeeds
//	<!-- file: PATH -->        the block below is that file, and is written
//	<!-- dialogue: ADDRESS --> the block below is what a client (C:) says to that address and
//	                           the server (S:) answers; ADDRESS may be a socket's path
//	<!-- not run: WHY -->      the block below is not run
//	<!-- needs: PROGRAM -->    the rest of the page is for machines that have it
//	<!-- root -->              the block below, and the rest of the page, need root
//
// The block below is fenced, or indented by four blanks; nothing but blank lines is between.
// TestEveryCommandIsRun reports commands of a page that are none of these: they were never
// run.
//
// Diagnostics: a test fails with the page's line and what came instead.
package docs

import (
	"fmt"
	"strings"
)

// kind is what a step is.
type kind int

const (
	shown    kind = iota // a command with its output
	hidden               // a command of a comment
	file                 // a file to be written
	root                 // from here on root is needed
	system               // a mail system is to run
	wait                 // a command that succeeds in the end
	dialogue             // what client and server say
	needs                // from here on a program is needed
)

// step is one thing that a page does.
type step struct {
	kind kind
	line int    // of the page, from 1
	text string // command, or content of the file
	want string // output; of a file its path, of a dialogue its address
	bare bool   // nothing is shown: the next step is another command
}

// page is what a file of the documentation has to be run.
type page struct {
	steps  []step
	notRun []string // reasons for blocks that are left out
	loose  []step   // commands that nothing runs
}

func parseLines(lines []numbered) (page, error) {
	p := parser{}
	for _, l := range lines {
		p.lines, p.numbers = append(p.lines, l.text), append(p.numbers, l.n)
	}
	for p.at < len(p.lines) {
		if err := p.next(); err != nil {
			return page{}, fmt.Errorf("line %d: %w", p.numbers[min(p.at, len(p.lines)-1)], err)
		}
	}
	if p.above != "" {
		return page{}, fmt.Errorf("a comment %q without a block", p.above)
	}
	return p.page, nil
}

type parser struct {
	page
	lines   []string
	numbers []int // in the page's file
	at      int
	above   string // the word of the comment that the next block is meant by
	path    string // what it says: a path, an address, a reason
}

// next takes a line, a comment or a block.
func (p *parser) next() error {
	line := p.lines[p.at]
	switch {
	case strings.HasPrefix(line, "<!--"):
		return p.comment()
	case strings.HasPrefix(line, "```"):
		return p.fenced(strings.TrimPrefix(line, "```"))
	case strings.HasPrefix(line, indent) && strings.TrimSpace(line) != "":
		return p.indented()
	case p.above != "" && strings.TrimSpace(line) != "":
		return fmt.Errorf("no block follows the comment %q", p.above)
	case strings.HasPrefix(line, "$ "):
		p.loose = append(p.loose, step{line: p.numbers[p.at], text: line})
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
	if k, ok := map[string]kind{"run": hidden, "root": root, "system": system, "wait": wait, "needs": needs}[word]; ok {
		p.steps = append(p.steps, step{kind: k, line: p.numbers[begin], text: rest})
		return nil
	}
	switch word {
	case "file", "dialogue", "not run":
		if rest == "" || p.above != "" {
			return fmt.Errorf("a comment %q that says nothing, or below another one", word)
		}
		p.above, p.path = word, rest
		return nil
	case "bench -peers", // begin and end of what scripts/bench writes
		"Written by": // the test that writes what follows
		return nil
	}
	return fmt.Errorf("a comment that says nothing to the runner: %q", word)
}

// fenced takes a block between backquotes.
func (p *parser) fenced(language string) error {
	begin := p.at
	var list []string
	for p.at++; p.at < len(p.lines) && !strings.HasPrefix(p.lines[p.at], "```"); p.at++ {
		list = append(list, p.lines[p.at])
	}
	if p.at == len(p.lines) {
		return fmt.Errorf("a block without end")
	}
	p.at++
	if p.above == "" && strings.TrimSpace(language) == "console" {
		return p.commands(p.numbers[begin]+1, list)
	}
	p.block(p.numbers[begin]+1, list)
	return nil
}

const indent = "    "

// indented takes a block whose lines begin with four blanks.
func (p *parser) indented() error {
	begin := p.at
	var list []string
	for ; p.at < len(p.lines); p.at++ {
		line := p.lines[p.at]
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, indent) {
			break
		}
		list = append(list, strings.TrimPrefix(line, indent))
	}
	for list[len(list)-1] == "" {
		list = list[:len(list)-1]
	}
	p.block(p.numbers[begin], list)
	return nil
}

// block takes what the comment above it says, or looks for commands in it.
func (p *parser) block(first int, list []string) {
	s := step{line: first, text: strings.Join(list, "\n") + "\n", want: p.path}
	switch p.above {
	case "file":
		s.kind = file
		p.steps = append(p.steps, s)
	case "dialogue":
		s.kind = dialogue
		p.steps = append(p.steps, s)
	case "not run":
		p.notRun = append(p.notRun, p.path)
	default:
		p.loose = append(p.loose, loose(first, list)...)
	}
	p.above, p.path = "", ""
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
