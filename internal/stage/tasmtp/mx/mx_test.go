package mx

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
)

const zone = `
example.test.     300 IN MX    20 c.example.test.
example.test.     300 IN MX    10 a.example.test.
example.test.     300 IN MX    10 B.example.test.
a.example.test.   300 IN A     192.0.2.1
b.example.test.   300 IN A     192.0.2.2
b.example.test.   300 IN AAAA  2001:db8::2
c.example.test.   300 IN AAAA  2001:db8::3
plain.test.       300 IN A     192.0.2.9
nothing.test.     300 IN TXT   "no address"
null.test.        300 IN MX    0 .
both.test.        300 IN MX    0 .
both.test.        300 IN MX    5 a.example.test.
alias.test.       300 IN CNAME example.test.
alias2.test.      120 IN CNAME alias.test.
lost.test.        300 IN CNAME nowhere.test.
circle.test.      300 IN CNAME circle2.test.
circle2.test.     300 IN CNAME circle.test.
brief.test.       60  IN MX    1 a.example.test.
never.test.       0   IN MX    1 a.example.test.
`

// clock is a time that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// unshuffled leaves the order as it is.
func unshuffled(int, func(i, j int)) {}

// reversed is a shuffle that can be foreseen.
func reversed(n int, swap func(i, j int)) {
	for i := range n / 2 {
		swap(i, n-1-i)
	}
}

func resolver(s *mxtest.Server, change ...func(*Config)) (*Resolver, *clock) {
	c := &clock{now: time.Unix(1795220010, 0)}
	cfg := Config{Server: s.Addr, Timeout: 5 * time.Second, Now: c.Now, Shuffle: unshuffled}
	for _, f := range change {
		f(&cfg)
	}
	return New(cfg), c
}

// hosts returns the answer in words.
func hosts(r *Resolver, domain string) string {
	list, err := r.Hosts(context.Background(), domain)
	if err != nil {
		return err.Error()
	}
	var s []string
	for _, h := range list {
		s = append(s, fmt.Sprintf("%d %s", h.Preference, h.Name))
	}
	return strings.Join(s, ", ")
}

// S19
func TestServersOfADomain(t *testing.T) {
	const all = "10 a.example.test, 10 b.example.test, 20 c.example.test"
	cases := map[string]struct{ domain, want string }{
		"by preference":                    {"example.test", all},
		"any case, final dot":              {"EXAMPLE.test.", all},
		"without MX the domain itself":     {"plain.test", "0 plain.test"},
		"without MX or address too":        {"nothing.test", "0 nothing.test"},
		"null MX":                          {"null.test", "null.test takes no mail (null MX)"},
		"null MX beside others is ignored": {"both.test", "5 a.example.test"},
		"alias":                            {"alias.test", all},
		"alias of an alias":                {"alias2.test", all},
		"alias of nothing":                 {"lost.test", "look up MX of lost.test: no such domain"},
		"aliases in a circle":              {"circle.test", "look up MX of circle.test: aliases go in a circle"},
		"no such domain":                   {"gone.test.invalid", "look up MX of gone.test.invalid: no such domain"},
		"no name at all":                   {strings.Repeat("x", 70) + ".test", "look up MX of " + strings.Repeat("x", 70) + ".test: no such domain"},
	}
	for _, lazy := range []bool{false, true} {
		s := mxtest.Start(t, zone)
		if lazy {
			s.Lazy()
		}
		r, _ := resolver(s)
		for name, c := range cases {
			t.Run(fmt.Sprintf("%s, lazy %v", name, lazy), func(t *testing.T) {
				want := c.want
				if lazy {
					want = strings.Replace(want, "aliases go in a circle", "more than 8 aliases", 1)
				}
				assert.Equal(t, hosts(r, c.domain), want)
			})
		}
	}
}

// S19
func TestEqualPreferenceIsShuffled(t *testing.T) {
	s := mxtest.Start(t, zone)
	r, _ := resolver(s, func(c *Config) { c.Shuffle = reversed })
	assert.Equal(t, hosts(r, "example.test"), "10 b.example.test, 10 a.example.test, 20 c.example.test")
	r, _ = resolver(s, func(c *Config) { c.Shuffle = nil })
	first := map[string]bool{}
	for range 100 {
		first[strings.Fields(hosts(r, "example.test"))[1]] = true
	}
	if len(first) != 2 {
		t.Errorf("got %v as the first of two in 100 lookups", first)
	}
}

func TestAddresses(t *testing.T) {
	s := mxtest.Start(t, zone)
	r, _ := resolver(s)
	cases := map[string]struct{ name, want string }{
		"IPv4":      {"a.example.test", "[192.0.2.1]"},
		"both":      {"b.example.test", "[192.0.2.2 2001:db8::2]"},
		"IPv6":      {"c.example.test", "[2001:db8::3]"},
		"alias":     {"alias.test", "look up address of alias.test: none"},
		"none":      {"nothing.test", "look up address of nothing.test: none"},
		"no domain": {"gone.test", "look up address of gone.test: no such domain"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			addrs, err := r.Addrs(context.Background(), c.name)
			got := fmt.Sprint(addrs)
			if err != nil {
				got = err.Error()
			}
			assert.Equal(t, got, c.want)
		})
	}
}

// One family that cannot be looked up does not matter if the other is there.
func TestHalfAnAddressIsEnough(t *testing.T) {
	s := mxtest.Start(t, zone)
	s.Fail("a.example.test AAAA", dns.RcodeServerFailure, 99)
	s.Fail("plain.test A", dns.RcodeServerFailure, 99)
	r, _ := resolver(s)
	if addrs, err := r.Addrs(context.Background(), "a.example.test"); err != nil || len(addrs) != 1 {
		t.Errorf("IPv4 alone: got %v, %v", addrs, err)
	}
	// No IPv6 address, and no answer about IPv4: that is not "none".
	if addrs, err := r.Addrs(context.Background(), "plain.test"); err == nil || KindOf(err) != Unavailable {
		t.Errorf("got %v, %v", addrs, err)
	}
}

// S19: trouble of the name server is temporary, and another try may do.
func TestNameServerTrouble(t *testing.T) {
	cases := map[string]struct {
		set  func(*mxtest.Server)
		want string
	}{
		"SERVFAIL":      {func(s *mxtest.Server) { s.Fail("example.test", dns.RcodeServerFailure, 99) }, "SERVFAIL"},
		"REFUSED":       {func(s *mxtest.Server) { s.Fail("example.test", dns.RcodeRefused, 99) }, "REFUSED"},
		"silence":       {func(s *mxtest.Server) { s.Silence("example.test") }, "i/o timeout"},
		"SERVFAIL once": {func(s *mxtest.Server) { s.Fail("example.test", dns.RcodeServerFailure, 1) }, ""},
		"no EDNS":       {func(s *mxtest.Server) { s.RefuseEDNS("example.test") }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := mxtest.Start(t, zone)
			c.set(s)
			r, _ := resolver(s, func(c *Config) {
				if name == "silence" {
					c.Timeout = 50 * time.Millisecond
				}
			})
			list, err := r.Hosts(context.Background(), "example.test")
			if c.want == "" {
				if err != nil || len(list) != 3 {
					t.Errorf("got %v, %v", list, err)
				}
				return
			}
			if err == nil || KindOf(err) != Unavailable || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want %s", list, err, c.want)
			}
			// It is not kept: what works again is seen at once.
			s.Fail("example.test", 0, 0)
			if got := hosts(r, "example.test"); !strings.HasPrefix(got, "10 a.") {
				t.Errorf("later: got %s", got)
			}
		})
	}
}

func TestNoServerAtAll(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	assert.Must(t, err)
	l.Close()
	r := New(Config{Server: l.LocalAddr().String(), Timeout: 100 * time.Millisecond})
	if _, err := r.Hosts(context.Background(), "example.test"); KindOf(err) != Unavailable || err == nil {
		t.Errorf("got %v", err)
	}
}

// S19: a cut answer is asked for again by TCP.
func TestLongAnswerComesByTCP(t *testing.T) {
	var long strings.Builder
	for i := range 100 {
		fmt.Fprintf(&long, "many.test. 300 IN MX %d host-with-a-rather-long-name-%d.example%d.test.\n", i, i, i)
	}
	s := mxtest.Start(t, long.String())
	r, _ := resolver(s)
	list, err := r.Hosts(context.Background(), "many.test")
	if err != nil || len(list) != 100 || s.OverTCP() != 1 {
		t.Errorf("got %d hosts, %v, %d questions over TCP", len(list), err, s.OverTCP())
	}
}

// S19: an answer is kept for its TTL, the shortest of its chain, and so is "none".
func TestAnswersAreKeptForTheirTTL(t *testing.T) {
	cases := map[string]struct {
		domain string
		keep   time.Duration // 0: not kept
	}{
		"TTL of the records":  {"example.test", 300 * time.Second},
		"shorter":             {"brief.test", 60 * time.Second},
		"TTL of the alias":    {"alias2.test", 120 * time.Second},
		"no such domain: SOA": {"gone.test.invalid", 30 * time.Second},
		"no MX: SOA":          {"plain.test", 30 * time.Second},
		"zero":                {"never.test", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := mxtest.Start(t, zone)
			r, clock := resolver(s)
			ask := func(want int) {
				t.Helper()
				hosts(r, c.domain)
				assert.Equal(t, s.Asked(c.domain, "MX"), want, "questions")
			}
			ask(1)
			if c.keep > 0 {
				clock.pass(c.keep - time.Second)
				ask(1)
				clock.pass(time.Second)
			}
			ask(2)
		})
	}
}

func TestTableIsBounded(t *testing.T) {
	s := mxtest.Start(t, zone)
	r, clock := resolver(s, func(c *Config) { c.Entries = 10 })
	for i := range 100 {
		hosts(r, fmt.Sprintf("gone%d.test.invalid", i))
		if got := len(r.cache.entries); got > 10 {
			t.Fatalf("%d entries, want at most 10", got)
		}
	}
	clock.pass(time.Hour)
	hosts(r, "example.test")
	assert.Equal(t, len(r.cache.entries), 1, "entries after all but one have expired")
}

func TestSameQuestionIsAskedOnce(t *testing.T) {
	s := mxtest.Start(t, zone)
	asked := make(chan struct{}, 100)
	goOn := make(chan struct{})
	s.Hold("example.test", func() { asked <- struct{}{}; <-goOn })
	r, _ := resolver(s)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got := hosts(r, "example.test"); !strings.HasPrefix(got, "10 a.") {
				t.Errorf("got %s", got)
			}
		})
	}
	<-asked
	close(goOn)
	all.Wait()
	assert.Equal(t, s.Asked("example.test", "MX"), 1, "questions")
}

func TestWaitingForAnAnswerEndsWithItsContext(t *testing.T) {
	s := mxtest.Start(t, zone)
	asked, goOn := make(chan struct{}), make(chan struct{})
	s.Hold("example.test", func() { close(asked); <-goOn })
	r, _ := resolver(s)
	first := make(chan string, 1)
	go func() { first <- hosts(r, "example.test") }()
	<-asked
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.Hosts(ctx, "example.test"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(goOn)
	if got := <-first; !strings.HasPrefix(got, "10 a.") {
		t.Errorf("the one who asked: got %s", got)
	}
}

// RFC 6761 §6.3
func TestLocalhostNeedsNoNameServer(t *testing.T) {
	s := mxtest.Start(t, zone)
	r, _ := resolver(s)
	for _, name := range []string{"localhost", "x.localhost", "LOCALHOST."} {
		addrs, err := r.LocalAddrs(context.Background(), name)
		if err != nil || !slices.Contains(addrs, netip.MustParseAddr("127.0.0.1")) {
			t.Errorf("%s: got %v, %v", name, addrs, err)
		}
	}
	if addrs, err := r.LocalAddrs(context.Background(), "a.example.test"); err != nil || len(addrs) != 1 {
		t.Errorf("got %v, %v", addrs, err)
	}
}
