package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// script is a scheduler's side of a conversation, over real pipes.
type script struct {
	*testing.T
	in    *os.File // to the agent
	agent *session
	lines chan string
	ended chan error // Run's result
}

// converse starts Run in this process.
func converse(t *testing.T, ctx context.Context, a *Agent, slots int, to Deliverer) *script {
	t.Helper()
	agentIn, toAgent := pipe(t)
	fromAgent, agentOut := pipe(t)
	c := &script{T: t, in: toAgent, lines: make(chan string, 1000), ended: make(chan error, 1),
		agent: newSession(a, agentOut, to)}
	go c.listen(fromAgent)
	go func() {
		err := c.agent.run(ctx, agentIn, slots)
		agentOut.Close()
		c.ended <- err
	}()
	return c
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	assert.Must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// listen passes on what single reads bring: each write of the agent is one.
func (c *script) listen(r io.Reader) {
	defer close(c.lines)
	b := make([]byte, 64<<10)
	for {
		n, err := r.Read(b)
		if err != nil {
			return
		}
		c.lines <- string(b[:n])
	}
}

func (c *script) say(s string) {
	c.Helper()
	if _, err := io.WriteString(c.in, s); err != nil {
		c.Fatal(err)
	}
}

// hear waits for what the agent says next.
func (c *script) hear() string {
	c.Helper()
	select {
	case s := <-c.lines:
		return s
	case <-time.After(20 * time.Second):
		c.Fatal("the agent sends nothing")
	}
	return ""
}

func (c *script) want(want string) {
	c.Helper()
	assert.Equal(c, c.hear(), want)
}

func (c *script) wantEnd() {
	c.Helper()
	select {
	case err := <-c.ended:
		if err != nil {
			c.Errorf("Run: got %v, want nil", err)
		}
	case <-time.After(20 * time.Second):
		c.Fatal("Run does not end")
	}
}

// waitStopped waits until the agent has seen that it is to stop.
func (c *script) waitStopped() {
	c.agent.mu.Lock()
	defer c.agent.mu.Unlock()
	for !c.agent.ended {
		c.agent.more.Wait()
	}
}

func TestOneSlotConversation(t *testing.T) { // M32, S7
	s := newSpool(t)
	var order []string
	c := converse(t, t.Context(), s.agent, 1, deliverFunc(func(ctx context.Context, d *Delivery) {
		order = append(order, d.Job.Name)
		give(ok).Deliver(ctx, d)
	}))
	c.want("#hungry\n")
	answer := func(name string) string {
		number, _, _ := strings.Cut(name, "-")
		return fmt.Sprintf("%s/%d\t\tok3 250 2.0.0 queued\n#hungry\n", number, s.Spec(name).Groups[0].Recipients[0].Offset)
	}
	// Feeding ahead: read in order, each answered. All answers to one job and its
	// #hungry are one write; those of the next may follow in the same read.
	var names []string
	for range 3 {
		names = append(names, s.queue(rcpt{"smtp", "h", "a@h", ""}))
	}
	c.say(names[0] + "\th\n" + names[1] + "\th\n" + names[2] + "\th\n")
	got := ""
	for strings.Count(got, "#hungry\n") < 3 {
		got += c.hear()
	}
	assert.Equal(t, got, answer(names[0])+answer(names[1])+answer(names[2]))
	assert.Same(t, order, names, "order")
	c.say("#idle\n")
	c.want("#hungry\n")
	c.say("#what is this\n\x00\n")
	c.say("no-such-file\th\n")
	c.want("#resync no-such-file\n#hungry\n")
	assert.Equal(t, strings.Count(s.log.String(), "msg=command-ignored"), 2, "ignored commands in the log")
	c.say("\n")
	c.wantEnd()
}

func TestSlotsAskInOneWriteAndWorkAtOnce(t *testing.T) {
	s := newSpool(t)
	const slots = 4
	begun, finish := make(chan string, slots), make(chan bool)
	c := converse(t, t.Context(), s.agent, slots, deliverFunc(func(ctx context.Context, d *Delivery) {
		begun <- d.Job.Name
		<-finish
		give(ok).Deliver(ctx, d)
	}))
	c.want("#slots 4\n" + strings.Repeat("#hungry\n", slots))
	var names []string
	for range slots + 2 {
		name := s.queue(rcpt{"smtp", "h", "a@h", ""})
		names = append(names, name)
		c.say(name + "\th\n")
	}
	for range slots {
		<-begun
	}
	select {
	case name := <-begun:
		t.Errorf("%s was begun in a slot too many", name)
	default:
	}
	close(finish)
	got := ""
	for strings.Count(got, "#hungry\n") < len(names) {
		got += c.hear()
	}
	assert.Equal(t, strings.Count(got, "\tok3 "), len(names), "ok3")
	c.in.Close()
	c.wantEnd()
}

// The end of the input, an empty line and a signal are one thing: what runs
// finishes, what waits is dropped.
func TestStopFinishesWhatRunsAndDropsTheRest(t *testing.T) { // A17, M32
	for name, stop := range map[string]func(c *script, cancel func()){
		"end of input": func(c *script, _ func()) { c.in.Close() },
		"empty line":   func(c *script, _ func()) { c.say("\n") },
		"signal":       func(_ *script, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun, finish := make(chan bool), make(chan bool)
			c := converse(t, ctx, s.agent, 1, deliverFunc(func(ctx context.Context, d *Delivery) {
				begun <- true
				<-finish
				if ctx.Err() != nil {
					t.Error("the running delivery's context is done")
				}
				give(ok).Deliver(ctx, d)
			}))
			c.want("#hungry\n")
			runs, waits := s.queue(rcpt{"smtp", "h", "a@h", ""}), s.queue(rcpt{"smtp", "h", "a@h", ""})
			c.say(runs + "\th\n" + waits + "\th\n")
			<-begun
			stop(c, cancel)
			c.waitStopped() // else the next job could still begin
			close(finish)
			got := c.hear()
			if !strings.HasSuffix(got, "\tok3 250 2.0.0 queued\n#hungry\n") {
				t.Errorf("got %q, want the running job's answer", got)
			}
			c.wantEnd()
			assert.Equal(t, s.Tags(runs)+s.Tags(waits), "+ ", "tags")
		})
	}
}

func TestSchedulerThatStopsReadingEndsTheAgentInOrder(t *testing.T) { // M18
	s := newSpool(t)
	in, toAgent := pipe(t)
	fromAgent, out := pipe(t)
	begun, finish := make(chan bool), make(chan bool)
	session := newSession(s.agent, out, deliverFunc(func(ctx context.Context, d *Delivery) {
		begun <- true
		<-finish
		give(ok).Deliver(ctx, d)
	}))
	ended := make(chan error, 1)
	go func() { ended <- session.run(t.Context(), in, 2) }()
	names := []string{s.queue(rcpt{"smtp", "h", "a@h", ""}), s.queue(rcpt{"smtp", "h", "a@h", ""})}
	if _, err := io.WriteString(toAgent, names[0]+"\th\n"+names[1]+"\th\n"); err != nil {
		t.Fatal(err)
	}
	<-begun
	<-begun
	fromAgent.Close()
	finish <- true
	finish <- true
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("got %v, want EPIPE", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not end")
	}
	assert.Equal(t, s.Tags(names[0])+s.Tags(names[1]), "++", "tags")
}

// Del2: what an agent holds of a message to 10,000 recipients is no more after a thousand
// attempts than three times as much as after the first.
func TestDel2ClaimIsBounded(t *testing.T) {
	s := newSpool(t)
	list := make([]rcpt, 10_000)
	for i := range list {
		list[i] = rcpt{channel: "smtp", host: "h", address: fmt.Sprintf("user%d@h", i)}
	}
	name := s.queue(list...)
	var offsets []int64
	spec := s.Spec(name)
	for _, r := range spec.Groups[0].Recipients {
		offsets = append(offsets, r.Offset)
	}
	host := deliverFunc(func(_ context.Context, d *Delivery) {
		results := make([]Result, len(d.Recipients))
		for i := range results {
			results[i] = Result{Outcome: status.Deferred, Reply: "451 4.7.1 later"}
		}
		d.DoneAll(d.Recipients, results)
	})
	claim := func() uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if got := s.do(name, "h", host); len(got) < len(list) {
			t.Fatalf("the agent sent %q", got)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	file := []byte(s.Text(name))
	first, most := uint64(0), uint64(0)
	for n := 1; n <= 1000; n++ {
		now := testTime.Add(time.Duration(n) * time.Minute)
		e := workspec.DeferredEvent(now, 0, n, now, status.Code{Class: 4, Subject: 7, Detail: 1}, "451 4.7.1 later")
		spec.SetAbout(&e, offsets)
		file = workspec.AppendEvent(file, &e)
		// The scheduler summarises when readers have gone over 64k recipients.
		summary := n%7 == 0
		if summary || n == 1 {
			assert.Must(t, os.WriteFile(s.Path(name), file, 0o600))
			got := uint64(0)
			if n == 1 || n%70 == 0 {
				got = claim()
			}
			if most = max(most, got); n == 1 {
				first = got
			}
		}
		if summary {
			if file = workspec.Summarise(file, now); file == nil {
				t.Fatal("it was not summarised")
			}
		}
	}
	t.Logf("a job allocates %d bytes after the first attempt, at most %d", first, most)
	if most > 3*first {
		t.Errorf("a job allocates %d bytes after the first attempt, at most %d", first, most)
	}
}
