package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of its descendants' orphans, so that
// their processor time can be counted: Postfix's master does not wait for its own.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// tree is a system's processes: the root, what it started, and what was left to us.
type tree struct {
	root    *exec.Cmd
	mu      sync.Mutex
	foreign map[int]bool  // children of ours that are not the system's
	cpu     time.Duration // of those that have ended
	written int64         // bytes that we and all that ended before had written
	peak    int64         // the largest resident size seen
	end     chan struct{} // ends what looks after it
	ended   sync.WaitGroup
}

// launch starts the root; its log is dir/log. Orphans are buried as they come: an Exim
// makes several for each message.
func launch(dir string, cmd *exec.Cmd) (*tree, error) {
	out, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	t := &tree{root: cmd, foreign: map[int]bool{}, written: diskBytes(), end: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.ended.Go(func() {
		for tick := time.NewTicker(500 * time.Millisecond); ; {
			select {
			case <-t.end:
				tick.Stop()
				return
			case <-tick.C:
				t.bury(false)
			}
		}
	})
	return t, nil
}

// begin starts a command beside the system; its processes are not counted while they
// run.
func (t *tree) begin(cmd *exec.Cmd) error {
	t.mu.Lock() // so that it is never taken for an orphan
	defer t.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	t.foreign[cmd.Process.Pid] = true
	return nil
}

// run runs a command to its end and counts it.
func (t *tree) run(cmd *exec.Cmd) error {
	if err := t.begin(cmd); err != nil {
		return err
	}
	err := cmd.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.foreign, cmd.Process.Pid)
	if ru, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		t.count(ru)
	}
	return err
}

// bury waits for orphans that have ended, or, at the end, for all.
func (t *tree) bury(all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all {
		for {
			var ru syscall.Rusage
			_, err := syscall.Wait4(-1, nil, 0, &ru)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				return // ECHILD: all are gone
			}
			t.count(&ru)
		}
	}
	for _, pid := range children() {
		if t.foreign[pid] || pid == t.root.Process.Pid {
			continue
		}
		var ru syscall.Rusage
		if got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, &ru); err == nil && got == pid {
			t.count(&ru)
		}
	}
}

func (t *tree) count(ru *syscall.Rusage) { t.cpu += time.Duration(ru.Utime.Nano() + ru.Stime.Nano()) }

// children lists our own.
func children() (pids []int) {
	tasks, _ := filepath.Glob("/proc/self/task/[0-9]*/children")
	for _, name := range tasks {
		b, _ := os.ReadFile(name) // the thread may have ended
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// usage is what a system took, from its start to its end.
type usage struct {
	cpu     time.Duration
	written int64 // bytes that files got, without those that were removed before they were written
	peak    int64
}

// stop ends the root and waits for every process.
func (t *tree) stop() (usage, error) {
	t.look()
	close(t.end)
	t.ended.Wait()
	if err := t.root.Process.Signal(syscall.SIGTERM); err != nil {
		return usage{}, err
	}
	err := t.root.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() <= 0 { // ended by our signal
		err = nil
	}
	t.count(t.root.ProcessState.SysUsage().(*syscall.Rusage))
	stuck := time.AfterFunc(20*time.Second, func() {
		for _, p := range t.processes() { // of an Exim the queue runners go on
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	})
	for _, p := range t.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGTERM)
	}
	t.bury(true)
	stuck.Stop()
	return usage{t.cpu, diskBytes() - t.written, t.peak}, err
}

// diskBytes returns what we and our buried children had written to files.
func diskBytes() int64 {
	b, _ := os.ReadFile("/proc/self/io")
	var n int64
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		v, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "write_bytes":
			n += v
		case "cancelled_write_bytes":
			n -= v
		}
	}
	return n
}

// member is a process of a system.
type member struct {
	pid int
	cpu time.Duration // with that of its buried children
}

// processes lists those of a system that run: all that descend from us but what was
// begun beside it.
func (t *tree) processes() []member {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	below := map[int][]member{}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil || len(f) < 15 || f[0] == "Z" {
			continue
		}
		parent, _ := strconv.Atoi(f[1])
		var ticks int64
		for _, field := range f[11:15] { // utime, stime, cutime, cstime
			v, _ := strconv.ParseInt(field, 10, 64)
			ticks += v
		}
		below[parent] = append(below[parent], member{pid, time.Duration(ticks) * 10 * time.Millisecond})
	}
	var found []member
	for list := below[os.Getpid()]; len(list) > 0; list = list[1:] {
		if t.foreign[list[0].pid] {
			continue
		}
		found = append(found, list[0])
		list = append(list, below[list[0].pid]...)
	}
	return found
}

// busy returns the processor time of all processes so far.
func (t *tree) busy() time.Duration {
	t.mu.Lock()
	total := t.cpu
	t.mu.Unlock()
	for _, p := range t.processes() {
		total += p.cpu
	}
	return total
}

// settle waits until the system does nothing: less than 3 % of a processor for two
// seconds.
func (t *tree) settle(limit time.Duration) {
	last, quiet := t.busy(), 0
	for begin := time.Now(); quiet < 2 && time.Since(begin) < limit; {
		time.Sleep(time.Second)
		now := t.busy()
		if quiet++; now-last > 30*time.Millisecond {
			quiet = 0
		}
		last = now
	}
}

// private returns the memory that the processes do not share, all together.
func (t *tree) private() (total int64) {
	for _, p := range t.processes() {
		total += field(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid), "Private_Clean:", "Private_Dirty:")
	}
	return total
}

// look notes the largest resident size that a process has had; those that ended before
// the first look are missed.
func (t *tree) look() {
	for _, p := range t.processes() {
		t.peak = max(t.peak, field(fmt.Sprintf("/proc/%d/status", p.pid), "VmHWM:"))
	}
}

// field adds up lines of a file of /proc that are in kB.
func field(name string, keys ...string) (bytes int64) {
	b, _ := os.ReadFile(name) // the process may have ended
	for line := range strings.Lines(string(b)) {
		for _, k := range keys {
			if rest, ok := strings.CutPrefix(line, k); ok {
				v, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				bytes += v << 10
			}
		}
	}
	return bytes
}
