package tasmtp

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// clock is a time that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.now = c.now.Add(d) }

// tries counts the attempts to connect to an address that failed.
func tries(log *logtest.Buffer, addr string) (n int) {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "not-connected") && strings.Contains(line, "connect to "+addr+":") && !strings.Contains(line, "channel=") {
			n++
		}
	}
	return n
}

// deadStation keeps no connection, so that each message looks for one, and remembers
// for 15 minutes of its own clock.
func deadStation(t *testing.T, port int, resolver string) (*station, *clock, *logtest.Buffer) {
	t.Helper()
	log, now := &logtest.Buffer{}, &clock{now: time.Unix(1e9, 0)}
	s := newStation(t, port, resolver, func(c *Config) {
		c.Idle, c.DeadTime, c.Timeouts.Connect = 0, 15*time.Minute, 300*time.Millisecond
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	s.relay.hosts.now = now.Now
	return s, now, log
}

const twoServers = `
there.test. 300 IN MX 10 dead.test.
there.test. 300 IN MX 20 good.test.
dead.test.  300 IN A  127.0.0.3
good.test.  300 IN A  127.0.0.1
`

// A22, A23: a first MX that is dead costs one time-out, not one for each message; it is
// asked again when its time is over, and serves again when it answers.
func TestDeadFirstServerCostsOneTimeout(t *testing.T) {
	dead := fullListener(t, "127.0.0.3:0")
	good := new(Sink).Start(t, "tcp", fmt.Sprint("127.0.0.1:", dead.Port))
	server := mxtest.Start(t, twoServers)
	s, now, log := deadStation(t, dead.Port, server.Addr)
	for round := 1; round <= 2; round++ {
		for range 100 {
			s.want(taproto.OK3, "smtp", "there.test")
		}
		assert.Equal(t, tries(log, dead.String()), round, "attempts at the dead server")
		now.add(15 * time.Minute)
	}
	assert.Equal(t, len(good.Messages()), 200, "messages arrived")
}

// Of many deliveries at once each may be the one that finds out, and none later.
func TestConcurrentDeliveriesFindADeadHostOnce(t *testing.T) {
	dead := fullListener(t, "127.0.0.3:0")
	new(Sink).Start(t, "tcp", fmt.Sprint("127.0.0.1:", dead.Port))
	server := mxtest.Start(t, twoServers)
	s, now, log := deadStation(t, dead.Port, server.Addr)
	s.one("smtp", "there.test")
	now.add(15 * time.Minute)
	var names []string
	for range 20 {
		names = append(names, s.Queue(Message{Rcpts: Rcpts("smtp", "there.test", "to@there.test")}))
	}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { s.deliver(name, "there.test") })
	}
	all.Wait()
	assert.Equal(t, tries(log, dead.String()), 2, "attempts")
}

func TestServerThatCameBackIsFirstAgain(t *testing.T) {
	good := new(Sink).Start(t, "", "")
	server := mxtest.Start(t, twoServers)
	s, now, log := deadStation(t, good.Port(), server.Addr)
	addr := fmt.Sprint("127.0.0.3:", good.Port())
	s.one("smtp", "there.test")
	if got := tries(log, addr); got != 1 {
		t.Fatalf("%d attempts, want 1", got)
	}
	back := new(Sink).Start(t, "tcp", addr)
	s.one("smtp", "there.test")
	now.add(15 * time.Minute)
	for range 3 {
		s.one("smtp", "there.test")
	}
	assert.Equal(t, fmt.Sprint(good.Connects(), back.Connects()), "2 3", "connections")
	if s.relay.hosts.some.Load() {
		t.Error("it is still taken for dead")
	}
}

// Where every address is dead, one message a minute tries those that keep it waiting;
// the others are deferred at once. An address that refuses costs nothing and is tried by
// each, so that a server that starts again gets its mail.
func TestAllServersDead(t *testing.T) {
	silent := fullListener(t, "127.0.0.3:0")
	server := mxtest.Start(t, `
silent.test.  300 IN A 127.0.0.3
refuse.test.  300 IN A 127.0.0.1
`)
	s, now, log := deadStation(t, silent.Port, server.Addr)
	for minute := 1; minute <= 3; minute++ {
		for i := range 10 {
			a := s.one("smtp", "silent.test")
			want := "connect to " + silent.String() + ": i/o timeout"
			if i > 0 {
				want += notTried
			}
			if a.Word != taproto.DeferAll || a.Text != want || notary(a) != "4.4.1 dns; silent.test" {
				t.Errorf("got %s %s, want %s", a.Word, a.Text, want)
			}
		}
		assert.Equal(t, tries(log, silent.String()), minute, "attempts")
		now.add(probeEvery)
	}
	refused := fmt.Sprint("127.0.0.1:", silent.Port)
	for range 3 {
		s.one("smtp", "refuse.test")
	}
	assert.Equal(t, tries(log, refused), 3, "attempts at a server that refuses")
	new(Sink).Start(t, "tcp", refused)
	s.want(taproto.OK3, "smtp", "refuse.test")
}

// A server that accepts the connection and sends nothing is marked down, too.
func TestSilentGreetingIsKept(t *testing.T) {
	good := new(Sink).Start(t, "", "")
	mute := (&Sink{Answer: On("", "SILENCE")}).Start(t, "tcp", fmt.Sprint("127.0.0.3:", good.Port()))
	server := mxtest.Start(t, twoServers)
	s, _, _ := deadStation(t, good.Port(), server.Addr)
	s.relay.client.Timeouts.Greeting = 500 * time.Millisecond
	for range 5 {
		s.want(taproto.OK3, "smtp", "there.test")
	}
	assert.Equal(t, mute.Connects(), 1, "connections to the mute server")
}

// A server that refuses is not marked down: it keeps its place.
func TestRefusingServerKeepsItsPlace(t *testing.T) {
	good := new(Sink).Start(t, "", "")
	busy := (&Sink{Answer: On("", "421 4.3.2 busy")}).Start(t, "tcp", fmt.Sprint("127.0.0.3:", good.Port()))
	server := mxtest.Start(t, twoServers)
	s, _, _ := deadStation(t, good.Port(), server.Addr)
	for range 3 {
		s.one("smtp", "there.test")
	}
	assert.Equal(t, busy.Connects(), 3, "connections to the busy server")
}

// RFC 8305 §4: the slower address is not first the next time.
func TestSlowFamilyIsTriedLater(t *testing.T) {
	silent := fullListener(t, "[::1]:0")
	new(Sink).Start(t, "tcp", fmt.Sprint("127.0.0.1:", silent.Port))
	server := mxtest.Start(t, "there.test. 300 IN AAAA ::1\nthere.test. 300 IN A 127.0.0.1\n")
	s, _, log := deadStation(t, silent.Port, server.Addr)
	s.relay.client.Timeouts.Connect = Patience
	s.one("smtp", "there.test")
	s.one("smtp", "there.test")
	assert.Equal(t, tries(log, silent.String()), 0, "failed attempts")
	alive, _ := s.relay.hosts.split(origin{}, targets(silent.String()))
	if len(alive) != 0 {
		t.Error("the slow address is not remembered")
	}
}

func TestDeadTimeOffKeepsTheOrder(t *testing.T) {
	good := new(Sink).Start(t, "", "")
	server := mxtest.Start(t, twoServers)
	s, _, log := deadStation(t, good.Port(), server.Addr)
	s.relay.hosts.keep = 0
	for range 3 {
		s.one("smtp", "there.test")
	}
	assert.Equal(t, tries(log, fmt.Sprint("127.0.0.3:", good.Port())), 3, "attempts")
}

func TestDeadAddressesAreBounded(t *testing.T) {
	now := &clock{now: time.Unix(1e9, 0)}
	d := hostStatus{keep: time.Hour, now: now.Now}
	for i := range maxDown + 10 {
		d.markDown(target{network: "tcp", address: fmt.Sprint(i)}, nil, &refusal{})
		now.add(time.Microsecond)
	}
	assert.Equal(t, len(d.down), maxDown, "addresses remembered")
	if alive, _ := d.split(origin{}, []target{{network: "tcp", address: "9"}}); len(alive) != 1 {
		t.Error("the oldest is not forgotten first")
	}
	now.add(2 * time.Hour)
	d.markDown(target{network: "tcp", address: "x"}, nil, &refusal{})
	assert.Equal(t, len(d.down), 1, "addresses remembered after their time")
}
