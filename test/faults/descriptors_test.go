package faults

import (
	"strings"
	"sync/atomic"
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
			var met atomic.Bool
			sent := make(chan error, 1)
			go func() {
				var err error
				for round := 0; err == nil && (round < 4 || !met.Load()); round++ {
					err = s.load.Round(s.ctx, round)
				}
				sent <- err
			}()
			bound := map[int]func(){} // by number of the process: an agent may end, and another start
			s.await("call that met the limit", func() bool {
				for _, p := range s.running(program) {
					if bound[p.Pid] == nil {
						bound[p.Pid] = s.bound(p)
					}
				}
				return strings.Contains(s.Log(), unix.EMFILE.Error())
			})
			met.Store(true)
			<-time.After(2 * time.Second) // retries of a second fail, too
			for _, release := range bound {
				release()
			}
			s.must("submit", <-sent)
			s.settle()
			s.failedRightly()
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
	// An agent may have ended in order meanwhile.
	err := unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, nil, &was)
	if err == nil {
		now := unix.Rlimit{Cur: 3, Max: was.Max} // of the numbers of new ones
		err = unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, &now, nil)
	}
	if err != nil && err != unix.ESRCH {
		s.Fatalf("set the limit: %v", err)
	}
	return func() {
		if err := unix.Prlimit(p.Pid, unix.RLIMIT_NOFILE, &was, nil); err != unix.ESRCH {
			s.try("restore the limit", err)
		}
	}
}
