package tasmtp

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/smtpclient"
	. "zmailer/internal/tasmtp/tasmtptest"
)

// wanted is an errand for a connection on which nothing is said.
func wanted(t *testing.T, key poolKey, small bool) errand {
	return errand{key: key, small: small, open: func() (*link, *refusal) {
		near, distant := net.Pipe()
		t.Cleanup(func() { near.Close(); distant.Close() })
		return &link{key: key, conn: smtpclient.New(near, smtpclient.Config{})}, nil
	}}
}

var there = poolKey{channel: "smtp", host: "there.test"}

// A connection that becomes idle is the large message's that waits for it.
func TestSmallMessagesLeaveALargeOneItsTurn(t *testing.T) {
	p := newPool(time.Hour, 1, 1, 0)
	l, _ := p.get(wanted(t, there, true))
	got := make(chan *link)
	go func() {
		l, _ := p.get(wanted(t, there, false))
		got <- l
	}()
	await(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.large[there] == 1
	})
	if p.join(wanted(t, there, true)) != nil {
		t.Error("a small message joins while a large one waits")
	}
	p.mu.Lock()
	l.users-- // idle, and nobody knows
	if e := wanted(t, there, true); p.choose(&e) != nil {
		t.Error("a small message has the idle connection")
	}
	if e := wanted(t, poolKey{channel: "smtp", host: "there.test", from: origin{v6: &source{}}}, true); p.choose(&e) != l {
		t.Error("a message from elsewhere has it not")
	}
	l.users++
	p.mu.Unlock()
	p.release(l)
	if <-got != l {
		t.Error("the large message has another")
	}
}

// Two connections become idle at once: the small message that left both to the large one
// has the other.
func TestSmallMessageHasWhatALargeOneLeaves(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			p := newPool(0, 1, 2, 0)
			p.idle = time.Hour
			a, _ := p.get(wanted(t, there, false))
			b, _ := p.get(wanted(t, there, false))
			got := make(chan *link, 2)
			for _, small := range []bool{false, true} {
				go func() {
					l, _ := p.get(wanted(t, there, small))
					got <- l
				}()
			}
			synctest.Wait()
			p.release(a)
			p.release(b)
			for range 2 {
				select {
				case l := <-got:
					defer p.release(l)
				case <-time.After(time.Minute):
					t.Fatal("a message waits beside an idle connection")
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// A panic while a connection is opened is that of one delivery: those that hope for the
// connection open their own.
func TestPanicWhileAConnectionIsOpened(t *testing.T) {
	p := newPool(time.Hour, 1, 1, 0)
	hoped := make(chan *link)
	e := wanted(t, there, true)
	e.open = func() (*link, *refusal) {
		go func() {
			l, _ := p.get(wanted(t, there, true))
			hoped <- l
		}()
		await(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.opening[0].wait == 1
		})
		panic("test")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		p.get(e)
	}()
	if <-hoped == nil {
		t.Error("no connection")
	}
}

// What is known of a server outlives a change of the files tls and credentials.
func TestDistrustHoldsWithOtherTerms(t *testing.T) {
	p := newPool(time.Hour, 1, 1, 0)
	p.distrust(there)
	other := there
	other.terms.relaxed = true
	if _, ok := p.single[hostOf(other)]; !ok {
		t.Error("forgotten")
	}
}

// panics is a log that panics on an event.
type panics struct {
	slog.Handler
	on string
}

func (p panics) Enabled(context.Context, slog.Level) bool { return true }

func (p panics) Handle(_ context.Context, r slog.Record) error {
	if r.Message == p.on {
		panic("test")
	}
	return nil
}

// A panic in the middle of a job leaves the pool whole: the connection is given back.
func TestPanicInAJobGivesTheConnectionBack(t *testing.T) {
	sink := (&Sink{Answer: func(command string) string {
		if command == "." {
			return "HANGUP"
		}
		return ""
	}}).Start(t, "", "")
	s := newStation(t, sink.Port(), "", func(c *Config) { c.Log = slog.New(panics{slog.DiscardHandler, "in-doubt"}) })
	s.one("smtp", "[127.0.0.1]")
	if got := len(s.relay.pool.links); got != 0 {
		t.Errorf("%d connections, want 0", got)
	}
}

// A message that was refused as BDAT at the last try is not failed for that: it goes by
// DATA.
func TestTriesOfAMessage(t *testing.T) {
	cases := map[string]struct {
		err  error
		try  int
		want bool
	}{
		"done":                        {nil, 1, false},
		"not begun":                   {smtpclient.ErrStale, 1, true},
		"not begun, at the last try":  {smtpclient.ErrStale, maxStale, false},
		"not by BDAT":                 {smtpclient.ErrNoChunks, 1, true},
		"not by BDAT at the last try": {smtpclient.ErrNoChunks, maxStale, true},
		"not by BDAT, once more":      {smtpclient.ErrNoChunks, maxStale + 1, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := again(c.err, c.try); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
