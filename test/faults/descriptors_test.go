package faults

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/load"
	"zmailer/test/suite"
)

// K12 S21: each program is out of descriptors under load for some seconds: what it
// would open, a message or a directory to read among them, fails with EMFILE. It lives
// on, and then everything arrives, once.
func TestNoDescriptorsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"smtpserver", "router", "scheduler", "ta-smtp", "ta-mailbox"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			s := prepare(t, nil)
			s.begin()
			s.accepted(load.Kinds()...)
			s.await(program, func() bool { return len(s.running(program)) > 0 })
			var release []func()
			for _, p := range s.running(program) {
				release = append(release, s.bound(p))
			}
			sent := make(chan error, 1)
			go func() {
				var err error
				for round := range 4 {
					if err = s.load.Round(s.ctx, round); err != nil {
						break
					}
				}
				sent <- err
			}()
			<-time.After(4 * time.Second) // retries of a second fail, too
			for _, r := range release {
				r()
			}
			s.must("submit", <-sent)
			s.settle()
			s.failedRightly()
			if !strings.Contains(s.Log(), unix.EMFILE.Error()) {
				t.Error("the limit was not met")
			}
			if got := s.Count("daemon-ended"); got > 0 {
				t.Errorf("%d daemons ended", got)
			}
		})
	}
}

// bound leaves a process no descriptor beside those that it has open, until the result
// is called.
func (s *system) bound(p suite.Process) (release func()) {
	s.Helper()
	var was unix.Rlimit
	s.must("read the limit", unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, nil, &was))
	now := unix.Rlimit{Cur: 3, Max: was.Max} // of the numbers of new ones
	s.must("set the limit", unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, &now, nil))
	return func() {
		// An agent may have ended in order meanwhile.
		if err := unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, &was, nil); err != unix.ESRCH {
			s.try("restore the limit", err)
		}
	}
}
