package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// terminals makes a pseudo-terminal: what is written to the one end is typed at the other.
func terminals(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	t.Cleanup(func() { person.Close() })
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// onTerminal runs zmctl with standard output and standard error on a terminal of so many
// columns, and gives what it wrote there.
func onTerminal(t *testing.T, columns uint16, env []string, args ...string) string {
	t.Helper()
	person, program := terminals(t)
	assert.Must(t, unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: columns}))
	self, err := os.Executable()
	assert.Must(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(append(os.Environ(), "BE_ZMCTL=1", "TERM=xterm", "NO_COLOR=", "CLICOLOR_FORCE="), env...)
	cmd.Stdout, cmd.Stderr = program, program
	assert.Must(t, cmd.Start())
	program.Close() // the last one of the program ends what is read
	b, err := io.ReadAll(person)
	if err != nil && !strings.Contains(err.Error(), "input/output error") { // of a terminal that no process has open
		t.Fatal(err)
	}
	// What it exits with depends on what is found, as in a pipe.
	_ = cmd.Wait()
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

var colour = regexp.MustCompile("\x1b\\[[0-9]*m")

// steady is text without its colours and without what differs from one second to the next.
func steady(text string) string {
	return regexp.MustCompile(`\b[0-9.]+(m|µ)?[smhd]\b *`).ReplaceAllString(colour.ReplaceAllString(text, ""), "0s ")
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
	assert.Contains(t, mustDo(t, "queue", id), strings.Repeat("much ", 58), "in a pipe")
}

// On a terminal there are colours, and nothing else is otherwise than in a pipe.
func TestColoursAreAllThatATerminalAdds(t *testing.T) {
	_, id := variedOffice(t)
	for _, command := range []string{"queue", "queue --tree", "queue --counts", "queue --summary", "show " + id, "why " + id, "history " + id, "trace " + id,
		"check", "check --dry-run", "freezer list", "postman list", "status", "orders"} {
		args := strings.Fields(command)
		inPipe, _, _ := invoke(t, args...)
		got := onTerminal(t, 308, nil, args...)                                                                              // an answer gets 300, as in a pipe
		if strings.Contains(inPipe, "\x1b") || !colour.MatchString(got) || !strings.HasPrefix(steady(got), steady(inPipe)) { // an error may follow
			t.Errorf("%s: got\n%q\nin a pipe\n%q", command, got, inPipe)
		}
		for line := range strings.Lines(got) {
			if i := strings.LastIndex(line, "\x1b["); i >= 0 && !strings.HasPrefix(line[i:], "\x1b[0m") {
				t.Errorf("%s: a colour does not end on its line: %q", command, line)
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
		got := onTerminal(t, 80, []string{tt.env}, strings.Fields(tt.args)...)
		assert.Equal(t, strings.Contains(got, "\x1b["), tt.want, "%s zmctl %s", tt.env, tt.args)
	}
	_, code, _ := invoke(t, "--color", "blue", "queue")
	assert.Equal(t, code, config.ExitUsage, "--color blue")
}

// A14: a long command shows a bar on a terminal, nothing in a pipe and nothing
// with --quiet; afterwards the terminal has the result alone.
func TestLongWorkShowsABar(t *testing.T) {
	o := office.New(t)
	for range text.BigNumber {
		o.Put(t, postoffice.Freezer, "flood", office.PlainMail)
		o.Put(t, postoffice.Deferred, "users", office.PlainMail)
	}
	for i := range text.BigNumber {
		o.Write(t, filepath.Join(postoffice.Orders, fmt.Sprintf("20200101-000000-hold-%d", i+1)), "verb hold\n\n")
	}
	for _, tt := range []struct{ args, bar, result string }{
		{"check --quiet=%v", "check", " warning"},
		{"check --ledger --quiet=%v", "ledger", "in all"},
		{"check --dry-run --quiet=%v", "repair", "to be done; nothing was changed, "},
		{"check --repair --quiet=%v", "repair", "done, "},
		{"cleanup --quiet=%v", "cleanup", "dropped\n"},
		{"resubmit --pace 0 --quiet=%v all", "resubmit", "given back"},
		{"remove --all --yes --quiet=%v", "remove", "removed "},
	} {
		if strings.HasPrefix(tt.args, "cleanup") || strings.HasPrefix(tt.args, "resubmit") || strings.HasPrefix(tt.args, "remove") {
			tt.args = strings.ReplaceAll(tt.args, "%v", "false") // there is nothing to do afterwards
		}
		for _, quiet := range []bool{true, false} {
			if quiet && !strings.Contains(tt.args, "%v") {
				continue
			}
			args := strings.Fields(strings.ReplaceAll(tt.args, "%v", fmt.Sprint(quiet)))
			got := onTerminal(t, 120, nil, args...)
			shown := strings.Contains(got, "\r") && strings.Contains(got, tt.bar)
			if shown == quiet || !strings.Contains(got, tt.result) {
				t.Errorf("%s: a bar %v; got\n%q", args, shown, got)
			}
		}
	}
}
