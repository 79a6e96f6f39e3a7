// Package e2e runs the real programs together: a message goes in by submit or SMTP
// and what comes out at a mailbox or another host is compared. Each file is one
// behaviour.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// patience is how long an event may take on a loaded machine.
const patience = rig.Patience

// bin is where TestMain has built the programs.
var bin string

func TestMain(m *testing.M) {
	suite.AtOnce(8)
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// start runs a system that routes everything but its own domain to sink. change may
// alter it before it starts.
func start(t *testing.T, sink *peer.Sink, change func(s *suite.Suite)) *suite.Suite {
	t.Helper()
	s := prepare(t, sink, change)
	begin(t, s)
	return s
}

// prepare makes such a system without starting it.
func prepare(t *testing.T, sink *peer.Sink, change func(s *suite.Suite)) *suite.Suite {
	t.Helper()
	s := &suite.Suite{
		Bin: bin, Dir: openDir(t), Users: []string{"alice", "bob"},
		Files: map[string]string{"scheduler.conf": schedulerConf},
	}
	if sink != nil {
		s.Files["routes"] = ". smtp!" + sink.RouteHost() + "\n"
	}
	if change != nil {
		change(s)
	}
	assert.Must(t, s.Init())
	return s
}

// openDir returns a directory of the test that other uids may enter: local users' mail and
// submissions are theirs when the test is root.
func openDir(t *testing.T) string { return rig.Dir(t) }

// begin starts a system that was prepared, and kills it when the test ends.
func begin(t *testing.T, s *suite.Suite) {
	t.Helper()
	rig.Start(t, s)
}

// restart starts a system that was stopped or killed.
func restart(t *testing.T, s *suite.Suite) {
	t.Helper()
	assert.Must(t, s.Start())
	s.AwaitDaemons(patience)
}

// stop ends a system in order.
func stop(t *testing.T, s *suite.Suite) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}
}

const schedulerConf = `*/*
	interval=1s retries="1 1 2 3" expiry=1h maxta=20 maxring=50 maxthr=20
smtp/*
smtpx/*
lmtp/*
	command="ta-smtp --slots=20 $channel"
local/*
file/*
	command="ta-mailbox --slots=4 $channel"
`

// submit gives a message to submit and wants it accepted.
func submit(t *testing.T, s *suite.Suite, message string, args ...string) {
	t.Helper()
	cmd := s.Command("submit", append([]string{"-i"}, args...)...)
	cmd.Stdin = strings.NewReader(message)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("submit %q: %v\n%s", args, err, out)
	}
}

// awaitMail waits until a Maildir has n messages and returns them.
func awaitMail(t *testing.T, s *suite.Suite, user string, n int) [][]byte {
	t.Helper()
	var mail [][]byte
	await(t, s, fmt.Sprintf("%d messages of %s", n, user), func() (bool, error) {
		var err error
		mail, err = suite.Mail(s.Maildir(user))
		return len(mail) >= n, err
	})
	return mail
}

// awaitEmpty waits until no message is left in the postoffice.
func awaitEmpty(t *testing.T, s *suite.Suite) {
	t.Helper()
	var left []string
	await(t, s, "an empty postoffice", func() (bool, error) {
		var err error
		left, err = s.Left()
		return len(left) == 0, err
	})
}

// await looks at a state on disk until it is as wanted: directories of another
// process have no event that a test could wait for without being part of the test.
func await(t *testing.T, s *suite.Suite, what string, ok func() (bool, error)) {
	t.Helper()
	awaitFor(t, s, patience, what, ok)
}

// awaitFor is await for what may take longer.
func awaitFor(t *testing.T, s *suite.Suite, limit time.Duration, what string, ok func() (bool, error)) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		good := assert.Get(ok())(t)
		if good {
			return
		}
		if time.Now().After(deadline) {
			left, _ := s.Left()
			t.Fatalf("no %s after %v; the postoffice holds %q", what, limit, left)
		}
	}
}

// processes lists the system's programs that run.
func processes(t *testing.T, s *suite.Suite) []suite.Process {
	t.Helper()
	list := assert.Get(s.Processes())(t)
	return list
}

// need skips a test that needs a program or a right that is not there.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed", program)
	}
	if program == "strace" {
		if out, err := exec.Command("strace", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
			t.Skipf("strace may not trace here: %v %s", err, out)
		}
	}
}

// needRoot skips a test that only root can do.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can do this")
	}
}
