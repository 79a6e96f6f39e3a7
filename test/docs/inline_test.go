package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/config"
)

// stands are words that stand for others in texts, with ones that a command takes.
var stands = map[string]string{
	"ID": "S9977890A28CaS0WVYQu", "HOST": "far.example", "IP": "192.0.2.66", "DIR": "/etc/zmailer", "FILE": "/etc/zmailer/routes",
	"ADDRESS": "bob@far.example", "SENDER": "bob@far.example", "RCPT": "bob@far.example", "X": "far.example",
	"TIME": "1h", "AGE": "1h", "N": "3", "USER": "alice", "TABLE": "aliases", "SHELL": "bash", "PATH": "/srv",
	"ORDER": "20261121-064943-remove-28501",
}

// short are answers to a line that is right as far as it goes: it names a thing that the
// system here does not have, or leaves out which messages it is for.
var short = regexp.MustCompile(`no such |no message in |no order is named|needs a name|want a domain|want the directory|does not say to whom|needs a domain|no terminal to ask on|--client is required`)

// talks are commands that go on, or change more than this test may.
var talks = []string{"run", "start", "stop", "restart", "web", "top", "help", "freeze-service", "thaw-service"}

// A command line that stands in a text is one that zmctl takes: it is given to the real
// program, in a system that has a message, and may fail for all but its arguments.
func TestCommandsInTextsAreTaken(t *testing.T) {
	t.Parallel()
	lines := map[string][]string{} // line → pages
	for name, text := range documents(t) {
		for _, line := range inline(text) {
			lines[line] = append(lines[line], name)
		}
	}
	for _, line := range examples(known(t)["zmctl"]) {
		lines[line] = append(lines[line], "--help")
	}
	dir := t.TempDir()
	open755(t, dir)
	as, credential := whoever(t, false)
	r, err := begin("texts", dir, bin, as, credential)
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	if err := r.hidden(step{kind: system}); err != nil {
		t.Fatal(err)
	}
	if ok, err := r.match.match("S9977890A28CaS0WVYQu", must(t, r, "submit --id -f bob@mta.example ann@far.example")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for line, pages := range lines {
		command := replaced(line)
		if out, code := r.give(t, command); code == config.ExitUsage && !short.MatchString(out) {
			// A text that speaks of a verb may leave out which messages.
			if _, code := r.give(t, command+" "+stands["ID"]); code == config.ExitUsage {
				t.Errorf("%s: %s: %s", strings.Join(pages, ", "), line, out)
			}
		}
	}
	if len(lines) < 50 {
		t.Errorf("%d command lines are found: these cannot be all", len(lines))
	}
}

func must(t *testing.T, r *run, command string) string {
	t.Helper()
	out, code, err := r.shell.run(command+" </dev/null", patience)
	if err != nil || code != 0 {
		t.Fatalf("%s: exit code %d, %v\n%s", command, code, err, out)
	}
	return out
}

func (r *run) give(t *testing.T, command string) (string, int) {
	t.Helper()
	out, code, err := r.shell.run(r.here("timeout 5 "+command), patience)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return out, code
}

// inline are zmctl's command lines in a page's text that have arguments or flags.
func inline(text string) []string {
	var list []string
	fence := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fence = !fence
		}
		if fence || strings.HasPrefix(line, indent) {
			continue
		}
		for _, m := range span.FindAllStringSubmatch(line, -1) {
			if tried(m[1]) {
				list = append(list, m[1])
			}
		}
	}
	return list
}

// tried reports whether a line is one for this test.
func tried(line string) bool {
	words := strings.Fields(line)
	verb := slices.IndexFunc(words, func(w string) bool { return plainWord.MatchString(w) && w != "zmctl" })
	return len(words) >= 3 && words[0] == "zmctl" && verb >= 0 && !slices.Contains(talks, words[verb]) &&
		!slices.Contains(words, "VERB") && !slices.Contains(words, "COMMAND") &&
		!strings.ContainsAny(line, "|;&<>[") && !strings.Contains(line, "...") &&
		!slices.Contains(words, "--follow") && !slices.Contains(words, "-f")
}

var plainWord = regexp.MustCompile(`^[a-z][a-z-]+$`)

// examples returns the command lines in a program's help, and in that of its commands.
func examples(p config.Program) []string {
	var list []string
	for line := range strings.Lines(p.Text) {
		if command, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), indent+"zmctl "); ok && tried("zmctl "+command) {
			list = append(list, "zmctl "+command)
		}
	}
	for _, c := range p.Commands {
		list = append(list, examples(c)...)
	}
	return list
}

func replaced(line string) string {
	words := strings.Fields(line)
	for i, w := range words {
		if to, ok := stands[w]; ok {
			words[i] = to
		}
	}
	return strings.Join(words, " ")
}
