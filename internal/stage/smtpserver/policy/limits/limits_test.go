package limits

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// clock is a time that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_700_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func isExcess(err error) bool {
	var e *Excess
	return errors.As(err, &e)
}

// M46.
func TestConnectionsOfAnAddressAreLimited(t *testing.T) {
	l := New(Config{PerAddress: 2, Exempt: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	for name, tt := range map[string]struct {
		addrs []string
		ok    []bool
	}{
		"one address":           {[]string{"192.0.2.1", "192.0.2.1", "192.0.2.1"}, []bool{true, true, false}},
		"others":                {[]string{"192.0.2.2", "192.0.2.3", "192.0.2.4"}, []bool{true, true, true}},
		"a /64":                 {[]string{"2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"}, []bool{true, true, false, true}},
		"IPv4 in IPv6":          {[]string{"192.0.2.9", "::ffff:192.0.2.9", "192.0.2.9"}, []bool{true, true, false}},
		"those of LIMITSEXEMPT": {[]string{"127.0.0.1", "127.0.0.1", "127.0.0.1"}, []bool{true, true, true}},
		"a Unix socket":         {[]string{"", "", ""}, []bool{true, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var open []func()
			for i, s := range tt.addrs {
				a, _ := netip.ParseAddr(s)
				done, err := l.Connect(a)
				if (err == nil) != tt.ok[i] || err != nil && !isExcess(err) {
					t.Errorf("%d, %s: got %v, want ok %v", i, s, err, tt.ok[i])
				}
				if err == nil {
					open = append(open, done)
				}
			}
			for _, done := range open {
				done()
				done() // counts once
			}
			a, _ := netip.ParseAddr(tt.addrs[0])
			done, err := l.Connect(a)
			if err != nil {
				t.Errorf("after all were closed: %v", err)
			} else {
				done()
			}
		})
	}
	assert.Equal(t, len(l.accounts), 0)
}

// M46.
func TestRatesHold(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	rate := Rate{3, time.Minute}
	for name, tt := range map[string]struct {
		c    Config
		one  func(l *Limits, a netip.Addr) error
		user bool
	}{
		"connections":       {Config{Connections: rate}, func(l *Limits, a netip.Addr) error { _, err := l.Connect(a); return err }, false},
		"messages":          {Config{Messages: rate}, func(l *Limits, a netip.Addr) error { return l.Message(&Who{Addr: a}) }, false},
		"recipients":        {Config{Recipients: rate}, func(l *Limits, a netip.Addr) error { return l.Recipient(&Who{Addr: a}) }, false},
		"passwords":         {Config{Failures: rate}, func(l *Limits, a netip.Addr) error { _, err := l.Guess(a); return err }, false},
		"a user's messages": {Config{Messages: rate}, func(l *Limits, a netip.Addr) error { return l.Message(&Who{Addr: a, User: "jane"}) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			tt.c.Now = c.Now
			l := New(tt.c)
			count := func(a netip.Addr) (n int) {
				for tt.one(l, a) == nil {
					if n++; n > 10 {
						t.Fatal("there is no limit")
					}
				}
				return n
			}
			assert.Equal(t, count(a), 3)
			if got, want := count(b), 3; tt.user {
				assert.Equal(t, got, 0)
			} else if got != want {
				t.Errorf("another address: %d, want 3", got)
			}
			c.add(20 * time.Second)
			assert.Equal(t, count(a), 1)
			c.add(time.Hour)
			assert.Equal(t, count(a), 3)
		})
	}
}

// A directory takes Jane for jane: so does her rate.
func TestSpellingsOfAUserShareARate(t *testing.T) {
	l := New(Config{Messages: Rate{2, time.Hour}})
	a := netip.MustParseAddr("192.0.2.1")
	for i, user := range []string{"jane", "Jane", "JANE"} {
		assert.Equal(t, l.Message(&Who{Addr: a, User: user}) == nil, i < 2, "%s", user)
	}
}

func TestRightPasswordIsNoFailure(t *testing.T) {
	l := New(Config{Failures: Rate{2, time.Minute}})
	a := netip.MustParseAddr("192.0.2.1")
	for i := range 20 {
		right, err := l.Guess(a)
		if err != nil {
			t.Fatalf("try %d: %v", i, err)
		}
		right()
	}
}

func TestMemoryIsBounded(t *testing.T) {
	c := newClock()
	l := New(Config{Connections: Rate{1, time.Minute}, PerAddress: 5, Now: c.Now})
	l.most = 1000
	held := netip.MustParseAddr("198.51.100.1")
	assert.Get(l.Connect(held))(t)
	for i := range 50_000 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		done := assert.Get(l.Connect(a))(t)
		done()
		c.add(time.Millisecond)
	}
	if got := len(l.accounts); got > 1000 {
		t.Errorf("%d addresses are kept, want 1000 at most", got)
	}
	if one := l.accounts[who(held, "")]; one == nil || one.open != 1 {
		t.Error("an open connection was forgotten")
	}
	// One that came just now is still known.
	if _, err := l.Connect(netip.AddrFrom4([4]byte{10, 0, byte(49_999 >> 8 & 0xff), byte(49_999 & 0xff)})); !isExcess(err) {
		t.Errorf("the last address may come again at once: %v", err)
	}
}

// M46.
func TestSpaceAndFilesAreLeft(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		free, files, size int64
		err, want         error
	}{
		"plenty":          {10 << 20, 1000, 0, nil, nil},
		"no space":        {99, 1000, 0, nil, ErrSpace},
		"no space for it": {1 << 20, 1000, 1 << 20, nil, ErrSpace},
		"no files":        {10 << 20, 9, 0, nil, ErrFiles},
		"files unlimited": {10 << 20, -1, 0, nil, nil},
		"cannot be asked": {0, 0, 0, broken, broken},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(Config{MinFree: 100, MinFiles: 10, Measure: func(string) (Room, error) { return Room{Free: tt.free, Files: tt.files}, tt.err }})
			if err := l.Space("/x", tt.size, false); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	l := New(Config{MinFree: 1, MinFiles: 1})
	if err := l.Space(t.TempDir(), 0, false); err != nil {
		t.Errorf("this machine's own: %v", err)
	}
}

func TestMachineIsAskedOnceASecond(t *testing.T) {
	c, asked := newClock(), 0
	l := New(Config{MaxLoad: 2, Now: c.Now, Load: func() (float64, error) { asked++; return float64(asked), nil }})
	for range 10 {
		if _, busy := l.Busy(); busy {
			t.Error("busy at a load of 1")
		}
	}
	c.add(time.Second)
	l.Busy()
	c.add(time.Second)
	if load, busy := l.Busy(); !busy || load != 3 || asked != 3 {
		t.Errorf("got %v, %v after %d looks", load, busy, asked)
	}
	if _, busy := New(Config{MaxLoad: 1e6}).Busy(); busy {
		t.Error("this machine's load is above a million")
	}
}

func TestRatesAreRead(t *testing.T) {
	for text, want := range map[string]Rate{"60/1m": {60, time.Minute}, "1/1": {1, time.Second}, "off": {}, "5/1h30m": {5, 90 * time.Minute}} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "60", "60/", "/1m", "0/1m", "-1/1m", "x/1m", "60/0", "60/1m/2"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func BenchmarkConnect(b *testing.B) {
	l := New(Config{PerAddress: 50, Connections: Rate{1 << 30, time.Minute}})
	var all []netip.Addr
	for i := range 10_000 {
		all = append(all, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if done, err := l.Connect(all[i%len(all)]); err == nil {
			done()
		}
	}
}

func TestExcessSaysWhat(t *testing.T) {
	err := fmt.Errorf("connect: %w", &Excess{What: "connections from your address", By: "50"})
	if !strings.Contains(err.Error(), "too many connections from your address (50)") || !isExcess(err) {
		t.Errorf("got %v", err)
	}
}

// Postfix's smtpd_client_message_rate_limit counts clients alone; policyd-rate-limit counts
// senders, too.
func TestSenderIsLimitedWhicheverClientSends(t *testing.T) {
	hour := func(n int) Rate { return Rate{n, time.Hour} }
	off := Rate{}
	many := hour(5)
	for name, tt := range map[string]struct {
		c    Config
		who  []Who
		ok   []bool
		kind string // of the last excess
	}{
		"two clients, one sender": {Config{SenderMessages: hour(2)},
			[]Who{{Addr: at(1), Sender: "a@b"}, {Addr: at(2), Sender: "a@b"}, {Addr: at(3), Sender: "a@b"}, {Addr: at(3), Sender: "c@b"}},
			[]bool{true, true, false, true}, "sender-messages"},
		"a user with a rate of his own": {Config{Messages: hour(1)},
			[]Who{{User: "jane", UserRates: Rates{Messages: &many}}, {User: "jane", UserRates: Rates{Messages: &many}}, {User: "joe"}, {User: "joe"}},
			[]bool{true, true, true, false}, "user-messages"},
		"a sender without a limit": {Config{SenderMessages: hour(1)},
			[]Who{{Addr: at(1), Sender: "a@b", SenderRates: Rates{Messages: &off}}, {Addr: at(1), Sender: "a@b", SenderRates: Rates{Messages: &off}}},
			[]bool{true, true}, ""},
		"an exempt client": {Config{SenderMessages: hour(1), Exempt: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			[]Who{{Addr: at(1), Sender: "a@b"}, {Addr: at(1), Sender: "a@b"}}, []bool{true, true}, ""},
		"what the sender's rate refuses is not counted for the client": {Config{Messages: hour(2), SenderMessages: hour(1)},
			[]Who{{Addr: at(1), Sender: "a@b"}, {Addr: at(1), Sender: "a@b"}, {Addr: at(1), Sender: "c@b"}, {Addr: at(1), Sender: "d@b"}},
			[]bool{true, false, true, false}, "client-messages"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			tt.c.Now = c.Now
			l := New(tt.c)
			kind := ""
			for i := range tt.who {
				err := l.Message(&tt.who[i])
				assert.Equal(t, err == nil, tt.ok[i], "message %d: %v", i, err)
				if e := (*Excess)(nil); errors.As(err, &e) {
					kind = e.Kind
				}
			}
			assert.Equal(t, kind, tt.kind)
		})
	}
}

func at(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
