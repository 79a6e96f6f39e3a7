package config

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst puts the flags of a command before its arguments, because operators type them
// behind as well and the library takes those for arguments. What it does not know it
// leaves as it is, for the library to complain about.
func flagsFirst(app *cli.App, args []string) []string {
	at := 1
	for at < len(args) && isFlag(args[at]) {
		n := width(app.Flags, args[at])
		if n == 0 {
			return args
		}
		at += n
	}
	if at >= len(args) {
		return args
	}
	command := app.Command(args[at])
	if command == nil || len(command.Subcommands) > 0 {
		return args
	}
	known := slices.Concat(command.Flags, []cli.Flag{cli.HelpFlag})
	var flags, rest []string
	for i := at + 1; i < len(args); {
		if args[i] == "--" {
			rest = append(rest, args[i:]...)
			break
		}
		if !isFlag(args[i]) {
			rest = append(rest, args[i])
			i++
			continue
		}
		n := width(known, args[i])
		if n == 0 || i+n > len(args) {
			return args
		}
		flags = append(flags, args[i:i+n]...)
		i += n
	}
	return slices.Concat(args[:at+1], flags, rest)
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

// width returns how many words a flag takes, 0 if it is none of these.
func width(flags []cli.Flag, arg string) int {
	name, _, valued := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	for _, f := range flags {
		if !slices.Contains(f.Names(), name) {
			continue
		}
		if _, alone := f.(*cli.BoolFlag); alone || valued {
			return 1
		}
		return 2
	}
	return 0
}
