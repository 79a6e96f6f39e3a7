package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/load"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// K9 S7: each program is stopped under load for longer than every wait that can be
// set, and goes on: what it held is left alone meanwhile, and everything arrives,
// once. Fixed and longer are only the agents' SMTP timeouts, minutes by RFC 5321
// §4.5.3.2, after which an agent defers, and the owner's lock, which has none.
func TestStoppedProgramLosesNothing(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"smtpserver", "router", "scheduler", "ta-smtp", "ta-mailbox"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			s := prepare(t, nil)
			s.begin()
			s.accepted(load.Kinds()...)
			sent := make(chan error, 1)
			go func() {
				var err error
				for round := range 5 {
					if err = s.load.Round(s.ctx, round); err != nil {
						break
					}
				}
				sent <- err
			}()
			s.await(program, func() bool { return len(s.running(program)) > 0 })
			// ROUTERPOLL is one second, the retry of a thread too, the scheduler looks
			// every 15: what it would take over, it would then.
			pause := 6 * time.Second
			if program != "smtpserver" && !testing.Short() {
				pause = 17 * time.Second
			}
			resume := s.stop(program)
			<-time.After(pause) // being stopped is the point: nothing happens that could be waited for
			resume()
			s.must("submit", <-sent)
			a := s.settle()
			if len(a.Repeated) > 0 {
				t.Errorf("repeated: %v", a.Repeated)
			}
			for _, e := range s.Events() {
				if e.Is("recovered") || e.Is("in-doubt") || e.Is("daemon-ended") || e.Is("agent-killed") {
					t.Errorf("a stopped process is not a dead one: %v", e)
				}
			}
		})
	}
}

// K9: a router that is stopped with messages claimed is alive: another router, and
// the scheduler, leave them alone; the other one routes what comes.
func TestStoppedRouterKeepsItsClaims(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil)
	s.begin()
	claims := func() (list []string) {
		for _, name := range s.names("router") {
			if strings.Contains(name, "-") && !strings.HasPrefix(name, ".") {
				list = append(list, name)
			}
		}
		return list
	}
	// Many recipients make a claim last long enough to be met.
	many := []string{"-i", "-f", "bob@mta.example"}
	for n := range 5000 {
		many = append(many, fmt.Sprintf("n%d@sink.example", n))
	}
	// Looked up before: on a busy machine a claim does not last as long as a walk of /proc.
	s.await("router", func() bool { return len(s.running("router")) > 0 })
	routers := s.running("router")
	var resume func()
	var held []string
	for len(held) == 0 {
		cmd := s.Command("submit", many...)
		cmd.Stdin = strings.NewReader("Subject: many\n\n")
		s.must("submit", cmd.Run())
		for end := time.Now().Add(2 * time.Second); len(held) == 0 && time.Now().Before(end); {
			if len(claims()) == 0 {
				continue
			}
			resume = s.stopAll("router", routers)
			if held = claims(); len(held) == 0 {
				resume()
			}
		}
		if s.ctx.Err() != nil {
			t.Fatal("no claim was met")
		}
	}
	other := s.Command("router")
	s.must("start another router", other.Start())
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait() // it was killed
	})
	s.accepted(load.Local)
	s.event("delivered", "rcpt", "alice@mta.example")
	<-time.After(5 * time.Second) // five polls, in which nothing is to happen
	assert.Equal(t, strings.Join(claims(), " "), strings.Join(held, " "), held)
	resume()
	s.settle()
}

// A submitter that is stopped while it writes is alive, however old its file: nothing
// that sweeps removes or takes it, and it can go on.
func TestStoppedSubmitterKeepsItsDraft(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil)
	s.begin()
	cmd := s.Command("submit", "-i", "-f", "bob@mta.example", "alice@mta.example")
	in, err := cmd.StdinPipe()
	s.must("pipe", err)
	s.must("start submit", cmd.Start())
	// More than its buffer, so that the file has a part of it.
	_, err = in.Write([]byte("Subject: slow\n\n" + strings.Repeat(strings.Repeat("y", 71)+"\n", 2000)))
	s.must("write", err)
	s.await("draft", func() bool { return len(s.names("public")) == 1 })
	s.must("stop", unix.Kill(cmd.Process.Pid, unix.SIGSTOP))
	draft := s.path("public/" + s.names("public")[0])
	old := time.Now().Add(-48 * time.Hour)
	s.must("make it old", os.Chtimes(draft, old, old))
	s.accepted(load.Local)
	<-time.After(4 * time.Second) // as many polls of the router
	if _, err := os.Stat(draft); err != nil {
		t.Errorf("the draft of a live writer: %v", err)
	}
	s.must("continue", unix.Kill(cmd.Process.Pid, unix.SIGCONT))
	_, err = in.Write([]byte("the end\n"))
	s.must("write", err)
	s.must("close", in.Close())
	s.must("submit", cmd.Wait())
	s.await("its message", func() bool {
		mail, err := suite.Mail(s.Maildir("alice"))
		s.must("read mail", err)
		for _, m := range mail {
			if strings.HasSuffix(string(m), "\nthe end\n") {
				return true
			}
		}
		return false
	})
	s.settle()
}

// K9 S7: an agent that is stopped in the middle of a delivery holds its recipient
// while the scheduler is killed, although the kernel hangs up on it then: no other process
// delivers, and when it goes on its mark counts.
func TestStoppedAgentOutlivesItsScheduler(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil)
	g := newGate(peer.AtDot, 1)
	t.Cleanup(g.release)
	s.load.Sink.Stall = g.stall
	s.begin()
	s.accepted(load.Relay)
	g.await(s)
	resume := s.stop("ta-smtp")
	for _, p := range s.running("scheduler") {
		s.must("kill", p.Kill())
	}
	s.event("daemon-ended", "daemon", "scheduler")
	s.accepted(load.Relay, load.Three, load.Later)
	s.must("the next scheduler works", s.load.Sink.Wait(3, patience))
	g.release()
	resume()
	a := s.settle()
	if len(a.Repeated) > 0 || s.Count("in-doubt") > 0 {
		t.Errorf("in doubt: %d, repeated: %v", s.Count("in-doubt"), a.Repeated)
	}
}

// gate holds messages up at one moment of their transactions until it is opened; the
// first so many.
type gate struct {
	at      string
	reached chan struct{}
	places  chan struct{}
	open    chan struct{}
	over    chan struct{}
}

func newGate(at string, places int) *gate {
	return &gate{at: at, reached: make(chan struct{}, 1000), places: make(chan struct{}, places), open: make(chan struct{}), over: make(chan struct{}, 1)}
}

func (g *gate) stall(at string, _ *peer.Message) {
	if at != g.at {
		return
	}
	select {
	case g.places <- struct{}{}:
		g.reached <- struct{}{}
		<-g.open
	default:
	}
}

// release opens it for good.
func (g *gate) release() {
	select {
	case g.over <- struct{}{}:
		close(g.open)
	default:
	}
}

// await waits until a message is at the gate.
func (g *gate) await(s *system) {
	s.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		s.Fatalf("no message has come to %s", g.at)
	}
}
