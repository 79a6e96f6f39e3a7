package tasmtp

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/agent/agenttest"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
)

// mute is a server that accepts connections and sends nothing until released.
type mute struct {
	t    *testing.T
	l    net.Listener
	port int
	came chan net.Conn // each connection
}

func newMute(t *testing.T, address string) *mute {
	t.Helper()
	l, err := net.Listen("tcp", address)
	assert.Must(t, err)
	m := &mute{t: t, l: l, port: l.Addr().(*net.TCPAddr).Port, came: make(chan net.Conn, 1000)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(m.came)
				return
			}
			m.came <- c
		}
	}()
	return m
}

// next waits for a connection.
func (m *mute) next() net.Conn {
	m.t.Helper()
	select {
	case c := <-m.came:
		m.t.Cleanup(func() { c.Close() })
		return c
	case <-time.After(Patience):
		m.t.Fatal("no connection came")
		return nil
	}
}

// names returns a zone in which so many names are at one address each of those given.
func names(n int, addrs ...string) string {
	var zone strings.Builder
	for i := range n {
		fmt.Fprintf(&zone, "h%d.test. 300 IN A %s\n", i, addrs[i%len(addrs)])
	}
	return zone.String()
}

// begin delivers to names from..to-1 at the same time; each answer comes when it is there.
func (s *station) begin(from, to int) <-chan taproto.Answer {
	answers := make(chan taproto.Answer, to-from)
	for i := from; i < to; i++ {
		host := fmt.Sprintf("h%d.test", i)
		name := s.Queue(Message{Rcpts: Rcpts("smtp", host, "to@"+host)})
		go func() {
			for _, a := range s.deliver(name, host) {
				answers <- a
			}
		}()
	}
	return answers
}

func take(t *testing.T, answers <-chan taproto.Answer) taproto.Answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(Patience):
		t.Fatal("no answer")
		return taproto.Answer{}
	}
}

// Of twenty names at one silent address four hold a connection; the others are put off
// while those still wait, as trouble of their hosts, and no further connection is made.
func TestAtk3NamesOfASilentAddressHoldFewConnections(t *testing.T) {
	server := newMute(t, "127.0.0.9:0")
	dns := mxtest.Start(t, names(20, "127.0.0.9"))
	s := newStation(t, server.port, dns.Addr, func(c *Config) { c.Slots = 100 })
	s.relay.openings.wait = 10 * time.Millisecond
	answers := s.begin(0, 20)
	var open []net.Conn
	for range openingsPerAddr {
		open = append(open, server.next())
	}
	for range 20 - openingsPerAddr {
		if a := take(t, answers); a.Word != taproto.DeferAll || !strings.Contains(a.Text, "127.0.0.9") {
			t.Errorf("got %+v, want the host put off", a)
		}
	}
	if n := len(server.came); n > 0 {
		t.Errorf("%d more connections were made", n)
	}
	for _, c := range open {
		c.Close()
	}
	for range openingsPerAddr {
		if a := take(t, answers); a.Word != taproto.DeferAll {
			t.Errorf("got %+v", a)
		}
	}
}

// Names at an address that answers late wait for that and are delivered.
func TestAtk3NamesOfALateAddressWaitForItsAnswer(t *testing.T) {
	came, gate := make(chan struct{}, 100), make(chan struct{})
	good := &Sink{Answer: func(command string) string {
		if command == "GREETING" {
			came <- struct{}{}
			<-gate
		}
		return ""
	}}
	good.Start(t, "tcp", "127.0.0.9:0")
	dns := mxtest.Start(t, names(20, "127.0.0.9"))
	s := newStation(t, good.Port(), dns.Addr, func(c *Config) { c.Slots = 100 })
	s.relay.openings.wait = Patience
	answers := s.begin(0, 20)
	for range openingsPerAddr {
		select {
		case <-came:
		case <-time.After(Patience):
			t.Fatal("no connection came")
		}
	}
	close(gate)
	for range 20 {
		if a := take(t, answers); a.Word != taproto.OK3 {
			t.Errorf("got %+v, want it delivered", a)
		}
	}
}

// A silent address holds its slot for the full time; when half of the slots are held so,
// whatever is held for longer than the short time ends.
func TestAtk3GreetingTimeIsShortUnderPressure(t *testing.T) {
	addrs := []string{"127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14"}
	first := newMute(t, addrs[0]+":0")
	servers := []*mute{first}
	for _, a := range addrs[1:] {
		servers = append(servers, newMute(t, fmt.Sprint(a, ":", first.port)))
	}
	dns := mxtest.Start(t, names(4, addrs...))
	s := newStation(t, first.port, dns.Addr, func(c *Config) { c.Slots, c.DeadTime = 8, time.Hour })
	u := s.relay.openings
	late := make(chan struct{}, 10)
	u.short, u.onLate = time.Millisecond, func() { late <- struct{}{} }
	answers := s.begin(0, 3)
	for _, m := range servers[:3] {
		m.next()
	}
	for range 3 {
		select {
		case <-late:
		case <-time.After(Patience):
			t.Fatal("the short time does not end")
		}
	}
	if n := len(answers); n > 0 {
		t.Fatalf("%d deliveries ended without need", n)
	}
	more := s.begin(3, 4)
	for range 3 {
		if a := take(t, answers); a.Word != taproto.DeferAll {
			t.Errorf("got %+v, want the host put off", a)
		}
	}
	// The last one may hold its slot, now that the others have ended.
	servers[3].next().Close()
	take(t, more)
	// What was silent is remembered as such: it is not connected to again.
	if a := s.one("smtp", "h0.test"); a.Word != taproto.DeferAll || len(servers[0].came) > 0 {
		t.Errorf("got %+v, and %d connections", a, len(servers[0].came))
	}
}

// An address that has answered is neither counted nor hurried, until it is silent.
func TestAtk3AddressThatAnsweredIsNotHurried(t *testing.T) {
	u := newOpenings(2, slog.New(slog.DiscardHandler))
	here, there := target{network: "tcp", address: "192.0.2.1:25"}, target{network: "tcp", address: "192.0.2.2:25"}
	begin := func(t target) *opening {
		x, _ := u.begin(t)
		return x
	}
	u.end(begin(here), true)
	if begin(here) != nil {
		t.Error("it is counted")
	}
	var held []*opening
	for range openingsPerAddr {
		held = append(held, begin(there))
	}
	if x, ok := u.begin(there); ok {
		t.Errorf("got %v, one more than may be", x)
	}
	if list, busy := u.available([]target{there, here}); busy != nil || len(list) != 1 || list[0] != here {
		t.Errorf("got %v, want the one that answered", list)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if list, why := u.awaitFree(ctx, []target{there}, new(time.Time)); why == nil {
		t.Errorf("got %v though it has as many as it may", list)
	}
	u.silent(here)
	x := begin(here)
	if x == nil {
		t.Error("one that was silent is not counted")
	}
	for _, x := range append(held, x) {
		u.end(x, false)
	}
	if len(u.at)+len(u.running) > 0 || u.pressed {
		t.Errorf("%d addresses and %d trials are left", len(u.at), len(u.running))
	}
	if begin(target{network: "unix", address: "/x"}) != nil {
		t.Error("a socket of this machine is counted")
	}
}

// Many begin and end at the same time.
func TestAtk3TrialsAtOnce(t *testing.T) {
	u := newOpenings(8, slog.New(slog.DiscardHandler))
	u.wait = time.Microsecond
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for k := range 200 {
				t := target{network: "tcp", address: fmt.Sprint(k%7, ":25")}
				if list, _ := u.awaitFree(context.Background(), []target{t}, new(time.Time)); len(list) > 0 {
					if x, ok := u.begin(t); ok {
						u.end(x, i == 0)
					}
				}
				if k%10 == 0 {
					u.silent(t)
				}
			}
		})
	}
	all.Wait()
	if len(u.at)+len(u.running) > 0 || u.pressed {
		t.Errorf("%d addresses and %d trials are left", len(u.at), len(u.running))
	}
}

// Whoever waits for a place at a silent address gets none between the connection to it and the
// session: of sixty names at two addresses, eight hold connections.
func TestAtk3PlaceIsKeptFromConnectionToSession(t *testing.T) {
	const hosts = 60
	server := newMute(t, "127.0.0.9:0")
	other := newMute(t, fmt.Sprint("127.0.0.10:", server.port))
	var zone strings.Builder
	for i := range hosts {
		fmt.Fprintf(&zone, "h%d.test. 300 IN A 127.0.0.9\nh%d.test. 300 IN A 127.0.0.10\n", i, i)
	}
	dns := mxtest.Start(t, zone.String())
	s := newStation(t, server.port, dns.Addr, func(c *Config) { c.Slots = 200 })
	s.relay.openings.wait = 300 * time.Millisecond
	answers := s.begin(0, hosts)
	for range hosts - 2*openingsPerAddr {
		if a := take(t, answers); a.Word != taproto.DeferAll {
			t.Errorf("got %+v", a)
		}
	}
	for _, m := range []*mute{server, other} {
		var open []net.Conn
		for range openingsPerAddr {
			open = append(open, m.next())
		}
		if n := len(m.came); n > 0 {
			t.Errorf("%d more connections were made", n)
		}
		for _, c := range open {
			c.Close()
		}
		m.l.Close()
		for c := range m.came {
			c.Close()
		}
	}
}

// A server that has refused us is not silent, though it does not answer QUIT: when its time
// is over, what it said counts.
func TestAtk3RefusalIsNotTakenForSilence(t *testing.T) {
	for greeting, want := range map[string]taproto.Word{
		"521 5.3.2 no mail here": taproto.Error2,
		"554 5.7.1 not from you": taproto.DeferAll,
	} {
		t.Run(greeting[:3], func(t *testing.T) {
			server := newMute(t, "127.0.0.9:0")
			s := newStation(t, server.port, "")
			u := s.relay.openings
			answers := make(chan taproto.Answer, 1)
			name := s.Queue(Message{Rcpts: Rcpts("smtp", "[127.0.0.9]", "to@there.test")})
			go func() { answers <- s.deliver(name, "[127.0.0.9]")[0] }()
			c := server.next()
			if _, err := fmt.Fprint(c, greeting+"\r\n"); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(c).ReadString('\n'); line != "QUIT\r\n" {
				t.Fatalf("got %q, %v", line, err)
			}
			u.mu.Lock()
			u.pressed = true
			var x *opening
			for x = range u.running {
			}
			u.mu.Unlock()
			u.overdue(x)
			if a := take(t, answers); a.Word != want || !strings.Contains(a.Text, greeting[:9]) {
				t.Errorf("got %+v, want %s and the greeting", a, want)
			}
		})
	}
}
