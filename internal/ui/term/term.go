// Package term is what a command's text looks like on a terminal: colours with one
// meaning in all commands, the width, and tables whose columns stay straight with colours
// in them. In a pipe or a file there is neither colour nor width.
//
// What survives a crash: it keeps nothing. Each colour is ended on the line it began on,
// so that a program that is killed leaves the terminal as it was.
//
// Diagnostics: only Table.Flush fails, with what its writer answered.
package term

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Paint colours text, or leaves it; the zero value leaves it.
type Paint bool

// Variables of the environment that decide, whatever is written to.
const (
	Never  = "NO_COLOR"       // no-color.org
	Always = "CLICOLOR_FORCE" // bixense.com/clicolors
)

// For returns how text to a writer is coloured: on a terminal alone, and not where TERM=dumb
// means that it cannot. NO_COLOR and CLICOLOR_FORCE of the environment go before.
func For(w io.Writer) Paint {
	switch {
	case os.Getenv(Never) != "":
		return false
	case os.Getenv(Always) != "" && os.Getenv(Always) != "0":
		return true
	}
	return Paint(os.Getenv("TERM") != "dumb" && Terminal(w))
}

type passing interface{ To() io.Writer }

// file returns where a writer ends; nil if that is no file.
func file(w io.Writer) *os.File {
	for {
		if f, ok := w.(*os.File); ok {
			return f
		}
		p, ok := w.(passing)
		if !ok {
			return nil
		}
		w = p.To()
	}
}

// Terminal reports whether a writer ends at a terminal.
func Terminal(w io.Writer) bool {
	f := file(w)
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Width returns how many columns the terminal has that a writer ends at; 0: it is none, or
// does not say.
func Width(w io.Writer) int {
	f := file(w)
	if f == nil {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// Room returns how long text may be behind used columns: what is left of the
// terminal's line, at least some words; where there is no terminal, otherwise.
func Room(w io.Writer, used, otherwise int) int {
	width := Width(w)
	if width == 0 {
		return otherwise
	}
	return max(width-used, leastRoom)
}

// leastRoom is what text gets on a narrow terminal, too.
const leastRoom = 32

// in puts text between a code of ECMA-48 and its end, line by line.
func (p Paint) in(code, text string) string {
	if !p || strings.TrimSpace(text) == "" {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		body := strings.TrimRight(line, "\n")
		if body != "" {
			b.WriteString("\x1b[" + code + "m" + body + "\x1b[0m")
		}
		b.WriteString(line[len(body):])
	}
	return b.String()
}

// Red is for an operator to act on: trouble, failures, frozen mail.
func (p Paint) Red(text string) string { return p.in("31", text) }

// Yellow returns what waits, or is worth a look.
func (p Paint) Yellow(text string) string { return p.in("33", text) }

// Green is for success.
func (p Paint) Green(text string) string { return p.in("32", text) }

// Bold returns a name that can be typed: a spool ID, an order; and the line over a table.
func (p Paint) Bold(text string) string { return p.in("1", text) }

// Heading returns the line over a table, cell by cell.
func (p Paint) Heading(cells string) string {
	if !p {
		return cells
	}
	parts := strings.Split(cells, "\t")
	for i := range parts {
		parts[i] = p.Bold(parts[i])
	}
	return strings.Join(parts, "\t")
}

// Faint returns what the eye may pass over.
func (p Paint) Faint(text string) string { return p.in("2", text) }

// State colours text by a word of the log, of a recipient, a thread or a daemon.
func (p Paint) State(word, text string) string {
	switch word {
	case "failed", "expired", "frozen", "unserved", "unknown-channel", "trouble", "problem", "lost", "gone", "unknown", "no", "rejected":
		return p.Red(text)
	case "waiting", "deferred", "delayed", "held", "hold", "locked by the dead", "throttled", "probing", "paused", "no-place", "suspended":
		return p.Yellow(text)
	case "delivered", "finished", "yes":
		return p.Green(text)
	case "removed", "rerouted":
		return p.Faint(text)
	}
	return text
}
