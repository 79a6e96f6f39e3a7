package main

import (
	"io"
	"os"
	"strings"
)

// paint colours text, on a terminal alone: not in a pipe or a file, and not where
// NO_COLOR is set (no-color.org) or TERM=dumb says that the terminal cannot.
type paint bool

func paintFor(w io.Writer) paint {
	f, ok := w.(*os.File)
	return paint(ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && terminal(f))
}

// in puts text between a code of ECMA-48 and its end, line by line.
func (p paint) in(code, text string) string {
	if !p || text == "" {
		return text
	}
	body := strings.TrimRight(text, "\n")
	return "\x1b[" + code + "m" + body + "\x1b[0m" + text[len(body):]
}

func (p paint) red(text string) string    { return p.in("31", text) }
func (p paint) yellow(text string) string { return p.in("33", text) }
func (p paint) green(text string) string  { return p.in("32", text) }
func (p paint) bold(text string) string   { return p.in("1", text) }
func (p paint) faint(text string) string  { return p.in("2", text) }
