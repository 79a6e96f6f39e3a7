package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// service returns a system that zmctl start runs in the background.
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
	wantIn(t, said, "smtpserver", "router", "scheduler")
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

	assert.Must(t, os.Rename(log, log+".1"))
	zmctl(t, s, "reload")
	submit(t, s, "Subject: three\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, s, "alice", 3)
	awaitEmpty(t, s)
	zmctl(t, s, "stop", "--direct")
	// Every program has ended, so the log is complete.
	assert.Equal(t, strings.Count(zmctl(t, s, "log", "--event", "delivered"), "\n"), 1)
	assert.Equal(t, strings.Count(zmctl(t, s, "log", "--since", "1h", "--event", "delivered"), "\n"), 3)
	if said := zmctl(t, s, "log", "--since", "1h", "--event", "conf-*"); !strings.Contains(said, "msg=conf-read") {
		t.Errorf("the scheduler has not read its configuration again: %s", said)
	}

	zmctl(t, s, "freeze-service", "the disk is moved")
	exits(t, s, config.ExitConfig, "zmctl", "start", "--direct")
	zmctl(t, s, "thaw-service")
	zmctl(t, s, "start", "--direct")
	zmctl(t, s, "cleanup")
	// A log that was rotated is reopened also while scheduler.conf cannot be used.
	configure(t, s, "scheduler.conf", "smtp/*\n\tnonsense=1\n")
	assert.Must(t, os.Rename(log, log+".2"))
	exits(t, s, config.ExitConfig, "zmctl", "reload")
	if _, err := os.Stat(log); err != nil {
		t.Errorf("the log was not reopened: %v", err)
	}
	zmctl(t, s, "stop", "--direct")
	exits(t, s, 0, "zmctl", "stop", "--direct")
}

// M30, M42, Z19: a configuration is checked, refused or taken while the daemons run, by the
// real programs; a bad one changes nothing, a good one keeps the agents.
func TestConfigurationIsCheckedAndReloaded(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	// However long it takes, no agent ends because it is idle.
	conf := strings.Replace(schedulerConf, "maxthr=20", "maxthr=20 idlemax=1h", 1)
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = strings.Replace(conf, "local/*\n", "", 1)
	})
	said, code := run(t, s.Command("zmctl", "check-config"))
	if code != 0 || !strings.Contains(said, "scheduler.conf: 5 clauses; the configuration can be used") || !strings.Contains(said, "tables can be used") {
		t.Errorf("check-config of a good one: %d\n%s", code, said)
	}
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "one@sink.example")
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	assert.Must(t, sink.Wait(1, patience))
	event(t, s, "unknown-channel", "rcpt", "alice@mta.example")

	configure(t, s, "scheduler.conf", strings.Replace(conf, "maxta=20", "maxtr=20 rate=much", 1))
	said, code = run(t, s.Command("zmctl", "check-config"))
	if code != config.ExitConfig || !strings.Contains(said, "scheduler.conf:2:56: rate=much") {
		t.Errorf("check-config of a bad one: %d\n%s", code, said)
	}
	exits(t, s, config.ExitConfig, "zmctl", "reload")
	event(t, s, "conf-refused")

	// The agent checks what follows the level of tls=.
	configure(t, s, "scheduler.conf", strings.Replace(conf, "maxta=20", `tls="verify ca=/missing" maxta=20`, 1))
	said, code = run(t, s.Command("zmctl", "check-config"))
	if code != config.ExitConfig || !strings.Contains(said, "scheduler.conf:2:42: tls=verify ca=/missing: ca=: open /missing: no such file") {
		t.Errorf("check-config of a policy that agents refuse: %d\n%s", code, said)
	}

	configure(t, s, "scheduler.conf", strings.Replace(conf, "expiry=1h", "expiry=2h start=3", 1))
	exits(t, s, 0, "zmctl", "reload")
	event(t, s, "conf-read")
	awaitMail(t, s, "alice", 1)
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "two@sink.example")
	assert.Must(t, sink.Wait(2, patience))
	awaitEmpty(t, s)
	assert.Equal(t, s.Count("agent-started", "channel", "smtp"), 1)
}

// A17: SIGTERM while an agent is in DATA: that delivery is finished, no other one begins, and
// later messages wait for the next start.
func TestStopFinishesADeliveryInData(t *testing.T) {
	t.Parallel()
	for _, at := range []string{peer.AtData, peer.AtDot} {
		t.Run("stopped at "+at, func(t *testing.T) {
			s, sink, g := stalled(t, at)
			ended := make(chan error, 1)
			go func() { ended <- s.Stop() }()
			event(t, s, "stopping", "program", "scheduler", "deliveries", "1")
			submit(t, s, "Subject: late\n\n", "-f", "bob@mta.example", "late@sink.example")
			g.release()
			select {
			case err := <-ended:
				assert.Must(t, err)
			case <-time.After(patience):
				t.Fatal("it does not stop")
			}
			assert.Equal(t, rcptsOf(sink), "far@sink.example")
			left, err := s.Left()
			if err != nil || len(left) != 1 || !strings.HasPrefix(left[0], "router/") {
				t.Errorf("left: %q, %v, want the late message in router/", left, err)
			}
			restart(t, s)
			awaitEmpty(t, s)
			assert.Equal(t, rcptsOf(sink), "far@sink.example late@sink.example")
			assert.Equal(t, s.Count("in-doubt")+s.Count("agent-killed")+s.Count("daemon-killed"), 0)
		})
	}
}

// A17: SIGTERM while a client is in DATA: its message is accepted and answered.
func TestStopFinishesASubmissionInData(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, nil)
	k := connect(t, s.SMTPAddr)
	k.envelope("bob@mta.example", "far@sink.example")
	k.write("Subject: x\r\n\r\nfirst half\r\n")
	ended := make(chan error, 1)
	go func() { ended <- s.Stop() }()
	await(t, s, "closed port", func() (bool, error) {
		probe, err := net.Dial("tcp", s.SMTPAddr)
		if err != nil {
			return true, nil
		}
		return false, probe.Close()
	})
	k.say("second half\r\n.", "250")
	assert.Must(t, <-ended)
	restart(t, s)
	awaitEmpty(t, s)
	got := sink.Messages()
	if len(got) != 1 || !strings.HasSuffix(string(got[0].Data), "\r\n\r\nfirst half\r\nsecond half\r\n") {
		t.Errorf("%d messages arrived: %+v", len(got), got)
	}
}

// The trap "configuration frozen into queued mail": a message waits because the command
// of its channel cannot deliver, or because nothing serves the channel; what the next
// start finds in scheduler.conf delivers it.
func TestQueuedMailFollowsTheConfiguration(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = strings.NewReplacer("interval=1s", "interval=1h", "ta-smtp --slots=20", "false", "local/*\n", "").Replace(schedulerConf)
	})
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	event(t, s, "agent-ended", "state", "exit status 1")
	event(t, s, "unknown-channel", "rcpt", "alice@mta.example")
	stop(t, s)
	configure(t, s, "scheduler.conf", schedulerConf)
	restart(t, s)
	awaitMail(t, s, "alice", 1)
	awaitEmpty(t, s)
	wantArrived(t, sink, 1)
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
	assert.Must(t, os.WriteFile(x, nil, 0o600))
	for range limit/4 + 1000 {
		assert.Must(t, errors.Join(os.Rename(x, y), os.Rename(y, x)))
	}
	assert.Must(t, os.Remove(x))
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
	assert.Must(t, syscall.Kill(scheduler.Pid, syscall.SIGSTOP))
	flood(t, filepath.Join(s.PostOffice(), "transport"))
	send(5)
	await(t, s, "six routed messages", func() (bool, error) { return s.Count("routed") >= 6, nil })
	assert.Must(t, syscall.Kill(scheduler.Pid, syscall.SIGCONT))
	awaitMail(t, s, "alice", 6)
	send(40)
	awaitMail(t, s, "alice", 46)
	awaitEmpty(t, s)
}
