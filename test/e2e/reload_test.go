package e2e

import (
	"bufio"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/config"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

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
	must(t, sink.Wait(1, patience))
	event(t, s, "unknown-channel", "rcpt", "alice@mta.example")

	configure(t, s, "scheduler.conf", strings.Replace(conf, "maxta=20", "maxtr=20 rate=much", 1))
	said, code = run(t, s.Command("zmctl", "check-config"))
	if code != config.ExitConfig || !strings.Contains(said, "scheduler.conf:2:56: rate=much") {
		t.Errorf("check-config of a bad one: %d\n%s", code, said)
	}
	exits(t, s, 0, "zmctl", "reload")
	event(t, s, "conf-refused")

	// What stands behind the level of tls= the agent knows.
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
	must(t, sink.Wait(2, patience))
	awaitEmpty(t, s)
	if n := s.Count("agent-started", "channel", "smtp"); n != 1 {
		t.Errorf("%d agents for smtp were started, want the one of the beginning", n)
	}
}

// M22: the flags of a start, as ZMailer's scheduler has them; frozen, it looks and starts
// nothing.
func TestFlagsOfAStart(t *testing.T) {
	t.Parallel()
	s := start(t, nil, func(s *suite.Suite) { s.Files["scheduler.conf"] = strings.Replace(schedulerConf, "local/*\n", "", 1) })
	submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
	event(t, s, "unknown-channel")
	stop(t, s)
	configure(t, s, "scheduler.conf", schedulerConf)
	for _, flags := range []string{"-E 0", "-E x", "-p smtp", "-p /h", "-HHH"} {
		exits(t, s, config.ExitUsage, "scheduler", strings.Fields(flags)...)
	}
	for _, flags := range []string{"-F", "-SF -E 5", "-p smtp/*"} {
		cmd := s.Command("scheduler", strings.Fields(flags)...)
		out, err := cmd.StderrPipe()
		must(t, err)
		must(t, cmd.Start())
		var said strings.Builder
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Fprintln(&said, lines.Text())
			if strings.Contains(lines.Text(), "scanned") {
				must(t, cmd.Process.Signal(syscall.SIGTERM))
			}
		}
		if err := cmd.Wait(); err != nil || !strings.Contains(said.String(), "scanned") || strings.Contains(said.String(), "agent-started") {
			t.Errorf("%s: %v\n%s", flags, err, said.String())
		}
	}
	restart(t, s)
	awaitMail(t, s, "alice", 1)
}
