package config

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// printApp is the argument that has a program describe itself in place of running: alone,
// and not shown in its help. The manual pages are made from it.
const printApp = "--print-app"

// Program describes a program, or one of its commands, for help and manual pages.
type Program struct {
	Name     string    `json:"name"`
	Aliases  []string  `json:"aliases,omitempty"`
	Usage    string    `json:"usage"`
	Synopsis []string  `json:"synopsis"` // one line for each form
	Text     string    `json:"text,omitempty"`
	Flags    []Flag    `json:"flags,omitempty"`
	Commands []Program `json:"commands,omitempty"`
}

// Flag is one of a program's flags.
type Flag struct {
	Names   []string `json:"names"`           // without dashes
	Value   string   `json:"value,omitempty"` // what its value is called; "" if it has none
	Usage   string   `json:"usage"`           // contains the name of the value
	Default string   `json:"default,omitempty"`
	Env     []string `json:"env,omitempty"`
	Repeats bool     `json:"repeats,omitempty"`
}

// Describe describes an app without its hidden flags and commands.
func Describe(app *cli.App) Program {
	return Program{
		Name: app.Name, Usage: app.Usage, Synopsis: synopsis(app.UsageText), Text: app.Description,
		Flags: describeFlags(app.Flags), Commands: describeCommands(app.Commands),
	}
}

func describeCommands(commands []*cli.Command) []Program {
	var list []Program
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		list = append(list, Program{
			Name: c.Name, Aliases: c.Aliases, Usage: c.Usage, Synopsis: synopsis(c.UsageText), Text: c.Description,
			Flags: describeFlags(c.Flags), Commands: describeCommands(c.Subcommands),
		})
	}
	return list
}

func describeFlags(flags []cli.Flag) []Flag {
	var list []Flag
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if v, hides := f.(cli.VisibleFlag); !ok || hides && !v.IsVisible() {
			continue
		}
		flag := Flag{Names: f.Names(), Env: d.GetEnvVars()}
		flag.Value, flag.Usage = placeholder(d.GetUsage())
		if d.TakesValue() && flag.Value == "" {
			flag.Value = "VALUE"
		} else if !d.TakesValue() {
			flag.Value = ""
		}
		if s, ok := f.(cli.DocGenerationSliceFlag); ok {
			flag.Repeats = s.IsSliceFlag()
		}
		if d.TakesValue() {
			flag.Default = shortDefault(d.GetDefaultText())
		}
		list = append(list, flag)
	}
	return list
}

// placeholder takes the `NAME` of a flag's value out of its quotes.
func placeholder(usage string) (name, plain string) {
	before, rest, ok := strings.Cut(usage, "`")
	if !ok {
		return "", usage
	}
	name, after, ok := strings.Cut(rest, "`")
	if !ok {
		return "", usage
	}
	return name, before + name + after
}

// shortDefault writes a default in short form, "" for an empty one.
func shortDefault(text string) string {
	text = strings.Trim(text, `"`)
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	switch text {
	case "0", "0s", "false", "[]":
		return ""
	}
	return text
}

// synopsis takes the forms of a usage apart, one a line.
func synopsis(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			list = append(list, line)
		}
	}
	return list
}

// writeApp writes an app's description as JSON.
func writeApp(w io.Writer, app *cli.App) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(Describe(app))
}
