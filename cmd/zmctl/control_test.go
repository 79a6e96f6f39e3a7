package main

import (
	"log/slog"
	"os/exec"
	"testing"
	"time"
)

// Sec9: while one daemon takes its time to end, zmctl run says how its daemons do, and
// finds the others.
func TestSec9StatusIsAnsweredWhileADaemonEnds(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("sleep is missing")
	}
	waits := make(chan struct{}, 10)
	s := &supervisor{
		log: slog.New(slog.DiscardHandler), out: t.Output(), err: t.Output(), pause: time.Millisecond, now: time.Now,
		after: func(time.Duration) <-chan time.Time {
			waits <- struct{}{}
			return nil // for ever
		},
	}
	ending := newDaemon("router", sleep, "1000")
	ending.stopping = true // somebody has told it to, and it is at it
	s.daemons = []*daemon{newDaemon("smtpserver", sleep, "1000"), ending}
	type answer struct {
		d   *daemon
		err error
	}
	started := make(chan answer, 1)
	go func() {
		d, err := s.startOne("router")
		started <- answer{d, err}
	}()
	<-waits
	status := make(chan int, 1)
	go func() { status <- len(s.states()) }()
	select {
	case n := <-status:
		if n != 2 || s.find("smtpserver") == nil || s.ending() {
			t.Errorf("got %d daemons, want both", n)
		}
	case <-time.After(10 * time.Second):
		t.Error("no answer while a daemon ends")
	}
	close(ending.done)
	a := <-started
	if a.err != nil || a.d == ending || s.find("router") != a.d {
		t.Fatalf("got %+v, want a new daemon in its place", a)
	}
	s.end(a.d)
}
