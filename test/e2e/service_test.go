package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/config"
	"zmailer/test/suite"
)

// service is a system that zmctl start runs in the background.
func service(t *testing.T) (s *suite.Suite, log string) {
	t.Helper()
	log = filepath.Join(openDir(t), "mail.log")
	s = prepare(t, nil, func(s *suite.Suite) { s.Settings = map[string]string{"LOGFILE": log, "LOG": "text"} })
	t.Cleanup(func() {
		call(t, s, "zmctl", "stop", "--direct")
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("the log:\n%s", b)
		}
	})
	return s, log
}

// M42: start, stop, reload, frozen start, thaw, cleanup and the reopened log with the real
// daemons; mail goes through while the router is stopped and started alone.
func TestServiceInTheBackground(t *testing.T) {
	t.Parallel()
	s, log := service(t)
	said := zmctl(t, s, "start", "--direct")
	for _, daemon := range []string{"smtpserver  yes", "router      yes", "scheduler   yes"} {
		if !strings.Contains(said, daemon) {
			t.Errorf("start says %s", said)
		}
	}
	submit(t, s, "Subject: one\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)

	zmctl(t, s, "stop", "--direct", "router")
	submit(t, s, "Subject: two\n\n", "-f", "bob@mta.example", "alice@mta.example")
	if said, _ := call(t, s, "zmctl", "status"); !strings.Contains(said, "stopped: zmctl start router") || !strings.Contains(said, "1 accepted") {
		t.Errorf("status: %s", said)
	}
	zmctl(t, s, "start", "--direct", "router")
	awaitMail(t, s, "alice", 2)
	// Mail is in the mailbox before the scheduler logs that.
	await(t, s, "two deliveries in the log", func() (bool, error) {
		return strings.Count(zmctl(t, s, "log", "--event", "delivered"), "\n") == 2, nil
	})

	must(t, os.Rename(log, log+".1"))
	zmctl(t, s, "reload")
	submit(t, s, "Subject: three\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 3)
	awaitEmpty(t, s)
	zmctl(t, s, "stop", "--direct")
	// Everything is stopped, so all that was said is written.
	if n := strings.Count(zmctl(t, s, "log", "--event", "delivered"), "\n"); n != 1 {
		t.Errorf("%d deliveries are in the new log, want 1", n)
	}
	if n := strings.Count(zmctl(t, s, "log", "--since", "1h", "--event", "delivered"), "\n"); n != 3 {
		t.Errorf("%d deliveries are in both logs, want 3", n)
	}
	if said := zmctl(t, s, "log", "--since", "1h", "--event", "conf-*"); !strings.Contains(said, "msg=conf-read") {
		t.Errorf("the scheduler has not read its configuration again: %s", said)
	}

	zmctl(t, s, "freeze-service", "the disk is moved")
	exits(t, s, config.ExitConfig, "zmctl", "start", "--direct")
	zmctl(t, s, "thaw-service")
	zmctl(t, s, "start", "--direct")
	zmctl(t, s, "cleanup")
	zmctl(t, s, "stop", "--direct")
	exits(t, s, 0, "zmctl", "stop", "--direct")
}

// A port that is taken, and a zmctl run that is killed: start tells of the one, and after
// the other nothing is in the way of the next.
func TestServiceComesBackAfterAKill(t *testing.T) {
	t.Parallel()
	s, log := service(t)
	zmctl(t, s, "start", "--direct")
	other := prepare(t, nil, func(o *suite.Suite) { o.SMTPAddr = s.SMTPAddr })
	t.Cleanup(func() { call(t, other, "zmctl", "stop", "--direct") })
	said, code := call(t, other, "zmctl", "start", "--direct")
	if code != 1 || !strings.Contains(said, "smtpserver has ended") || !strings.Contains(said, "address already in use") {
		t.Errorf("start with a taken port: %d %s", code, said)
	}
	zmctl(t, other, "stop", "--direct") // it would take the port when it is free

	ours, err := s.Processes()
	must(t, err)
	killed := 0
	for _, p := range ours {
		if p.Name == "zmctl" {
			killed++
			must(t, syscall.Kill(p.Pid, syscall.SIGKILL))
		}
	}
	if killed != 1 {
		t.Fatalf("%d zmctl run were killed, want 1: %+v", killed, ours)
	}
	await(t, s, "the end of the daemons", func() (bool, error) {
		left, err := s.Processes()
		return len(left) == 0, err
	})
	zmctl(t, s, "start", "--direct")
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 1)
	zmctl(t, s, "stop", "--direct")
	if _, err := os.Stat(log); errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(s.PostOffice(), ".run")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}
