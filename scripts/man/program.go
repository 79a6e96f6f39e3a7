package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"zmailer/internal/run/config"
)

// programPages returns the page of a program and those of its commands.
func programPages(p config.Program) []page {
	list := []page{programPage(p, p.Name, nil)}
	for _, c := range p.Commands {
		list = append(list, programPage(c, p.Name+"-"+c.Name, &p))
	}
	return list
}

// programPage returns the page of a program, or of a command of the program above it.
func programPage(p config.Program, name string, above *config.Program) page {
	var b strings.Builder
	b.WriteString("# SYNOPSIS\n\n")
	writeSynopsis(&b, p)
	about, exits := cutExits(p.Text)
	if above != nil && p.Text == "" {
		about = strings.ToUpper(p.Usage[:1]) + p.Usage[1:] + "."
	}
	fmt.Fprintf(&b, "# DESCRIPTION\n\n%s", prose(about))
	writeFlags(&b, "# OPTIONS", p.Flags, above == nil)
	if above == nil && len(p.Commands) > 0 {
		b.WriteString("# COMMANDS\n\n")
		for _, c := range p.Commands {
			fmt.Fprintf(&b, "**%s-%s**(8)\n: %s\n\n", plain(p.Name), plain(c.Name), plain(c.Usage))
		}
	}
	if above != nil {
		for _, c := range p.Commands {
			writeSubcommand(&b, name, c)
		}
	}
	writeExits(&b, exits)
	if above == nil {
		writeEnvironment(&b, p.Flags)
	}
	writeSeeAlso(&b, p, name, above)
	pg := page{name: name, section: 8, about: p.Usage, body: b.String()}
	for _, a := range p.Aliases {
		if above != nil {
			pg.also = append(pg.also, above.Name+"-"+a)
		}
	}
	return pg
}

func writeSynopsis(b *strings.Builder, p config.Program) {
	for i, line := range p.Synopsis {
		if i > 0 {
			b.WriteString("  \n")
		}
		first, rest, _ := strings.Cut(line, " ")
		fmt.Fprintf(b, "**%s** %s", plain(first), plain(rest))
	}
	b.WriteString("\n\n")
}

// writeSubcommand is a command of a command, like zmctl freezer thaw.
func writeSubcommand(b *strings.Builder, name string, c config.Program) {
	fmt.Fprintf(b, "# %s\n\n", strings.ToUpper(plain(c.Name)))
	fmt.Fprintf(b, "%s.\n\n", plain(strings.ToUpper(c.Usage[:1])+c.Usage[1:]))
	writeSynopsis(b, c)
	b.WriteString(prose(c.Text))
	writeFlags(b, "", c.Flags, false)
	for _, deeper := range c.Commands {
		writeSubcommand(b, name, deeper)
	}
}

// writeFlags writes flags in the order of the program, those that all programs have last.
func writeFlags(b *strings.Builder, heading string, flags []config.Flag, program bool) {
	if len(flags) == 0 && !program {
		return
	}
	if heading != "" {
		fmt.Fprintf(b, "%s\n\n", heading)
	}
	var common []string
	for _, f := range config.Flags() {
		common = append(common, f.Names()[0])
	}
	last := func(f config.Flag) bool { return slices.Contains(common, f.Names[0]) }
	own := slices.DeleteFunc(slices.Clone(flags), last)
	shared := slices.DeleteFunc(slices.Clone(flags), func(f config.Flag) bool { return !last(f) })
	if program {
		shared = append(shared, config.Flag{Names: []string{"help", "h"}, Usage: "show help"})
	}
	for _, f := range append(own, shared...) {
		writeFlag(b, f)
	}
}

func writeFlag(b *strings.Builder, f config.Flag) {
	var names []string
	for _, n := range f.Names {
		dashes := "--"
		if len(n) == 1 {
			dashes = "-"
		}
		name := "**" + plain(dashes+n) + "**"
		if f.Value != "" {
			name += " *" + plain(f.Value) + "*"
		}
		names = append(names, name)
	}
	fmt.Fprintf(b, "%s\n: %s", strings.Join(names, ", "), plain(refer(f.Usage)))
	if f.Default != "" {
		fmt.Fprintf(b, "; without it %s", plain(f.Default))
	}
	if f.Repeats {
		b.WriteString("; may be given several times")
	}
	if len(f.Env) > 0 {
		fmt.Fprintf(b, "; the environment's %s says the same", plain(strings.Join(f.Env, ", ")))
	}
	b.WriteString("\n\n")
}

func writeEnvironment(b *strings.Builder, flags []config.Flag) {
	heading := "# ENVIRONMENT\n\n"
	for _, f := range flags {
		for _, env := range f.Env {
			fmt.Fprintf(b, "%s**%s**\n: as **%s**\n\n", heading, plain(env), plain("--"+f.Names[0]))
			heading = ""
		}
	}
}

// cutExits takes what a text says of exit codes out of it.
func cutExits(text string) (rest, exits string) {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		at := strings.Index(p, "Exit codes:")
		if at < 0 {
			at = strings.Index(p, "Exit code:")
		}
		// A sentence behind it, or selecting flags below it, stay with the text.
		if at < 0 {
			continue
		}
		exits = strings.TrimSpace(p[at:])
		first, more, _ := strings.Cut(exits, "\n\n")
		exits = first
		paragraphs[i] = strings.TrimRight(p[:at]+more, " \n")
		if paragraphs[i] == "" {
			paragraphs = slices.Delete(paragraphs, i, i+1)
		}
		return strings.Join(paragraphs, "\n\n"), exits
	}
	return text, ""
}

// exitCode begins what is said of one code.
var exitCode = regexp.MustCompile(`(^|[,;] )(\d{1,2}) `)

// writeExits makes a list of "Exit codes: 0 done, 1 not done."; what cannot be parted
// stands as it is.
func writeExits(b *strings.Builder, text string) {
	if text == "" {
		return
	}
	b.WriteString("# EXIT STATUS\n\n")
	_, codes, _ := strings.Cut(text, ":")
	codes = strings.TrimSpace(strings.Join(strings.Fields(codes), " "))
	found := exitCode.FindAllStringSubmatchIndex(codes, -1)
	if len(found) == 0 || found[0][0] != 0 {
		fmt.Fprintf(b, "%s\n\n", prose(strings.TrimSpace(text)))
		return
	}
	for i, at := range found {
		end := len(codes)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		fmt.Fprintf(b, "**%s**\n: %s\n\n", codes[at[4]:at[5]], plain(strings.TrimRight(codes[at[1]:end], ".")))
	}
}

// mention is a document that a help text names.
var mention = regexp.MustCompile(`docs/([a-z.-]+)\.md|\b([a-z]+\.conf(?:\.md)?)\b`)

func writeSeeAlso(b *strings.Builder, p config.Program, name string, above *config.Program) {
	seen := []string{"**zmailer**(7)", "**zmailer.conf**(5)"}
	add := func(ref string) {
		if !slices.Contains(seen, ref) {
			seen = append(seen, ref)
		}
	}
	if above != nil {
		add("**" + plain(above.Name) + "**(8)")
	} else if name != "zmctl" {
		add("**zmctl**(8)")
	}
	texts := []string{p.Text}
	for _, f := range p.Flags {
		texts = append(texts, f.Usage)
	}
	for _, m := range mention.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		switch {
		case m[1] != "":
			e := place(m[1])
			add(fmt.Sprintf("**%s**(%d)", plain(e.name), e.section))
		case m[2] == "scheduler.conf":
			add("**scheduler.conf**(5)")
		}
	}
	slices.Sort(seen)
	fmt.Fprintf(b, "# SEE ALSO\n\n%s\n", strings.Join(seen, ",\n"))
}
