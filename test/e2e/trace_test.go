package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/test/suite"
)

// tracing is an strace that is attached to a system.
type tracing struct {
	cmd     *exec.Cmd
	out     string          // the file it writes
	said    strings.Builder // on its standard error
	threads map[int]int     // traced threads and their processes
}

// trace attaches strace to all programs of the system.
func trace(t *testing.T, s *suite.Suite, calls string) *tracing {
	t.Helper()
	tr := &tracing{out: filepath.Join(t.TempDir(), "trace"), threads: map[int]int{}}
	args := []string{"-f", "-ttt", "-o", tr.out, "-e", "trace=" + calls}
	for _, p := range processes(t, s) {
		args = append(args, "-p", strconv.Itoa(p.Pid))
		tasks, err := os.ReadDir("/proc/" + strconv.Itoa(p.Pid) + "/task")
		must(t, err)
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			tr.threads[tid] = p.Pid
		}
	}
	tr.cmd = exec.Command("strace", args...)
	tr.cmd.Stderr = &tr.said
	must(t, tr.cmd.Start())
	// Attached is every thread whose TracerPid is strace.
	await(t, s, "attached strace", func() (bool, error) {
		for tid, pid := range tr.threads {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/status")
			if err == nil && !strings.Contains(string(b), "TracerPid:\t"+strconv.Itoa(tr.cmd.Process.Pid)+"\n") {
				return false, nil
			}
		}
		return true, nil
	})
	return tr
}

// stop ends the tracing and gives strace's output, each line beginning with a
// thread's number and a time in seconds.
func (tr *tracing) stop(t *testing.T) string {
	t.Helper()
	must(t, tr.cmd.Process.Signal(syscall.SIGINT))
	_ = tr.cmd.Wait() // it ends by our signal
	b, err := os.ReadFile(tr.out)
	if err != nil {
		t.Fatalf("%v: %s", err, tr.said.String())
	}
	return string(b)
}

// wakeups ends the tracing and counts, by process, the bursts of system calls: calls
// of one process less than 20 ms apart are one wake-up.
func (tr *tracing) wakeups(t *testing.T) map[int]int {
	t.Helper()
	const together = 20 * time.Millisecond
	count := map[int]int{}
	last := map[int]time.Duration{}
	for line := range strings.Lines(tr.stop(t)) {
		f := strings.Fields(line)
		if len(f) < 3 || strings.HasPrefix(f[2], "---") || strings.HasPrefix(f[2], "+++") {
			continue
		}
		tid, err1 := strconv.Atoi(f[0])
		at, err2 := strconv.ParseFloat(f[1], 64)
		pid, known := tr.threads[tid]
		// What a thread was blocked in when strace came is no wake-up: it shows as
		// "resumed" or "restart_syscall" at the attach.
		if err1 != nil || err2 != nil || !known {
			continue
		}
		now := time.Duration(at * float64(time.Second))
		if prev, ok := last[pid]; !ok || now-prev > together {
			count[pid]++
		}
		last[pid] = now
	}
	return count
}
