package e2e

import (
	"fmt"
	"net"
	"net/smtp"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	life "zmailer/internal/admin/trace"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// sandwich starts a system whose mail passes a filter at an address, and goes to a sink from there.
func sandwich(t *testing.T, sink *peer.Sink, filter, back string) *suite.Suite {
	t.Helper()
	return start(t, sink, func(s *suite.Suite) {
		s.Settings = map[string]string{"CONTENTFILTER": "smtpx!" + filter, "REINJECTLISTEN": back, "ROUTERPOLL": "1s"}
	})
}

// killEach kills each program of a system in turn, and waits until it runs again.
func killEach(t *testing.T, s *suite.Suite) {
	t.Helper()
	for _, name := range []string{"smtpserver", "router", "scheduler", "ta-smtp"} {
		before := assert.Get(s.Processes())(t)
		runs := func(p suite.Process) bool { return p.Name == name }
		for _, p := range before {
			if runs(p) {
				assert.Must(t, p.Kill())
			}
		}
		await(t, s, "new "+name, func() (bool, error) {
			now, err := s.Processes()
			return slices.ContainsFunc(now, func(p suite.Process) bool { return runs(p) && !slices.Contains(before, p) }), err
		})
	}
}

// killAll ends all of a system, agents included, and starts it again.
func killAll(t *testing.T, s *suite.Suite) {
	t.Helper()
	s.Kill()
	s.Forget()
	restart(t, s)
}

// waitsFor waits until a message waits for the filter at an address, as `zmctl why` has it.
func waitsFor(t *testing.T, s *suite.Suite, host string) {
	t.Helper()
	id := event(t, s, "deferred", "channel", "smtpx").Get("id")
	wantIn(t, zmctl(t, s, "why", id), "smtpx", host)
}

// Mail that waits for the content filter, and mail that a filter has taken which died before it gave it
// back, arrives once, whichever of our programs are killed meanwhile.
// The filter is a Postfix: what has its 250 is in its own queue.
func TestMailPassesAFilterOnceWhoeverIsKilled(t *testing.T) {
	t.Parallel()
	rig.Needs(t, peer.PostfixMaster)
	sink := newSink(t, &peer.Sink{})
	filter, back := freeAddr(t), freeAddr(t)
	s := sandwich(t, sink, filter, back)
	host, port := split(t, back)

	// The filter is away.
	sendSMTP(t, s, "bob@far.example", "one@sink.example", "Subject: one\n\n1\n")
	waitsFor(t, s, filter)
	killEach(t, s)
	killAll(t, s)
	waitsFor(t, s, filter)
	assert.Equal(t, len(sink.Messages()), 0, "mail that is not filtered")

	// It takes mail, keeps it, and is killed.
	p := &peer.Postfix{Dir: filepath.Join(openDir(t), "postfix"), Listen: filter, RelayHost: "[" + host + "]:" + port,
		Settings: []string{"defer_transports = smtp"}}
	var master *exec.Cmd
	rig.Postfix(t, p, func(c *exec.Cmd) *exec.Cmd { master = c; return c })
	call(t, s, "zmctl", "retry", "--yes", "--host", filter) // it may have been tried meanwhile
	event(t, s, "delivered", "rcpt", "one@sink.example", "channel", "smtpx")
	awaitEmpty(t, s)
	assert.Must(t, syscall.Kill(-master.Process.Pid, syscall.SIGKILL))
	await(t, s, "end of the filter", func() (bool, error) {
		c, err := net.Dial("tcp", filter)
		if err == nil {
			_ = c.Close()
		}
		return err != nil, nil
	})
	killAll(t, s)
	sendSMTP(t, s, "bob@far.example", "two@sink.example", "Subject: two\n\n2\n")
	waitsFor(t, s, filter)
	assert.Equal(t, len(sink.Messages()), 0, "mail that is not filtered")

	// It comes back, with its queue.
	p.Settings = []string{"minimal_backoff_time = 1s", "queue_run_delay = 1s"}
	rig.Postfix(t, p, nil)
	assert.Must(t, p.Flush().Run())
	call(t, s, "zmctl", "retry", "--yes", "--host", filter) // it may have been tried meanwhile
	assert.Must(t, sink.Wait(2, patience))                  // killed here, a delivery would be in doubt
	awaitEmpty(t, s)
	for _, name := range []string{"one", "two"} {
		got := arrivals(sink, name+"@sink.example")
		assert.Equal(t, len(got), 1, "copies of "+name)
		text := string(got[0].Data)
		assert.Equal(t, strings.Count(text, "by mta.example with "), 2, "our Received fields")
		assert.Equal(t, strings.Count(text, "by bench.example "), 1, "Received fields of the filter")
	}

	// A search finds both messages of a mail, before the filter and after it, as one. This filter knows
	// no XFORWARD: the router takes the ID from our Received field.
	event(t, s, "delivered", "rcpt", "two@sink.example", "channel", "smtp")
	log := logFile(t, s)
	for _, word := range []string{"two@sink.example", event(t, s, "accepted", "rcpts", "1").Get("id")} {
		found := lives(t, s, "--log", log, word)
		assert.Equal(t, len(found), 1, word)
		assert.Equal(t, len(found[0].Caused), 1, word)
		c := found[0].Caused[0]
		if c.Kind != life.Filtered || c.Life == nil || c.Life.Origin == nil || c.Life.Origin.ID != found[0].ID || c.Life.Recipients[0].State != life.Delivered {
			t.Errorf("%s: %+v", word, c)
		}
	}
	list := strings.Split(strings.TrimSpace(zmctl(t, s, "trace", "--log", log, "two@sink.example")), "\n")
	assert.Equal(t, len(list), 2, "heading and lines of %q", list)
	wantIn(t, list[1], "<two@sink.example>", "delivered 2.0.0", "127.0.0.1[127.0.0.1]:")
}

// The programs are killed while the filter has a message that it has not answered. Where the filter
// drops what has no client the message passes it again, and arrives once. Where it gave the message back
// nevertheless it arrives twice, which no sender can avoid (RFC 1047), and the log has in-doubt.
func TestMailInAFilterWhoseClientIsKilledIsNotLost(t *testing.T) {
	t.Parallel()
	for name, gives := range map[string]int{"dropped": 0, "given back": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink := newSink(t, &peer.Sink{})
			back := freeAddr(t)
			reached, killed := make(chan struct{}), make(chan struct{})
			first := true
			filter := newSink(t, &peer.Sink{
				Stall: func(at string, m *peer.Message) {
					if at == peer.AtDot && first {
						first = false
						close(reached)
						<-killed
					}
				},
				Cut: func(at string, m *peer.Message) bool {
					return at == peer.AtDot && m.Connection == 1 && gives == 0
				},
				Final: func(m *peer.Message) string {
					if err := smtp.SendMail(back, nil, m.From, m.Recipients, m.Data); err != nil {
						return fmt.Sprintf("451 4.5.0 %v", err)
					}
					return ""
				},
			})
			s := sandwich(t, sink, filter.Addr(), back)
			sendSMTP(t, s, "bob@far.example", "one@sink.example", "Subject: one\n\n1\n")
			<-reached
			killAll(t, s)
			close(killed)
			assert.Must(t, sink.Wait(1+gives, patience))
			awaitEmpty(t, s)
			assert.Equal(t, len(arrivals(sink, "one@sink.example")), 1+gives, "copies")
			event(t, s, "in-doubt")
		})
	}
}

// A filter that gives mail back to port 25 gets each message once. What comes back is in the freezer,
// and goes on when the filter is repaired.
func TestFilterThatReturnsMailToPort25GetsItOnce(t *testing.T) {
	t.Parallel()
	sink := newSink(t, &peer.Sink{})
	back := freeAddr(t)
	var to atomic.Value
	filter := newSink(t, &peer.Sink{Final: func(m *peer.Message) string {
		if err := smtp.SendMail(to.Load().(string), nil, m.From, m.Recipients, m.Data); err != nil {
			return fmt.Sprintf("451 4.5.0 %v", err)
		}
		return ""
	}})
	to.Store("") // port 25 is known when the system is there
	s := sandwich(t, sink, filter.Addr(), back)
	to.Store(s.SMTPAddr)
	sendSMTP(t, s, "bob@far.example", "one@sink.example", "Subject: one\n\n1\n")
	id := event(t, s, "frozen").Get("id")
	wantIn(t, zmctl(t, s, "why", id), "REINJECTLISTEN", filter.Addr())
	assert.Equal(t, len(filter.Messages()), 1, "ways through the filter")
	to.Store(back)
	zmctl(t, s, "thaw", "--yes", id)
	assert.Must(t, sink.Wait(1, patience))
	awaitEmpty(t, s)
	assert.Equal(t, len(sink.Messages()), 1)
	assert.Equal(t, len(filter.Messages()), 2, "ways through the filter")
}
