package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
)

// M42: who runs it on a terminal and closes that has stopped it.
func TestClosedTerminalEndsTheRun(t *testing.T) {
	h := newHost(t)
	h.must(t, "init")
	m, slave := pty(t)
	cmd := exec.Command(h.self, "run")
	cmd.Env = h.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	go io.Copy(io.Discard, m)
	for end := time.Now().Add(20 * time.Second); ; {
		if st, err := h.ask(t); err == nil && len(st.Daemons) == 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("zmctl run does not answer")
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		cmd.Process.Kill()
		t.Fatal("it runs on without its terminal")
	}
}

// A link that the postoffice's owner has put where root logs leads nowhere.
func TestLogInThePostofficeIsNoLink(t *testing.T) {
	h := newHost(t)
	h.must(t, "init")
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(h.po, postoffice.LogFile)); err != nil {
		t.Fatal(err)
	}
	if said, code := h.call(t, "start", "--direct"); code == 0 || !strings.Contains(said, postoffice.LogFile) {
		t.Errorf("start: %d\n%s", code, said)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "mine\n" {
		t.Errorf("got %q, %v", b, err)
	}
}
