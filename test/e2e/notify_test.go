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

// oneOf is the system's only process of a program.
func oneOf(t *testing.T, s *suite.Suite, program string) suite.Process {
	t.Helper()
	for _, p := range processes(t, s) {
		if p.Name == program {
			return p
		}
	}
	t.Fatalf("no %s runs", program)
	return suite.Process{}
}

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
	if err := os.WriteFile(x, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range limit/4 + 1000 {
		if err := errors.Join(os.Rename(x, y), os.Rename(y, x)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(x); err != nil {
		t.Fatal(err)
	}
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
	if err := syscall.Kill(scheduler.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	flood(t, filepath.Join(s.PostOffice(), "transport"))
	send(5)
	await(t, s, "six routed messages", func() (bool, error) { return s.Count("routed") >= 6, nil })
	if err := syscall.Kill(scheduler.Pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
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
	if err := errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
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

// M8, and the trap "a corrupt file that kills a daemon": 1 poison + 20 good through the
// whole system: the message makes the router run out of memory, zmctl run starts it
// again, 20 are delivered, and the one is put away.
func TestPoisonStopsNoMail(t *testing.T) {
	if testing.Short() {
		t.Skip("the router is started again after a second, two, four")
	}
	t.Parallel()
	s := prepare(t, nil, func(s *suite.Suite) {
		s.Settings = map[string]string{"ROUTERTRIES": "3"}
		s.Bin = limitedRouter(t, s.Bin)
	})
	begin(t, s)
	event(t, s, "started", "program", "router")
	// As another program submits: written in public/, renamed to its inode's number.
	file := filepath.Join(s.PostOffice(), "public", "poison")
	text := "from <bob@mta.example>\n" + strings.Repeat("to <alice@mta.example>\n", 500_000) + "env-end\nSubject: poison\n\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := errors.Join(os.Chmod(file, 0o700), syscall.Stat(file, &st),
		os.Rename(file, filepath.Join(s.PostOffice(), "router", fmt.Sprint(st.Ino)))); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		submit(t, s, fmt.Sprintf("Subject: %d\n\n", i), "-f", "bob@mta.example", "alice@mta.example")
	}
	awaitMail(t, s, "alice", 20)
	aside := event(t, s, "set-aside", "program", "router")
	if aside.Get("reason") == "" || !strings.HasPrefix(aside.Get("reason"), "3 routers ended with it") {
		t.Errorf("set aside: got %q", aside.Get("reason"))
	}
	await(t, s, "the poison alone", func() (bool, error) {
		left, err := s.Left()
		return len(left) == 1 && left[0] == aside.Get("name"), err
	})
	if mail, err := suite.Mail(s.Maildir("alice")); err != nil || len(mail) != 20 {
		t.Errorf("alice has %d messages, %v, want 20", len(mail), err)
	}
}

// limitedRouter is a directory of programs in which the router gets little memory.
func limitedRouter(t *testing.T, from string) string {
	t.Helper()
	dir := filepath.Join(openDir(t), "bin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		name := e.Name()
		if name == "router" {
			name = "router.real"
		}
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	script := "#!/bin/sh\nulimit -s 1024 && ulimit -d 131072 || exit 99\nexec '" + dir + "/router.real' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "router"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
