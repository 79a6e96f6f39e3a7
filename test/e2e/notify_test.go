package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/test/suite"
)

// flood makes more happen in a directory than the kernel keeps notifications of.
func flood(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip("no inotify here: ", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || limit > 100_000 {
		t.Skip("the kernel keeps too many events: ", string(text))
	}
	x, y := filepath.Join(dir, ".x"), filepath.Join(dir, ".y")
	must(t, os.WriteFile(x, nil, 0o600))
	for range limit/4 + 1000 {
		must(t, errors.Join(os.Rename(x, y), os.Rename(y, x)))
	}
	must(t, os.Remove(x))
}

// M9: the scheduler's notifications are lost in a flood: what was routed meanwhile is
// delivered without the next look, and so is what comes later, in hash directories that
// are not there yet.
func TestSchedulerMakesLostNotificationsGood(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"SCHEDULERPOLL": "1h", "HASHLEVELS": "1"}
	})
	send := func(n int) {
		for i := range n {
			submit(t, s, fmt.Sprintf("Subject: %d\n\n", i), "-f", "bob@mta.example", "alice@mta.example")
		}
	}
	send(1)
	awaitMail(t, s, "alice", 1)
	scheduler := oneOf(t, s, "scheduler")
	must(t, syscall.Kill(scheduler.Pid, syscall.SIGSTOP))
	flood(t, filepath.Join(s.PostOffice(), "transport"))
	send(5)
	await(t, s, "six routed messages", func() (bool, error) { return s.Count("routed") >= 6, nil })
	must(t, syscall.Kill(scheduler.Pid, syscall.SIGCONT))
	awaitMail(t, s, "alice", 6)
	send(40)
	awaitMail(t, s, "alice", 46)
	awaitEmpty(t, s)
}

// M9: transport/ is replaced by another directory under the scheduler: what is routed
// is found by the next look, and by notification afterwards.
func TestTransportDirectoryIsReplaced(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"SCHEDULERPOLL": "1s"} })
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	awaitEmpty(t, s)
	dir := filepath.Join(s.PostOffice(), "transport")
	must(t, errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755)))
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 2)
	pid := oneOf(t, s, "scheduler").Pid
	await(t, s, "watch of the new directory", func() (bool, error) { return watches(pid, dir) })
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 3)
	awaitEmpty(t, s)
}

// watches tells whether a process watches a directory by inotify.
func watches(pid int, dir string) (bool, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return false, err
	}
	list, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, name := range list {
		// inotify wd:1 ino:9a1b2 sdev:fe00001 ...; a file may be closed by now.
		b, _ := os.ReadFile(name)
		if strings.Contains(string(b), fmt.Sprintf(" ino:%x ", st.Ino)) && strings.Contains(string(b), "inotify ") {
			return true, nil
		}
	}
	return false, err
}
