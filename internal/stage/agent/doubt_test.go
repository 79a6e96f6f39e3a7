package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// stuck is an agent process that has recorded that it is sending, and goes no further.
type stuck struct {
	*exec.Cmd
	t     *testing.T
	ended bool
}

// send starts such a process for the recipients of a host.
func (s *spool) send(t *testing.T, name, host string) *stuck {
	t.Helper()
	c := &stuck{Cmd: exec.Command(self(t)), t: t}
	c.Env = append(os.Environ(), envAgent+"="+s.Dir)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	assert.Must(t, err)
	out, err := c.StdoutPipe()
	assert.Must(t, err)
	assert.Must(t, c.Start())
	t.Cleanup(c.kill)
	if _, err := io.WriteString(in, name+"\t"+host+"\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "# sent" {
			return c
		}
	}
	t.Fatalf("the agent for %s ended before it sent: %v", host, lines.Err())
	return nil
}

func (c *stuck) kill() {
	if c.ended {
		return
	}
	c.ended = true
	assert.NoError(c.t, c.Process.Kill())
	if err := c.Wait(); err == nil || err.Error() != "signal: killed" {
		c.t.Errorf("it ended before it was killed: %v", err)
	}
}

// Del1: two agents send one message at the same time, each to the recipients of its host,
// and one of them is killed before it has an answer. That its recipients are sent to again
// is recorded for each of them, whoever of the two was the last to record that it sends,
// and also where there are so many that the event does not list them.
func TestDel1KilledWhileAnotherAgentSends(t *testing.T) {
	for _, c := range []struct {
		hosts [2]string
		count [2]int
		dies  int
	}{
		{hosts: [2]string{"h0", "h1"}, count: [2]int{150, 150}, dies: 0},
		{hosts: [2]string{"h0", "h1"}, count: [2]int{150, 150}, dies: 1},
		{hosts: [2]string{"h0", "h1"}, count: [2]int{150, 3}, dies: 0},
		{hosts: [2]string{"h0", "h1"}, count: [2]int{150, 3}, dies: 1},
		{hosts: [2]string{"h0", "h1"}, count: [2]int{3, 150}, dies: 0},
		{hosts: [2]string{"h0", "h1"}, count: [2]int{3, 150}, dies: 1},
	} {
		t.Run(fmt.Sprintf("%d and %d recipients, agent %d dies", c.count[0], c.count[1], c.dies), func(t *testing.T) {
			s := newSpool(t)
			var list []rcpt
			for i, host := range c.hosts {
				for n := range c.count[i] {
					list = append(list, rcpt{"smtp", host, fmt.Sprintf("u%d@%s", n, host), ""})
				}
			}
			name := s.queue(list...)
			var agents []*stuck
			for _, host := range c.hosts {
				agents = append(agents, s.send(t, name, host))
			}
			owners := map[string]int{}
			for _, r := range s.Spec(name).Groups[0].Recipients {
				owners[r.Host] = r.Owner
			}
			for _, i := range []int{c.dies, 1 - c.dies} {
				agents[i].kill()
				s.do(name, c.hosts[i], give(ok))
				if got := s.inDoubt(name, owners[c.hosts[i]]); !slices.Equal(got, s.of(name, c.hosts[i])) {
					t.Errorf("%d recipients of %s were sent to again with a doubt on record, want all %d", len(got), c.hosts[i], c.count[i])
				}
			}
		})
	}
}

// inDoubt returns the recipients that a history says are in doubt by an owner.
func (s *spool) inDoubt(name string, owner int) (list []int64) {
	for _, e := range s.Spec(name).History {
		if e.Event == workspec.EventInDoubt && e.Get("owner") == strconv.Itoa(owner) {
			list = append(list, e.Recipient)
		}
	}
	slices.Sort(list)
	return list
}

// of returns a host's recipients.
func (s *spool) of(name, host string) (list []int64) {
	for _, r := range s.Spec(name).Groups[0].Recipients {
		if r.Host == host {
			list = append(list, r.Offset)
		}
	}
	return list
}

// Del1: an agent that settles doubts takes over from a dead one, and dies itself before it
// has found out. Who comes next is to find out about the first.
func TestDel1DoubtOutlivesTheAgentThatWasToSettleIt(t *testing.T) {
	for _, count := range []int{1, 150} {
		t.Run(fmt.Sprint(count, " recipients"), func(t *testing.T) {
			const first, second = 999998, 999999
			s := newSpool(t)
			var list []rcpt
			for n := range count {
				list = append(list, rcpt{"local", "h", fmt.Sprintf("u%d", n), ""})
			}
			name := s.queue(list...)
			event := func(word string, owner int, recipient int64) {
				s.Event(name, workspec.Event{Time: testTime, Event: word, Recipient: recipient,
					Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(owner)}}})
			}
			for i := range list {
				s.Mark(name, i, workspec.LockBytes(first))
			}
			if count == 1 {
				event(workspec.EventSent, first, s.of(name, "h")[0])
			} else {
				event(workspec.EventSent, first, 0)
			}
			s.agent.Settles = true
			s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
				// What the file says now, and these locks, is what the second leaves.
				for i, r := range d.Recipients {
					if r.Sent == nil || r.Sent.Get("owner") != strconv.Itoa(first) {
						t.Fatalf("the second agent is to find out about %v", r.Sent)
					}
					s.Mark(name, i, workspec.LockBytes(second))
				}
				left := s.Text(name)
				for _, r := range d.Recipients {
					d.Done(r, later)
				}
				assert.Must(t, os.WriteFile(s.Path(name)+".left", []byte(left), 0o600))
			}))
			assert.Must(t, os.Rename(s.Path(name)+".left", s.Path(name)))
			// The scheduler mends the locks of the second, and puts its recipients off.
			for i, off := range s.of(name, "h") {
				event(workspec.EventUnlocked, second, off)
				s.Mark(name, i, workspec.TagBytes(workspec.FormatOurs, workspec.TagToDo))
				s.Event(name, workspec.DeferredEvent(testTime, off, 1, testTime, later.Code, "the transport agent ended without an answer"))
			}
			s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
				for _, r := range d.Recipients {
					if r.Sent == nil || r.Sent.Get("owner") != strconv.Itoa(first) {
						t.Errorf("%s: the third agent is to find out about %v, want the sent event of the first", r.Address, r.Sent)
					}
					d.Done(r, ok)
				}
			}))
		})
	}
}
