package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// interrupted runs a command that a reader ends with Ctrl-C when it has printed what the
// page shows.
func (r *run) interrupted(s step, want string) error {
	before := r.shell.children()
	if err := r.shell.begin(r.here(s.text)); err != nil {
		return err
	}
	seen := ""
	if err := r.shell.await(r.settling, func(text string) bool {
		seen = text
		ok, err := r.same(want, text)
		return ok || err != nil || mark.MatchString(text)
	}); err != nil {
		r.failed(s.line, fmt.Sprintf("$ %s\ngot, until now\n%s\nwant\n%s", s.text, r.plain(seen), want))
	}
	interrupted := false
	for range 100 {
		for _, pid := range r.shell.children() {
			if !slices.Contains(before, pid) {
				interrupted = syscall.Kill(pid, syscall.SIGINT) == nil
			}
		}
		if interrupted || r.shell.await(20*time.Millisecond, mark.MatchString) == nil {
			break
		}
	}
	out, _, err := r.shell.end(patience)
	if err == nil && !interrupted {
		err = fmt.Errorf("it has ended before Ctrl-C")
	}
	if err != nil {
		return fmt.Errorf("%w\nit has printed:\n%s", err, out)
	}
	return nil
}

// children returns the processes that the shell has started and that live.
func (s *shell) children() []int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", s.cmd.Process.Pid))
	var pids []int
	for _, word := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(word)
		pids = append(pids, pid)
	}
	return pids
}

// stopLeft ends what the page has started and left, such as the daemons of `zmctl start`,
// which have a session of their own, and waits until every process has ended: one that
// still writes keeps the directory from being removed.
func (r *run) stopLeft() {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		for _, pid := range r.left() {
			_ = syscall.Kill(pid, sig)
		}
		for n := 0; n < 200 && len(r.left()) > 0; n++ {
			<-time.After(50 * time.Millisecond)
		}
	}
}

// left returns the living processes of this run.
func (r *run) left() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && r.mine(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// mine reports whether a process has this run's directories in its command line.
func (r *run) mine(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && strings.Contains(string(line)+string(env), r.root)
}

// source copies a directory of the sources, which who runs the page may not be able to read:
// "source FROM TO".
func (r *run) source(names string) error {
	from, to, _ := strings.Cut(names, " ")
	to = r.here(to)
	if err := os.CopyFS(to, os.DirFS(filepath.Join("../..", from))); err != nil {
		return err
	}
	return filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, own(path, r.as))
	})
}
