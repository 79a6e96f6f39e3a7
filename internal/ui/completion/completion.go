// Package completion writes scripts that make a shell complete the commands and flags of a
// program. It owns nothing.
//
// Diagnostics: Script returns false for a shell that it does not know.
package completion

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
)

// Shells returns the shells that Script knows.
func Shells() []string { return []string{"bash", "zsh", "fish"} }

// Script returns the script for a shell.
func Script(app *cli.App, shell string) (text string, ok bool) {
	write := map[string]func([]*lineEnd) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[shell]
	if write == nil {
		return "", false
	}
	return write(lineEnds(app)), true
}

// lineEnd is what may follow some words of a command line.
type lineEnd struct {
	command, sub string // "" at the start
	commands     []offer
	flags        []offer
	args         string // the arguments: "daemons", "ids", "files", "shells" or ""
}

// offer is a word with its meaning.
type offer struct {
	word, meaning string
	valued        bool // a value follows
	file          bool // and it is a file's name
}

// lineEnds lists them all, the start first.
func lineEnds(app *cli.App) []*lineEnd {
	start := &lineEnd{commands: commandOffers(app.Commands), flags: flagOffers(app.Flags)}
	list := []*lineEnd{start}
	for _, c := range app.Commands {
		if c.Hidden {
			continue
		}
		list = append(list, &lineEnd{command: c.Name, commands: commandOffers(c.Subcommands), flags: flagOffers(c.Flags), args: arguments(c)})
		for _, s := range c.Subcommands {
			list = append(list, &lineEnd{command: c.Name, sub: s.Name, flags: flagOffers(s.Flags), args: arguments(s)})
		}
	}
	return list
}

// arguments returns the kind of arguments that the usage of a command shows.
func arguments(c *cli.Command) string {
	switch {
	case strings.Contains(c.UsageText, "[DAEMON...]"):
		return "daemons"
	case strings.Contains(c.UsageText, "ID..."):
		return "ids"
	case strings.Contains(c.UsageText, "FILE") || strings.Contains(c.UsageText, "PATH"):
		return "files"
	case strings.Contains(c.UsageText, "bash|zsh|fish"):
		return "shells"
	}
	return ""
}

func commandOffers(list []*cli.Command) []offer {
	var all []offer
	for _, c := range list {
		if !c.Hidden {
			all = append(all, offer{word: c.Name, meaning: c.Usage})
		}
	}
	return all
}

func flagOffers(list []cli.Flag) []offer {
	all := []offer{{word: "--help", meaning: "show help"}}
	for _, f := range list {
		if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() {
			continue
		}
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		_, rest, _ := strings.Cut(doc.GetUsage(), "`")
		value, _, named := strings.Cut(rest, "`")
		all = append(all, offer{
			word: dashed(f.Names()[0]), meaning: strings.ReplaceAll(doc.GetUsage(), "`", ""), valued: doc.TakesValue(),
			file: named && (value == "FILE" || value == "DIR"),
		})
	}
	return all
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// valued returns the flags that take a value.
func valued(p *lineEnd) []string {
	var all []string
	for _, f := range p.flags {
		if f.valued {
			all = append(all, f.word)
		}
	}
	return all
}

// files returns the flags that take the name of a file, of all commands.
func files(list []*lineEnd) []string {
	var all []string
	for _, p := range list {
		for _, f := range p.flags {
			if f.file && !slices.Contains(all, f.word) {
				all = append(all, f.word)
			}
		}
	}
	return all
}

// shellWord quotes for bash, zsh and fish.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func onlyWords(list []offer) []string {
	var all []string
	for _, o := range list {
		all = append(all, o.word)
	}
	return all
}

// queuedIDs prints the spool IDs of queued mail.
const queuedIDs = `zmctl queue 2>/dev/null | sed -n 's/^\(S[0-9A-Za-z_-]*\) .*/\1/p' | head -n 200`

// withSubs returns the commands that have subcommands.
func withSubs(list []*lineEnd) (names []string) {
	for _, p := range list {
		if p.sub != "" && !slices.Contains(names, p.command) {
			names = append(names, p.command)
		}
	}
	return names
}

func bashCompletion(list []*lineEnd) string {
	var b strings.Builder
	b.WriteString("# bash completion for zmctl; made by zmctl completion bash\n_zmctl() {\n")
	b.WriteString("  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd= sub= i words= args= w\n")
	fmt.Fprintf(&b, "  for ((i = 1; i < COMP_CWORD; i++)); do\n    w=${COMP_WORDS[i]}\n    case $w in\n")
	fmt.Fprintf(&b, "    %s) [ -n \"$cmd\" ] || i=$((i + 1)) ;;\n", strings.Join(valued(list[0]), "|"))
	b.WriteString("    -*) ;;\n    *) if [ -z \"$cmd\" ]; then cmd=$w; elif [ -z \"$sub\" ]; then sub=$w; fi ;;\n    esac\n  done\n")
	fmt.Fprintf(&b, "  case $prev in\n  %s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n  esac\n", strings.Join(files(list), "|"))
	fmt.Fprintf(&b, "  case $cmd in\n  %s) ;;\n  *) sub= ;;\n  esac\n", strings.Join(withSubs(list), "|"))
	b.WriteString("  case \"$cmd/$sub\" in\n")
	for _, p := range list {
		fmt.Fprintf(&b, "  %s/%s) words=%s args=%s ;;\n", p.command, p.sub,
			shellWord(strings.Join(append(onlyWords(p.commands), onlyWords(p.flags)...), " ")), p.args)
	}
	b.WriteString("  esac\n  case $args in\n")
	fmt.Fprintf(&b, "  daemons) words=\"$words %s\" ;;\n  shells) words=\"$words bash zsh fish\" ;;\n", strings.Join(service.Daemons(), " "))
	fmt.Fprintf(&b, "  ids) case $cur in S*) words=\"$words $(%s)\" ;; esac ;;\n", queuedIDs)
	b.WriteString("  files) case $cur in -*) ;; *) COMPREPLY=($(compgen -f -- \"$cur\")); return ;; esac ;;\n  esac\n")
	b.WriteString("  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -F _zmctl zmctl\n")
	return b.String()
}

func zshCompletion(list []*lineEnd) string {
	var b strings.Builder
	b.WriteString("#compdef zmctl\n# made by zmctl completion zsh\n_zmctl() {\n  local cmd= sub= args= none=1 w i\n  local -a offers flags\n")
	b.WriteString("  for ((i = 2; i < CURRENT; i++)); do\n    w=${words[i]}\n    case $w in\n")
	fmt.Fprintf(&b, "    (%s) [[ -n $cmd ]] || ((i++)) ;;\n", strings.Join(valued(list[0]), "|"))
	b.WriteString("    (-*) ;;\n    (*) if [[ -z $cmd ]]; then cmd=$w; elif [[ -z $sub ]]; then sub=$w; fi ;;\n    esac\n  done\n")
	fmt.Fprintf(&b, "  case ${words[CURRENT-1]} in\n  (%s) _files; return ;;\n  esac\n", strings.Join(files(list), "|"))
	fmt.Fprintf(&b, "  case $cmd in\n  (%s) ;;\n  (*) sub= ;;\n  esac\n  case \"$cmd/$sub\" in\n", strings.Join(withSubs(list), "|"))
	described := func(list []offer) string {
		var all []string
		for _, o := range list {
			all = append(all, shellWord(strings.ReplaceAll(o.word, ":", `\:`)+":"+o.meaning))
		}
		return strings.Join(all, " ")
	}
	for _, p := range list {
		fmt.Fprintf(&b, "  (%s/%s)\n    offers=(%s)\n    flags=(%s)\n    args=%s ;;\n", p.command, p.sub, described(p.commands), described(p.flags), p.args)
	}
	fmt.Fprintf(&b, "  esac\n  case $args in\n  (daemons) offers+=(%s) ;;\n  (shells) offers+=(bash zsh fish) ;;\n", strings.Join(service.Daemons(), " "))
	fmt.Fprintf(&b, "  (ids) [[ ${words[CURRENT]} == S* ]] && offers+=(${(f)\"$(%s)\"}) ;;\n  (files) [[ ${words[CURRENT]} == -* ]] || { _files; return } ;;\n  esac\n", queuedIDs)
	b.WriteString("  (( $#offers )) && _describe -t commands command offers && none=0\n  [[ ${words[CURRENT]} == -* ]] && _describe -o -t flags flag flags && none=0\n  return none\n}\n")
	b.WriteString("if [[ $funcstack[1] == _zmctl ]]; then _zmctl \"$@\"; else compdef _zmctl zmctl; fi\n")
	return b.String()
}

func fishCompletion(list []*lineEnd) string {
	var b strings.Builder
	b.WriteString("# fish completion for zmctl; made by zmctl completion fish\ncomplete -c zmctl -f\n")
	for _, p := range list {
		when := "__fish_use_subcommand"
		if p.command != "" {
			when = "__fish_seen_subcommand_from " + p.command
		}
		if p.sub != "" {
			when += "; and __fish_seen_subcommand_from " + p.sub
		}
		for _, o := range p.commands {
			fmt.Fprintf(&b, "complete -c zmctl -n %s -a %s -d %s\n", fishWord(when), o.word, fishWord(o.meaning))
		}
		for _, o := range p.flags {
			fmt.Fprintf(&b, "complete -c zmctl -n %s %s -d %s\n", fishWord(when), fishFlag(o), fishWord(o.meaning))
		}
		switch p.args {
		case "daemons":
			fmt.Fprintf(&b, "complete -c zmctl -n %s -a %s\n", fishWord(when), fishWord(strings.Join(service.Daemons(), " ")))
		case "shells":
			fmt.Fprintf(&b, "complete -c zmctl -n %s -a 'bash zsh fish'\n", fishWord(when))
		case "ids":
			fmt.Fprintf(&b, "complete -c zmctl -n %s -a %s\n", fishWord(when), fishWord("("+queuedIDs+")"))
		case "files":
			fmt.Fprintf(&b, "complete -c zmctl -n %s -F\n", fishWord(when))
		}
	}
	return b.String()
}

func fishFlag(o offer) string {
	s := "-l " + strings.TrimPrefix(o.word, "--")
	if !strings.HasPrefix(o.word, "--") {
		s = "-s " + strings.TrimPrefix(o.word, "-")
	}
	switch {
	case o.file:
		return s + " -r -F"
	case o.valued:
		return s + " -x"
	}
	return s
}

// fishWord quotes for fish, whose single quotes know \\ and \'.
func fishWord(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
