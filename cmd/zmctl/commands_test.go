package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// changes returns the commands that do something; all others only tell, and can do it in
// JSON.
func changes() []string {
	return []string{
		"init", "run", "start", "stop", "restart", "reload", "freeze-service", "thaw-service", "settle", "undo",
		"newdb", "passwd", "dkim newkey", "completion", "import", "import postfix", "import exim", "import opensmtpd", "import maildir", "import mbox",
		"web", "export otlp", "etrn", "mailq", "newaliases",
	}
}

// everyCommand lists commands and subcommands with their names in full.
func everyCommand() map[string]*cli.Command {
	all := map[string]*cli.Command{}
	for _, c := range app().Commands {
		if c.Hidden {
			continue
		}
		if len(c.Subcommands) == 0 {
			all[c.Name] = c
		}
		for _, s := range c.Subcommands {
			all[c.Name+" "+s.Name] = s
		}
	}
	return all
}

// M41: every command that only shows something has --json.
func TestEveryReadCommandHasJSON(t *testing.T) {
	for name, c := range everyCommand() {
		if slices.Contains(changes(), name) {
			continue
		}
		if !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), "json") }) {
			t.Errorf("zmctl %s only shows something, and has no --json", name)
		}
	}
}

// documented returns the rows of the table of commands: name, and exit codes beside 0 and 64.
func documented(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("../../docs/zmctl.md")
	assert.Must(t, err)
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `zmctl ([a-z -]+?)(?: [A-Z.\\[<-][^`]*)?` \\|.*\\| ([^|]*) \\|$").FindAllStringSubmatch(string(b), -1) {
		rows[m[1]] = m[2]
	}
	return rows
}

func TestEveryCommandStandsInTheManual(t *testing.T) {
	rows := documented(t)
	for name, c := range everyCommand() {
		if _, ok := rows[name]; !ok {
			t.Errorf("zmctl %s has no row in docs/zmctl.md", name)
		}
		if c.Usage == "" || c.UsageText == "" || c.Description == "" {
			t.Errorf("zmctl %s: its --help lacks something", name)
		}
	}
}

// What cannot be understood is always 64, and says what to do.
func TestBadArgumentsAreExitCode64(t *testing.T) {
	self, err := os.Executable()
	assert.Must(t, err)
	for name := range everyCommand() {
		cmd := exec.Command(self, append(strings.Fields(name), "--no-such-flag")...)
		cmd.Env = append(os.Environ(), "BE_ZMCTL=1", "ZCONFIG=", "POSTOFFICE="+t.TempDir())
		out, _ := cmd.CombinedOutput()
		assert.Equal(t, cmd.ProcessState.ExitCode(), config.ExitUsage, "zmctl %s --no-such-flag: exit code: %s", name, out)
	}
	exits(t, config.ExitUsage, "test", "smtp", "--client", "192.0.2.1", "--from", "a@far.example")
}

// withoutPostoffice returns the commands that need none.
func withoutPostoffice() []string {
	return []string{"init", "run", "start", "restart", "newdb", "passwd", "dkim newkey", "completion", "version", "log", "check-config", "route", "simulate", "thread", "mailq", "newaliases", "test smtp"}
}

// Where there is no postoffice every command that wants one says 78, as the table says.
func TestNoPostofficeIsExitCode78(t *testing.T) {
	arguments := map[string][]string{"tlsrpt": {"yesterday"}, "flush": {"a.example.com"}, "etrn": {"a.example.com"}, "resume": {"--all"}, "verify": {"--list"}}
	for name, c := range everyCommand() {
		if slices.Contains(withoutPostoffice(), name) || strings.HasPrefix(name, "import") || name == "web" || name == "export otlp" || name == "top" || name == "trace" {
			continue
		}
		t.Setenv("ZCONFIG", "")
		t.Setenv("POSTOFFICE", filepath.Join(t.TempDir(), "none"))
		args := strings.Fields(name)
		switch {
		case arguments[name] != nil:
			args = append(args, arguments[name]...)
		case strings.Contains(c.UsageText, "ID..."), strings.Contains(c.UsageText, "ID...|"):
			args = append(args, idOne)
		}
		if name == "reroute" {
			continue // it wants to know where to first
		}
		exits(t, config.ExitConfig, args...)
	}
}

// The JSON of show has what its text has.
func TestShowInJSON(t *testing.T) {
	o := office.New(t)
	a, _, _ := o.Enqueue(t, "one@a.example.com")
	out := mustDo(t, "show", "--json", a.ID.String())
	var got struct {
		ID            string
		Recipients    []view.Recipient
		Envelope      []string
		Specification []string
		History       []view.Step
		Next          []string
		Details       []view.FileDetails `json:"file_details"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.ID != a.ID.String() || len(got.Recipients) != 1 || !slices.Contains(got.Envelope, "to <user@a.example.com>") ||
		len(got.Specification) < 5 || len(got.History) == 0 || len(got.Next) == 0 || len(got.Details) != 2 || got.Details[0].Size == 0 {
		t.Errorf("got %s", out)
	}
	_, name := o.Put(t, "freezer", "flood", office.PlainMail)
	assert.Must(t, json.Unmarshal([]byte(mustDo(t, "freezer", "show", "--json", name)), &got))
	if !slices.Contains(got.Envelope, "to <user@a.example.com>") || len(got.Next) == 0 {
		t.Errorf("freezer show: got %+v", got)
	}
}

func TestVersionTellsWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	out, code, _ := invoke(t, "version")
	assert.Equal(t, code, 1, "exit code")
	wantIn(t, out, "zmctl "+config.Version+", go1.", "find the program router")
	out, _, _ = invoke(t, "version", "--json")
	var b build
	if err := json.Unmarshal([]byte(out), &b); err != nil || len(b.Programs) != len(programs()) || b.Go == "" {
		t.Errorf("%v\n%s", err, out)
	}
	self, err := os.Executable()
	assert.Must(t, err)
	dir := t.TempDir()
	for _, name := range programs() {
		assert.Must(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	assert.Must(t, os.Remove(filepath.Join(dir, "lookup")))
	assert.Must(t, os.Symlink("/proc/self/exe", filepath.Join(dir, "lookup")))
	t.Setenv("PATH", dir)
	exits(t, 0, "version")
}

// completed asks a shell's completion for the words behind some others.
func completed(t *testing.T, words ...string) []string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("SKIPPED: no bash here")
	}
	script, code, err := invoke(t, "completion", "bash")
	if code != 0 {
		t.Fatal(err)
	}
	ask := script + "\nCOMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _zmctl; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
	cmd := exec.Command(bash, append([]string{"--norc", "-c", ask, "bash"}, words...)...)
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	out, err := cmd.Output()
	if err != nil || trouble.Len() > 0 {
		t.Fatalf("%v: %s", err, &trouble)
	}
	return strings.Fields(string(out))
}

func TestBashCompletes(t *testing.T) {
	tests := map[string]struct {
		words []string
		want  []string // all of these
		never []string
	}{
		"commands":             {[]string{"zmctl", "st"}, []string{"start", "status", "stop"}, []string{"queue", "--config"}},
		"global flags":         {[]string{"zmctl", "--"}, []string{"--config", "--postoffice", "--help"}, []string{"--json"}},
		"behind global flags":  {[]string{"zmctl", "--config", "x", "sta"}, []string{"start", "status"}, nil},
		"flags of a command":   {[]string{"zmctl", "queue", "--"}, []string{"--json", "--ages", "--tree"}, []string{"--config"}},
		"daemons":              {[]string{"zmctl", "restart", ""}, []string{"smtpserver", "router", "scheduler"}, nil},
		"subcommands":          {[]string{"zmctl", "freezer", ""}, []string{"list", "show", "thaw", "discard"}, []string{"queue"}},
		"flags of subcommands": {[]string{"zmctl", "freezer", "list", "--js"}, []string{"--json"}, nil},
		"shells":               {[]string{"zmctl", "completion", ""}, []string{"bash", "zsh", "fish"}, nil},
		"files":                {[]string{"zmctl", "log", "--file", "log_te"}, []string{"log_test.go"}, nil},
		"hidden flags are not": {[]string{"zmctl", "run", "--"}, []string{"--strict"}, []string{"--background"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := completed(t, tt.words...)
			for _, w := range tt.want {
				if !slices.Contains(got, w) {
					t.Errorf("got %q, want %s", got, w)
				}
			}
			for _, w := range tt.never {
				if slices.Contains(got, w) {
					t.Errorf("got %q, not wanted: %s", got, w)
				}
			}
		})
	}
}

// tried returns how a shell is asked to complete "zmctl sta" and "zmctl restart "; zsh
// without its line editor, whose functions print what they are given.
func tried() map[string][]string {
	return map[string][]string{
		"fish": {"--no-config", "-c", `source $argv[1]; complete -C "zmctl sta"; complete -C "zmctl restart "`},
		"zsh": {"-f", "-c", `compdef() { :; }; _files() { :; }; _describe() { print -r -- ${(P)${@[-1]}} }; source $1
words=(zmctl sta); CURRENT=2; _zmctl; words=(zmctl --config x restart ""); CURRENT=5; _zmctl`, "zsh"},
	}
}

// The scripts are whole for their shells, and have every command.
func TestCompletionsAreUnderstoodByTheirShells(t *testing.T) {
	for shell, check := range map[string][]string{"bash": {"-n"}, "zsh": {"-n"}, "fish": {"--no-execute"}} {
		script, code, err := invoke(t, "completion", shell)
		if code != 0 {
			t.Fatal(err)
		}
		for name := range everyCommand() {
			if first, _, _ := strings.Cut(name, " "); !strings.Contains(script, first) {
				t.Errorf("%s: no %s", shell, first)
			}
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("SKIPPED: no %s here", shell)
			continue
		}
		file := filepath.Join(t.TempDir(), "zmctl")
		assert.Must(t, os.WriteFile(file, []byte(script), 0o600))
		if out, err := exec.Command(path, append(check, file)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
		if try := tried()[shell]; try != nil {
			cmd := exec.Command(path, append(try, file)...)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "start") || !strings.Contains(string(out), "status") || !strings.Contains(string(out), "smtpserver") {
				t.Errorf("%s completes: %v\n%s", shell, err, out)
			}
		}
	}
	exits(t, config.ExitUsage, "completion", "tcsh")
}
