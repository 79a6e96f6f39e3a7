package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// M42: who runs it on a terminal and closes that has stopped it.
func TestClosedTerminalEndsTheRun(t *testing.T) {
	// Where the tests are run with nohup(1), what they start would ignore the signal, too; it
	// does not where we listen for it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	h := newHost(t)
	h.must(t, "init")
	m, slave := terminals(t)
	cmd := exec.Command(h.self, "run")
	cmd.Env = h.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	assert.Must(t, cmd.Start())
	slave.Close()
	m = polled(t, m)
	go io.Copy(io.Discard, m)
	for end := time.Now().Add(20 * time.Second); ; {
		if st, err := h.ask(t); err == nil && len(st.Daemons) == 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("zmctl run does not answer")
		}
	}
	assert.Must(t, m.Close())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		cmd.Process.Kill()
		t.Fatal("it runs on without its terminal")
	}
}

// polled returns a terminal that is closed when Close says so, also while it is read: one
// that Fd was asked of blocks in a read, and Close waits for its end.
func polled(t *testing.T, m *os.File) *os.File {
	t.Helper()
	fd, err := unix.Dup(int(m.Fd()))
	if err == nil {
		unix.CloseOnExec(fd)
		err = errors.Join(unix.SetNonblock(fd, true), m.Close())
	}
	assert.Must(t, err)
	return os.NewFile(uintptr(fd), "terminal")
}

// A link that the postoffice's owner has put where root logs leads nowhere.
func TestLogInThePostofficeIsNoLink(t *testing.T) {
	h := newHost(t)
	h.must(t, "init")
	victim := filepath.Join(t.TempDir(), "victim")
	assert.Must(t, os.WriteFile(victim, []byte("mine\n"), 0o600))
	assert.Must(t, os.Symlink(victim, filepath.Join(h.po, postoffice.LogFile)))
	if said, code := h.call(t, "start", "--direct"); code == 0 || !strings.Contains(said, postoffice.LogFile) {
		t.Errorf("start: %d\n%s", code, said)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "mine\n" {
		t.Errorf("got %q, %v", b, err)
	}
}
