package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/ui/top"
	"zmailer/test/suite"
)

// Z30: a snapshot counts what is there, as text and as JSON, with a scheduler and without.
func TestTopTellsWhatIsThere(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	for range 3 {
		waits(t, s)
	}
	await(t, s, "three messages in the queue", func() (bool, error) { return len(names(t, s, "transport")) == 3, nil })
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	wantIn(t, zmctl(t, s, "top", "--interval", "200ms"), "router runs, scheduler runs for", "queue     3", "6 recipients", "A SECOND", "delivered", "smtp/"+host)
	var x top.Sample
	if err := json.Unmarshal([]byte(zmctl(t, s, "top", "--json", "--interval", "100ms")), &x); err != nil {
		t.Fatal(err)
	}
	if x.Scheduler == nil || !x.Router || len(x.Threads) != 1 || x.Threads[0].Recipients != 6 || x.Seconds <= 0 {
		t.Errorf("got %+v", x)
	}
	for _, st := range x.Stages {
		if want := map[string]int{"queue": 3}[st.Name]; st.Messages != want {
			t.Errorf("%s: %d messages, want %d", st.Name, st.Messages, want)
		}
	}
	if n := strings.Count(zmctl(t, s, "top", "--json", "--count", "3", "--interval", "100ms"), "\n"); n != 3 {
		t.Errorf("%d lines, want 3", n)
	}
	stop(t, s)
	wantIn(t, zmctl(t, s, "top", "--once", "--interval", "100ms"), "no router runs, scheduler: ", "queue     3")
	if said, code := call(t, s, "zmctl", "top", "--interval", "1ms"); code != 64 {
		t.Errorf("exit code %d: %s", code, said)
	}
	if said, code := call(t, s, "zmtop"); code != 64 || !strings.Contains(said, "zmctl top --once") {
		t.Errorf("exit code %d: %s", code, said)
	}
}

// terminal is a program on a terminal of its own.
type terminal struct {
	cmd    *exec.Cmd
	person *os.File
	mu     sync.Mutex
	shown  strings.Builder
	more   chan struct{}
}

func onTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: " + err.Error())
	}
	t.Cleanup(func() { _ = person.Close() })
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120})
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	_ = tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	x := &terminal{cmd: cmd, person: person, more: make(chan struct{}, 1)}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := person.Read(b)
			x.mu.Lock()
			x.shown.Write(b[:n])
			x.mu.Unlock()
			select {
			case x.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return x
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.shown.String()
}

func (x *terminal) wait(t *testing.T, s *suite.Suite, want string) {
	t.Helper()
	await(t, s, fmt.Sprintf("%q on the terminal, which shows %q", want, x.text()), func() (bool, error) { return strings.Contains(x.text(), want), nil })
}

// Z30: on a terminal it goes on until a person leaves, who looks into a thread before;
// the first screen is back then.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	cmd := s.Command("zmctl", "top", "--interval", "200ms")
	// Such a terminal is not asked for its colours; nobody would answer here.
	cmd.Env = append(cmd.Env, "TERM=tmux-256color", "NO_COLOR=1")
	x := onTerminal(t, cmd)
	x.wait(t, s, "> smtp/"+host)
	wantIn(t, x.text(), "\x1b[?1049h", "router runs, scheduler runs", "A SECOND")
	say := func(keys string) {
		if _, err := io.WriteString(x.person, keys); err != nil {
			t.Fatal(err)
		}
	}
	say("\r")
	x.wait(t, s, "one@sink.example")
	wantIn(t, x.text(), id)
	say("q")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %q", err, x.text())
	}
	x.wait(t, s, "\x1b[?1049l")
}
