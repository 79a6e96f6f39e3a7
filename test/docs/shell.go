package docs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// shell is a bash that lives as long as a page.
type shell struct {
	dir  string // where its command files are
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{}
	n    int

	mu      sync.Mutex
	out     bytes.Buffer
	changed chan struct{}
}

// startShell starts one with its home directory and environment.
func startShell(dir, home string, env []string, as *syscall.Credential) (*shell, error) {
	s := &shell{dir: dir, done: make(chan struct{}), changed: make(chan struct{})}
	s.cmd = exec.Command("bash", "--norc", "--noprofile")
	s.cmd.Dir, s.cmd.Env = home, env
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stdout, s.cmd.Stderr = w, w
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	err = s.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	go s.read(r)
	return s, nil
}

func (s *shell) read(r io.ReadCloser) {
	defer close(s.done)
	defer r.Close()
	b := make([]byte, 8192)
	for {
		n, err := r.Read(b)
		s.mu.Lock()
		s.out.Write(b[:n])
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

var mark = regexp.MustCompile(`\n?\x02end (\d+) (\d+)\x03\n`)

// run runs a command, waits for its end, and gives what it and those in the background
// have printed since the last one, and its exit code.
func (s *shell) run(command string, limit time.Duration) (out string, code int, err error) {
	if err := s.begin(command); err != nil {
		return "", 0, err
	}
	return s.end(limit)
}

// begin has a command begin.
func (s *shell) begin(command string) error {
	s.n++
	file := filepath.Join(s.dir, fmt.Sprintf("command%d", s.n))
	if err := os.WriteFile(file, []byte(command+"\n"), 0o644); err != nil {
		return err
	}
	// The exit code of the command before is the next one's $?. What it reads is empty.
	_, err := fmt.Fprintf(s.in, "(exit ${docs_code:-0}); . %s </dev/null; docs_code=$?; printf '\\n\\002end %d %%d\\003\\n' $docs_code\n", file, s.n)
	return err
}

// end waits for its end.
func (s *shell) end(limit time.Duration) (out string, code int, err error) {
	err = s.await(limit, func(text string) bool {
		at := mark.FindStringSubmatchIndex(text)
		if at == nil {
			return false
		}
		out = text[:at[0]]
		code, _ = strconv.Atoi(text[at[4]:at[5]])
		s.out.Next(at[1])
		return true
	})
	if err != nil {
		s.mu.Lock()
		out = s.out.String()
		s.mu.Unlock()
	}
	return out, code, err
}

// await waits until what is printed is enough.
func (s *shell) await(limit time.Duration, enough func(text string) bool) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ok, changed := enough(s.out.String()), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-s.done:
			return fmt.Errorf("the shell has ended")
		case <-timer.C:
			return fmt.Errorf("no end within %v", limit)
		}
	}
}

// stop ends the shell and all that it has started.
func (s *shell) stop() {
	s.in.Close()
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(40 * time.Second):
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	}
	_ = s.cmd.Wait()
}

// looks reports whether a command only shows something, so that it may be repeated until
// the expected state is there.
func looks(command string) bool {
	words := strings.Fields(command)
	if len(words) == 0 || strings.Contains(command, "--follow") {
		return false
	}
	switch words[0] {
	case "ls", "cat", "find", "grep", "tail", "head", "wc":
		return true
	case "zmctl":
		for _, w := range words[1:] {
			switch w {
			case "queue", "show", "why", "status", "history", "check", "thread", "events", "list", "orders", "removed", "trace", "top", "log", "route", "simulate":
				return !strings.Contains(command, "--repair")
			}
		}
	}
	return false
}
