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

// trace attaches strace to all programs of the system; the result ends it and gives
// its output, each line beginning with a thread's number and a time in seconds.
func trace(t *testing.T, s *suite.Suite, calls string) (stop func() string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "trace")
	args := []string{"-f", "-ttt", "-o", out, "-e", "trace=" + calls}
	if calls == "all" {
		args = []string{"-f", "-ttt", "-o", out}
	}
	threads := map[int]int{}
	for _, p := range processes(t) {
		args = append(args, "-p", strconv.Itoa(p.pid))
		tasks, err := os.ReadDir("/proc/" + strconv.Itoa(p.pid) + "/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			threads[tid] = p.pid
		}
	}
	traced = threads
	cmd := exec.Command("strace", args...)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Attached is every thread whose TracerPid is strace.
	await(t, s, "attached strace", func() (bool, error) {
		for tid, pid := range threads {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/status")
			if err == nil && !strings.Contains(string(b), "TracerPid:\t"+strconv.Itoa(cmd.Process.Pid)+"\n") {
				return false, nil
			}
		}
		return true, nil
	})
	return func() string {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it ends by our signal
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
		return string(b)
	}
}

// traced is the process of each thread that the last trace attached to.
var traced map[int]int

// wakeups counts, by process, the bursts of system calls in a trace: calls of one
// process less than 20 ms apart are one wake-up.
func wakeups(trace string) map[int]int {
	const together = 20 * time.Millisecond
	count := map[int]int{}
	last := map[int]time.Duration{}
	for line := range strings.Lines(trace) {
		f := strings.Fields(line)
		if len(f) < 3 || strings.HasPrefix(f[2], "---") || strings.HasPrefix(f[2], "+++") {
			continue
		}
		tid, err1 := strconv.Atoi(f[0])
		at, err2 := strconv.ParseFloat(f[1], 64)
		pid, known := traced[tid]
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
