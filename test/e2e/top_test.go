package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/ui/top"
)

// onTerminal starts a program on a terminal of its own.
func onTerminal(t *testing.T, cmd *exec.Cmd) (keys func(text string), shown *output) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: " + err.Error())
	}
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	must(t, unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	_ = tty.Close()
	must(t, err)
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	shown = &output{}
	go func() { _, _ = io.Copy(shown, master) }() // it ends with the program
	return func(text string) {
		_, err := io.WriteString(master, text)
		must(t, err)
	}, shown
}

// Z30: zmctl top prints samples as JSON. On a terminal it runs until the operator leaves it, and
// then restores the screen.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	sink := newRefusing(t)
	s := start(t, sink.Sink, slow)
	id, _ := waits(t, s)
	host := event(t, s, "deferred", "rcpt", "one@sink.example").Get("host")
	var x top.Sample
	must(t, json.Unmarshal([]byte(zmctl(t, s, "top", "--json", "--interval", "100ms")), &x))
	if x.Scheduler == nil || !x.Router || len(x.Threads) != 1 || x.Threads[0].Recipients != 2 || x.Seconds <= 0 {
		t.Errorf("got %+v", x)
	}
	exits(t, s, 64, "zmctl", "top", "--interval", "1ms")
	exits(t, s, 64, "zmtop") // which wants a terminal
	cmd := s.Command("zmctl", "top", "--interval", "200ms")
	// A terminal of this kind is not queried for its colours; nothing would answer here.
	cmd.Env = append(cmd.Env, "TERM=tmux-256color", "NO_COLOR=1")
	keys, shown := onTerminal(t, cmd)
	shows := func(want string) {
		t.Helper()
		awaitState(t, want+" on the terminal", func() bool { return strings.Contains(shown.String(), want) })
	}
	shows("> smtp/" + host)
	wantIn(t, shown.String(), "\x1b[?1049h")
	keys("\r")
	shows("one@sink.example")
	wantIn(t, shown.String(), id)
	keys("q")
	must(t, cmd.Wait())
	shows("\x1b[?1049l")
}
