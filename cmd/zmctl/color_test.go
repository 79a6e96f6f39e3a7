package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// onTerminal runs zmctl with standard output and standard error on a terminal of so many
// columns, and gives what it wrote there.
func onTerminal(t *testing.T, columns uint16, env []string, args ...string) string {
	t.Helper()
	person, program := terminals(t)
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: columns}); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(append(os.Environ(), "BE_ZMCTL=1", "TERM=xterm", "NO_COLOR=", "CLICOLOR_FORCE="), env...)
	cmd.Stdout, cmd.Stderr = program, program
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	program.Close() // the last one of the program ends what is read
	b, err := io.ReadAll(person)
	if err != nil && !strings.Contains(err.Error(), "input/output error") { // of a terminal that nobody has open
		t.Fatal(err)
	}
	// What it exits with depends on what is found, as in a pipe.
	_ = cmd.Wait()
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

var (
	colour = regexp.MustCompile("\x1b\\[[0-9]*m")
	lapsed = regexp.MustCompile(`\b[0-9.]+(m|µ)?[smhd]\b *`)
)

// steady is text without its colours and without what differs from one second to the next.
func steady(text string) string {
	return lapsed.ReplaceAllString(colour.ReplaceAllString(text, ""), "0s ")
}

// variedOffice has mail in the states that have colours: the ID of a message with one
// recipient in each.
func variedOffice(t *testing.T) (*office.Office, string) {
	t.Helper()
	o := office.New(t)
	a, name, offsets := o.Enqueue(t, "late@a.example.com", "done@a.example.com", "wrong@a.example.com", "frozen@a.example.com", "held@a.example.com")
	next := time.Now().Add(5 * time.Hour)
	o.Event(t, name, workspec.Event{Time: time.Now(), Recipient: offsets[0], Event: workspec.EventDeferred, Text: "451 " + strings.Repeat("much ", 60),
		Attrs: []workspec.Attr{{Key: "attempt", Value: "1"}, {Key: "next", Value: fmt.Sprint(next.UnixMilli())}, {Key: "status", Value: "4.2.1"}}})
	o.Tag(t, name, offsets[1], []byte{byte(workspec.TagOK)})
	o.Tag(t, name, offsets[2], []byte{byte(workspec.TagFailed)})
	mustDo(t, "freeze", "--quiet", "--yes", "--to", "frozen@*")
	mustDo(t, "hold", "--quiet", "--yes", "--to", "held@*")
	o.Put(t, postoffice.Freezer, "flood", office.MailFrom("x@client.example"))
	o.Put(t, postoffice.Postman, "header", office.MailFrom("y@client.example"))
	o.Write(t, "ledger/nothing", "of ours")
	return o, a.ID.String()
}

// On a terminal there are colours, and nothing else is otherwise than in a pipe.
func TestColoursAreAllThatATerminalAdds(t *testing.T) {
	_, id := variedOffice(t)
	const red, yellow, green, bold = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[1m"
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"queue", []string{bold + id, green + "delivered", red + "failed", red + "frozen, ", yellow + "held", yellow + "waiting, 1 attempt"}},
		{"queue --tree", []string{bold + id, yellow + "waiting"}},
		{"queue --counts", []string{bold + "STATE", red + "failed\x1b[0m ", yellow + "held"}},
		{"queue --summary", []string{bold + id, red + "1 failed", green + "1 delivered"}},
		{"show " + id, []string{bold + "what happens next", yellow + "deferred\x1b[0m <late@a.example.com>"}},
		{"why " + id, []string{bold + id, red + "<frozen@", yellow + "<held@", yellow + "<late@", red + "No scheduler"}},
		{"history " + id, []string{yellow + "attempt 1 for <late@", yellow + "held <held@"}},
		{"trace " + id, []string{bold + "TIME", bold + id, yellow + "attempt 1 for <late@", red + "frozen"}},
		{"check", []string{yellow + "warning", green + "ok"}},
		{"check --dry-run", []string{yellow + "quarantine", bold + "ledger/nothing"}},
		{"freezer list", []string{bold, red + "frozen: flood"}},
		{"postman list", []string{bold, red + "set aside"}},
		{"status", []string{bold + "DIRECTORY", red + "no scheduler runs", red + "frozen", yellow + "held"}},
		{"orders", []string{bold}},
	} {
		args := strings.Fields(tt.args)
		inPipe, _, _ := invoke(t, args...)
		if strings.Contains(inPipe, "\x1b") {
			t.Errorf("%s: in a pipe got %q", tt.args, inPipe)
		}
		got := onTerminal(t, 308, nil, args...) // an answer gets 300, as in a pipe
		wantIn(t, got, tt.want...)
		if !strings.HasPrefix(steady(got), steady(inPipe)) { // an error may be told behind it
			t.Errorf("%s: got\n%s\nin a pipe\n%s", tt.args, steady(got), steady(inPipe))
		}
		for line := range strings.Lines(got) {
			if i := strings.LastIndex(line, "\x1b["); i >= 0 && !strings.HasPrefix(line[i:], "\x1b[0m") {
				t.Errorf("%s: a colour does not end on its line: %q", tt.args, line)
			}
		}
	}
	if got := onTerminal(t, 1000, nil, "queue", "--json"); strings.Contains(got, "\x1b") {
		t.Errorf("JSON: got %q", got)
	}
}

// --color goes before the environment, and that before the terminal.
func TestColourIsTurnedOnAndOff(t *testing.T) {
	variedOffice(t)
	for _, tt := range []struct {
		args, env string
		want      bool
	}{
		{"queue", "TERM=xterm", true}, {"queue", "TERM=dumb", false}, {"queue", "NO_COLOR=1", false},
		{"--color never queue", "TERM=xterm", false}, {"--color never queue", "CLICOLOR_FORCE=1", false},
		{"--color always queue", "NO_COLOR=1", true}, {"--color always queue", "TERM=dumb", true}, {"--color=auto queue", "TERM=dumb", false},
	} {
		if got := strings.Contains(onTerminal(t, 80, []string{tt.env}, strings.Fields(tt.args)...), "\x1b["); got != tt.want {
			t.Errorf("%s zmctl %s: coloured %v", tt.env, tt.args, got)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "--color", "always", "queue")
	cmd.Env = append(os.Environ(), "BE_ZMCTL=1", "NO_COLOR=1")
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "\x1b[") {
		t.Errorf("always, in a pipe: %v, %q", err, out)
	}
	if _, code, err := invoke(t, "--color", "blue", "queue"); code != config.ExitUsage {
		t.Errorf("--color blue: exit code %d, %v", code, err)
	}
}

// Answers are cut where the line of the terminal ends, in a pipe after 300 characters.
func TestAnswersAreCutAtTheWidth(t *testing.T) {
	_, id := variedOffice(t)
	for _, tt := range []struct {
		columns uint16
		longest int
	}{{70, 70}, {120, 120}, {10, 40}} {
		for _, line := range strings.Split(colour.ReplaceAllString(onTerminal(t, tt.columns, nil, "queue", id), ""), "\n") {
			if strings.Contains(line, "451 much") && (len(line) != tt.longest || !strings.HasSuffix(line, "...")) {
				t.Errorf("%d columns: got %d characters: %s", tt.columns, len(line), line)
			}
		}
	}
	if got := mustDo(t, "queue", id); !strings.Contains(got, strings.Repeat("much ", 58)) {
		t.Errorf("in a pipe: got\n%s", got)
	}
}
