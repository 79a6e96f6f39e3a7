package e2e

import (
	"bufio"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease/leasetest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// greeting returns what smtpserver says first; "": it does not listen.
func greeting(s *suite.Suite) string {
	c, err := net.Dial("tcp", s.SMTPAddr)
	if err != nil {
		return ""
	}
	defer c.Close()
	if c.SetDeadline(time.Now().Add(patience)) != nil {
		return ""
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	return line
}

// C4: the daemons of a node accept and deliver mail under its lease, do nothing without one, and go on
// under the next.
func TestC4DaemonsWorkUnderTheLeaseAlone(t *testing.T) {
	t.Parallel()
	node := leasetest.New(t)
	if os.Getuid() == 0 {
		assert.Must(t, os.Chmod(node.Dir, 0o755)) // for the user of the daemons
	}
	sink := newSink(t, &peer.Sink{})
	s := start(t, sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"CLUSTER": "etcd://127.0.0.1:1", "NODE": "a", "LEASEDIR": node.Dir, "RCPTCHECK": "no"}
	})
	sendSMTP(t, s, "a@example.net", "b@far.example", "Subject: under the lease\n\nx\n")
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * patience); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not in time: %s\n%s", what, s.Log())
			}
		}
	}
	await("the message at the sink", func() bool { return len(arrivals(sink, "b@far.example")) == 1 })
	node.Lose()
	await("421 of smtpserver", func() bool { return strings.HasPrefix(greeting(s), "421 4.3.2") })
	await("that router and scheduler wait for a lease", func() bool {
		return s.Count("lease-awaited", "program", "router") > 0 && s.Count("lease-awaited", "program", "scheduler") > 0
	})
	cmd := s.Command("submit", "-f", "a@example.net", "c@far.example")
	cmd.Stdin = strings.NewReader("Subject: without a lease\n\nx\n")
	out, _ := cmd.CombinedOutput()
	assert.Equal(t, cmd.ProcessState.ExitCode(), config.ExitTempFail, "submit without a lease: ", string(out))
	node.Hold()
	await("a greeting", func() bool { return strings.HasPrefix(greeting(s), "220") })
	sendSMTP(t, s, "a@example.net", "d@far.example", "Subject: under the next lease\n\nx\n")
	await("the message at the sink", func() bool { return len(arrivals(sink, "d@far.example")) == 1 })
	assert.Equal(t, len(arrivals(sink, "b@far.example")), 1, "copies of the first message")
	assert.Equal(t, len(arrivals(sink, "c@far.example")), 0, "copies of what was refused")
}
