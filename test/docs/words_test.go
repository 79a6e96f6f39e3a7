package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/config"
)

// known asks each program what it is.
func known(t *testing.T) map[string]config.Program {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(bin, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	programs := map[string]config.Program{}
	for _, file := range files {
		out, err := exec.Command(file, "--print-app").Output()
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var p config.Program
		if err := json.Unmarshal(out, &p); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		programs[p.Name] = p
	}
	return programs
}

// span is code in a text or a line of an example.
var span = regexp.MustCompile("`([^`\n]+)`")

// commandLines returns all that a page shows of our programs.
func commandLines(text string) []string {
	var list []string
	fence := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fence = !fence
		case fence || strings.HasPrefix(line, "    "):
			list = append(list, strings.TrimPrefix(strings.TrimPrefix(trimmed, "$ "), "# "))
		default:
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				list = append(list, m[1])
			}
		}
	}
	return list
}

// A command or flag that a page mentions is one that there is.
func TestPagesNameCommandsAndFlagsThatThereAre(t *testing.T) {
	programs := known(t)
	for name, text := range documents(t) {
		for _, line := range commandLines(text) {
			if wrong := checkLine(programs, line); wrong != "" {
				t.Errorf("%s: %s: %s", name, line, wrong)
			}
		}
	}
}

// checkLine returns what is wrong with a command line; nothing if it is none of ours, or
// has placeholders.
func checkLine(programs map[string]config.Program, line string) string {
	words := strings.Fields(line)
	for len(words) > 0 && strings.Contains(words[0], "=") {
		words = words[1:]
	}
	if len(words) < 2 {
		return ""
	}
	at, ok := programs[words[0]]
	if !ok || at.Name == "submit" {
		return "" // submit takes sendmail's options, whatever they are
	}
	levels := []config.Program{at}
	for i := 1; i < len(words); i++ {
		word := words[i]
		switch {
		case strings.ContainsAny(word, "|;&<>#'\"`$") || word == "...":
			return "" // the shell's
		case strings.HasPrefix(word, "-"):
			name, _, valued := strings.Cut(strings.TrimLeft(strings.TrimRight(word, ",."), "-"), "=")
			f, ok := findFlag(levels, name)
			if !ok {
				return "there is no flag " + word
			}
			if f.Value != "" && !valued {
				i++
			}
		case len(levels[len(levels)-1].Commands) > 0:
			if strings.Trim(word, "abcdefghijklmnopqrstuvwxyz-") != "" {
				return "" // zmctl VERB
			}
			c := slices.IndexFunc(levels[len(levels)-1].Commands, func(c config.Program) bool {
				return c.Name == word || slices.Contains(c.Aliases, word)
			})
			if c < 0 {
				return "there is no command " + word
			}
			levels = append(levels, levels[len(levels)-1].Commands[c])
		}
	}
	return ""
}

// findFlag finds a flag of the command, or of one above it.
func findFlag(levels []config.Program, name string) (config.Flag, bool) {
	if name == "help" || name == "h" || name == "version" || name == "" {
		return config.Flag{}, true
	}
	for _, p := range levels {
		for _, f := range p.Flags {
			if slices.Contains(f.Names, name) {
				return f, true
			}
			// -FHS is three flags.
			if len(name) > 1 && len(f.Names[0]) == 1 && strings.Contains(name, f.Names[0]) && strings.Trim(name, shorts(p)) == "" {
				return config.Flag{}, true
			}
		}
	}
	return config.Flag{}, false
}

// shorts returns a program's flags of one letter.
func shorts(p config.Program) string {
	var all string
	for _, f := range p.Flags {
		if len(f.Names[0]) == 1 {
			all += f.Names[0]
		}
	}
	return all
}

// A page that another one links to is there.
func TestPagesLinkToPagesThatThereAre(t *testing.T) {
	target := regexp.MustCompile(`\]\(([\w./-]+)(#[\w-]+)?\)`)
	for name, text := range documents(t) {
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("../../docs", filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to a file that does not exist: %v", name, err)
			}
		}
	}
}
