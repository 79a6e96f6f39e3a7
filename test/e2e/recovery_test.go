package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// traffic is a load whose every message is counted, at both ends.
type traffic struct {
	s    *suite.Suite
	sink *peer.Sink

	mu       sync.Mutex
	arrivals map[string]int // by recipient
	unsure   map[string]int // tries that ended without an answer: accepted or not
}

// newTraffic makes a system and a sink that answers RCPT by rcpt; change may be nil, too.
func newTraffic(t *testing.T, rcpt func(address string, attempt int) string, change func(s *suite.Suite)) *traffic {
	t.Helper()
	x := &traffic{arrivals: map[string]int{}, unsure: map[string]int{}}
	x.sink = newSink(t, &peer.Sink{Discard: true, Rcpt: rcpt, OnMessage: func(m *peer.Message) {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, r := range m.Recipients {
			x.arrivals[r]++
		}
	}})
	x.s = start(t, x.sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"ROUTERPOLL": "1s"}
		if change != nil {
			change(s)
		}
	})
	return x
}

// drained waits until the postoffice is empty. Drafts of killed submitters are made
// old: then a router takes them away.
func (x *traffic) drained(t *testing.T) {
	t.Helper()
	old := time.Now().Add(-2 * time.Hour)
	await(t, x.s, "an empty postoffice", func() (bool, error) {
		left, err := x.s.Left()
		left = x.s.DropDrafts(left)
		for _, name := range left {
			if strings.HasPrefix(name, "public/smtp.") {
				// An error means that it is gone.
				_ = os.Chtimes(path(x.s, name), old, old)
			}
		}
		return len(left) == 0, err
	})
}

func recipientOf(n int) string { return fmt.Sprintf("n%d@sink.example", n) }

// send has messages 0 to count-1 accepted, each tried until it is, over four
// connections at once. The result is closed when all are.
func (x *traffic) send(ctx context.Context, count int) <-chan struct{} {
	body := "Subject: load\n\n" + strings.Repeat(strings.Repeat("x", 76)+"\n", 20)
	next := make(chan int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range next {
				to := recipientOf(n)
				src := source(x.s, 1, "bob@mta.example", to, body)
				for src.Run(ctx) != nil && ctx.Err() == nil {
					x.mu.Lock()
					x.unsure[to]++
					x.mu.Unlock()
					time.Sleep(10 * time.Millisecond) // a port has no event to wait for
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer wg.Wait()
		defer close(next)
		for n := range count {
			select {
			case next <- n:
			case <-ctx.Done():
				return
			}
		}
	}()
	return done
}

// doubts counts, by recipient, the deliveries that the log calls in doubt.
func (x *traffic) doubts() map[string]int {
	rcpts, list := map[string][]string{}, map[string]int{}
	all := x.s.Events()
	for _, e := range all {
		if e.Word == "delivered" {
			rcpts[e.Get("id")] = append(rcpts[e.Get("id")], e.Get("rcpt"))
		}
	}
	for _, e := range all {
		if e.Word == "in-doubt" {
			for _, r := range rcpts[e.Get("id")] {
				list[r]++
			}
		}
	}
	return list
}

// check wants messages 0 to count-1 at the sink: each once, or again for a reason that
// is known.
func (x *traffic) check(t *testing.T, count int, refused func(n int) bool) {
	t.Helper()
	doubts := x.doubts()
	x.mu.Lock()
	defer x.mu.Unlock()
	again := 0
	for n := range count {
		to := recipientOf(n)
		got := x.arrivals[to]
		switch {
		case refused != nil && refused(n):
			assert.Equal(t, got, 0, to)
		case got < 1 || got > 1+x.unsure[to]+doubts[to]:
			t.Errorf("%s arrived %d times; %d tries to submit it had no answer, %d deliveries were in doubt", to, got, x.unsure[to], doubts[to])
		default:
			again += got - 1
		}
	}
	t.Logf("%d messages arrived again", again)
}

// killOne kills a process of a program.
func killOne(t *testing.T, s *suite.Suite, program string) {
	t.Helper()
	assert.Must(t, oneOf(t, s, program).Kill())
}

// Each program is killed under load and started again by zmctl run or by the scheduler:
// everything arrives, nothing twice except deliveries that the log calls in doubt, and nothing
// is left.
func TestKilledProgramLosesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"smtpserver", "router", "scheduler", "ta-smtp"} {
		t.Run(name, func(t *testing.T) {
			const count = 300
			x := newTraffic(t, nil, nil)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			sent := x.send(ctx, count)
			assert.Must(t, x.sink.Wait(count/5, patience))
			killOne(t, x.s, name)
			<-sent
			assert.Must(t, ctx.Err())
			x.drained(t)
			x.check(t, count, nil)
		})
	}
}

// M18: an agent that is killed before the message has gone out: it goes out once.
func TestAgentKilledBeforeDataDeliversOnce(t *testing.T) {
	t.Parallel()
	s, sink, g := stalled(t, peer.AtData)
	killOne(t, s, "ta-smtp")
	event(t, s, "agent-ended", "state", "signal: killed")
	g.release()
	awaitEmpty(t, s)
	wantArrived(t, sink, 1)
	event(t, s, "recovered", "action", "unlocked", "rcpt", "far@sink.example")
}

// M18: an agent that is killed between the final dot and its answer: the message is
// sent again, and the log and the message's history say that this is in doubt.
func TestAgentKilledAfterTheDotLeavesDoubt(t *testing.T) {
	t.Parallel()
	s, sink, g := stalled(t, peer.AtDot)
	killOne(t, s, "ta-smtp")
	g.await(t) // sent again
	history := ""
	for _, e := range spec(t, s, only(t, s, "transport")).History {
		history += e.Event + " "
	}
	assert.Equal(t, history, "sent unlocked in-doubt sent ")
	e := event(t, s, "in-doubt")
	if e.Level != "WARN" || e.Get("id") == "" {
		t.Errorf("got %+v", e)
	}
	g.release()
	awaitEmpty(t, s)
	wantArrived(t, sink, 2)
}

// M18: the scheduler is killed while an agent delivers; the agent ends its delivery,
// and what it marks counts for the next scheduler.
func TestSchedulerKilledWhileAgentDelivers(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, s *suite.Suite, g *gate){
		"the agent ends before the next scheduler looks": func(t *testing.T, s *suite.Suite, g *gate) {
			g.release()
		},
		"the agent ends when the next scheduler waits for it": func(t *testing.T, s *suite.Suite, g *gate) {
			if testing.Short() {
				t.Skip("a scheduler looks at locked files every 15 s")
			}
			event(t, s, "started", "program", "scheduler")
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "alice@mta.example")
			awaitMail(t, s, "alice", 1)
			g.release()
		},
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, sink, g := stalled(t, peer.AtDot)
			s.Forget()
			killOne(t, s, "scheduler")
			end(t, s, g)
			awaitEmpty(t, s)
			wantArrived(t, sink, 1)
			wantNone(t, s, "in-doubt")
		})
	}
}

// M18: both are killed in mid-delivery, in either order, before the message has gone
// out: the next scheduler finds the dead agent's lock, and it goes out once.
func TestSchedulerAndAgentKilledInEitherOrder(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"scheduler", "ta-smtp"}, {"ta-smtp", "scheduler"}} {
		t.Run(strings.Join(order, ", then "), func(t *testing.T) {
			t.Parallel()
			s, sink, g := stalled(t, peer.AtData)
			s.Forget()
			killOne(t, s, order[0])
			for _, p := range processes(t, s) { // the scheduler may have started another agent
				if p.Name == order[1] {
					assert.Must(t, p.Kill())
				}
			}
			g.release()
			awaitEmpty(t, s)
			event(t, s, "started", "program", "scheduler")
			event(t, s, "recovered", "action", "unlocked", "rcpt", "far@sink.example")
			wantArrived(t, sink, 1)
			wantNone(t, s, "in-doubt")
		})
	}
}
