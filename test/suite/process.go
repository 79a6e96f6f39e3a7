package suite

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Process is one of a system's running programs.
type Process struct {
	Pid  int
	Name string
}

// Processes lists the system's programs that run: those started with its
// configuration.
func (s *Suite) Processes() ([]Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	var list []Process
	ours := []byte("ZCONFIG=" + s.Config())
	for _, name := range dirs {
		b, err := os.ReadFile(name)
		if err != nil || !hasElement(b, ours) {
			continue // it has ended, or is another user's
		}
		dir := filepath.Dir(name)
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil || filepath.Dir(exe) != s.Bin {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			list = append(list, Process{pid, filepath.Base(exe)})
		}
	}
	return list, nil
}

// hasElement reports whether a list of strings that end in NUL has one.
func hasElement(list, element []byte) bool {
	for e := range bytes.SplitSeq(list, []byte{0}) {
		if bytes.Equal(e, element) {
			return true
		}
	}
	return false
}

// Peak returns a process's largest resident size so far, bytes; 0 if it has ended.
func (p Process) Peak() int64 { return p.memory("VmHWM:") }

// Resident returns a process's resident size, bytes; 0 if it has ended.
func (p Process) Resident() int64 { return p.memory("VmRSS:") }

func (p Process) memory(key string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				kb, _ := strconv.ParseInt(f[0], 10, 64)
				return kb << 10
			}
		}
	}
	return 0
}

// Descriptors counts a process's open files.
func (p Process) Descriptors() int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid))
	return len(list)
}

// Stopped reports whether no thread of the process runs after SIGSTOP: one takes the signal, and
// on a busy machine others run on until it does.
func (p Process) Stopped() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
	for _, name := range stats {
		text, rerr := os.ReadFile(name)
		_, state, _ := strings.Cut(string(text), ") ")
		if rerr == nil && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return err == nil
}

// Kill ends it with SIGKILL, unless it has ended.
func (p Process) Kill() error {
	if err := syscall.Kill(p.Pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("kill %s %d: %w", p.Name, p.Pid, err)
	}
	return nil
}
