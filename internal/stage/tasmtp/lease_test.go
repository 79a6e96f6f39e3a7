package tasmtp

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/lease/leasetest"
	"zmailer/internal/stage/agent"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// clustered is a station whose node loses its lease.
type clustered struct {
	*station
	node *leasetest.Node
	disk *faultfs.FS
	name string // of a message to one recipient
	sink *Sink
	dead bool // the programs of this machine are
	// answer is called at each command that the sink gets; its result is what the sink answers. nil:
	// the usual.
	answer atomic.Pointer[func(command string) string]
}

func newClustered(t *testing.T) *clustered {
	t.Helper()
	s := &clustered{node: leasetest.New(t)}
	s.sink = &Sink{Answer: func(command string) string {
		if f := s.answer.Load(); f != nil {
			return (*f)(command)
		}
		return ""
	}}
	s.sink.Start(t, "", "")
	spool := NewSpool(t, func(below durable.FS) durable.FS {
		s.disk = faultfs.New(below)
		return s.disk
	})
	page := s.node.Page()
	s.station = &station{Spool: spool, t: t}
	s.relay = assert.Get(NewRelay(Config{Hostname: "here.test", Port: s.sink.Port(), Resolver: "127.0.0.1:1", Limits: Limits{Slots: 1}, Lease: page}))(t)
	s.agent = &agent.Agent{PostOffice: s.PostOffice, Owner: assert.Get(s.PostOffice.Owners.Take("test"))(t), Name: "smtp", Lease: page}
	t.Cleanup(func() {
		if !s.dead {
			s.relay.Close()
			assert.NoError(t, s.agent.Owner.Release())
		}
	})
	s.name = s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.1]", "to@there.test")})
	return s
}

// answers has the sink answer by f.
func (s *clustered) answers(f func(command string) string) { s.answer.Store(&f) }

// job performs the job and returns the kinds of the lines for the scheduler.
func (s *clustered) job() (kinds []taproto.LineKind) {
	for _, l := range s.agent.Do(context.Background(), taproto.Job{Name: s.name, Host: "[127.0.0.1]"}, s.relay) {
		kinds = append(kinds, l.Kind)
	}
	return kinds
}

// history returns the words of the specification's history.
func (s *clustered) history() (words []string) {
	for _, h := range s.Spec(s.name).History {
		words = append(words, h.Event)
	}
	return words
}

// succeed has another machine deliver the message, after the death of this one's programs. It
// returns whether it recorded a doubt.
func (s *clustered) succeed() (doubt bool) {
	s.t.Helper()
	s.relay.Close()
	s.dead = true
	owner := assert.Get(s.PostOffice.Owners.Take("successor"))(s.t)
	defer func() { assert.NoError(s.t, owner.Release()) }()
	assert.Must(s.t, s.agent.Owner.Leave())
	s.answer.Store(nil)
	relay := assert.Get(NewRelay(Config{Hostname: "other.test", Port: s.sink.Port(), Resolver: "127.0.0.1:1", Limits: Limits{Slots: 1}}))(s.t)
	defer relay.Close()
	a := &agent.Agent{PostOffice: s.PostOffice, Owner: owner, Name: "smtp"}
	lines := a.Do(context.Background(), taproto.Job{Name: s.name, Host: "[127.0.0.1]"}, relay)
	if len(lines) != 1 || lines[0].Kind != taproto.LineAnswer || lines[0].Answer.Word != taproto.OK3 {
		s.t.Errorf("the successor: got %+v, want ok3", lines)
	}
	assert.Equal(s.t, s.Tags(s.name), string(workspec.TagOK), "tag at the end")
	return slices.Contains(s.history(), workspec.EventInDoubt)
}

var (
	answered = []taproto.LineKind{taproto.LineAnswer}
	resynced = []taproto.LineKind{taproto.LineResync}
)

// C4: the deadline passes before, during and after the final dot. What the sink got, what the
// specification has, and what the machine does that serves the postoffice next.
func TestC4DeadlineAroundTheFinalDot(t *testing.T) {
	locked := string(workspec.TagLocked)
	for name, c := range map[string]struct {
		// lose is called before the job; it has the lease end at a point.
		lose    func(s *clustered)
		lines   []taproto.LineKind
		history []string
		tag     string
		sunk    int  // messages at the sink
		twice   bool // the successor sends it again, and records that it is in doubt
	}{
		"before the job": {
			lose:  func(s *clustered) { s.node.Lose() },
			lines: resynced, tag: string(workspec.TagToDo),
		},
		"during the content": {
			lose: func(s *clustered) {
				s.answers(func(c string) string {
					if c == "DATA" {
						s.node.Lose()
					}
					return ""
				})
			},
			lines: resynced, tag: locked,
		},
		"between the mark and the dot": {
			lose: func(s *clustered) {
				s.disk.On(faultfs.Sync, "transport/*", 1, func(string) error {
					s.node.Lose()
					return nil
				})
			},
			lines: resynced, history: []string{workspec.EventSent}, tag: locked, twice: true,
		},
		"after the dot, before the answer": {
			lose: func(s *clustered) {
				s.answers(func(c string) string {
					if c == "." {
						s.node.Lose()
						return "SILENCE"
					}
					return ""
				})
			},
			lines: resynced, history: []string{workspec.EventSent}, tag: locked, sunk: 1, twice: true,
		},
		"after the answer, before the status": {
			lose: func(s *clustered) {
				s.answers(func(c string) string {
					if c == "." {
						s.disk.On(faultfs.WriteAt, "transport/*", 1, func(string) error {
							s.node.Lose()
							return nil
						})
					}
					return ""
				})
			},
			lines: answered, history: []string{workspec.EventSent}, tag: string(workspec.TagOK), sunk: 1,
		},
		"never": {
			lose:  func(*clustered) {},
			lines: answered, history: []string{workspec.EventSent}, tag: string(workspec.TagOK), sunk: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newClustered(t)
			c.lose(s)
			assert.Same(t, s.job(), c.lines, "lines for the scheduler")
			assert.Same(t, s.history(), c.history, "history")
			assert.Equal(t, s.Tags(s.name), c.tag, "tag")
			assert.Equal(t, len(s.sink.Messages()), c.sunk, "messages that came to the dot")
			s.node.Hold() // another lease: nothing is valid for this agent again
			if c.tag != string(workspec.TagOK) {
				before := s.Text(s.name)
				assert.Same(t, s.job(), resynced, "lines for the scheduler under another lease")
				assert.Equal(t, s.Text(s.name), before, "specification")
				assert.Equal(t, s.succeed(), c.twice, "doubt")
				c.sunk++
			}
			assert.Equal(t, len(s.sink.Messages()), c.sunk, "messages at the end")
		})
	}
}

// A lease that is about to end, and is renewed then: the recipient waits, and no doubt is left.
func TestC4ShortLeaseDefers(t *testing.T) {
	s := newClustered(t)
	s.answers(func(c string) string {
		if c == "DATA" {
			s.node.Until(900e6)
		}
		return ""
	})
	lines := s.job()
	if slices.Equal(lines, resynced) {
		t.Skip("this machine was too slow: the lease ended")
	}
	assert.Same(t, lines, answered, "lines for the scheduler")
	assert.Equal(t, s.Tags(s.name), string(workspec.TagToDo), "tag")
	assert.Equal(t, len(s.sink.Messages()), 0, "messages at the sink")
	assert.Equal(t, s.succeed(), false, "doubt")
}

// Without a cluster an agent makes the system calls that it made before: the mark is not synced.
func TestNoClusterAddsNoSync(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		t.Run("cluster "+strconv.FormatBool(cluster), func(t *testing.T) {
			s := newClustered(t)
			if !cluster {
				s.agent.Lease, s.relay.lease = nil, nil
			}
			syncs := s.disk.On(faultfs.Sync, "*/*", faultfs.Always, func(string) error { return nil })
			assert.Same(t, s.job(), answered, "lines for the scheduler")
			assert.Equal(t, syncs.Hits(), map[bool]int{true: 1}[cluster], "fsync")
		})
	}
}
