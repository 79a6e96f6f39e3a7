package rcptcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice/verified"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
)

// answeringProbes plays ta-smtp --probe; a file "away" beside it makes all next hops away.
const answeringProbes = `#!/bin/sh
cd $(dirname $0)
echo zmailer probe 1
while read -r id channel host to; do
	printf "%s\n" "$channel $host $to" >>asked
	if [ -e away ]; then echo $id away 4.4.1 no answer; continue; fi
	case $to in
	no*) echo $id undeliverable 5.1.1 550 5.1.1 no such user;;
	grey*) echo $id unknown 4.2.0 450 4.2.0 come back;;
	full*) echo $id unknown 4.3.1 452 4.3.1 mailbox system full;;
	slow*) ;;
	odd*) echo $id what;;
	*) echo $id deliverable 2.1.5 250 2.1.5 Ok;;
	esac
done
`

type proberRig struct {
	*Prober
	t   *testing.T
	dir string
	now atomic.Int64
}

func newProberRig(t *testing.T, change func(*ProbeOptions)) *proberRig {
	r := &proberRig{t: t, dir: t.TempDir()}
	r.now.Store(time.Now().UnixNano())
	path := filepath.Join(r.dir, "ta-smtp")
	assert.Must(t, os.WriteFile(path, []byte(answeringProbes), 0o755))
	assert.Must(t, os.Mkdir(filepath.Join(r.dir, verified.Dir), 0o755))
	o := ProbeOptions{
		Command: func(channel, _ string) ([]string, []string, error) {
			if channel == "local" {
				return nil, nil, errors.New("not served")
			}
			argv, err := ProbeCommand([]string{path, channel})
			return argv, nil, err
		},
		Cache:          verified.Open(assert.Get(durable.NewOS(r.dir))(t), verified.Options{}),
		PositiveExpire: DefaultPositiveExpire, PositiveRefresh: DefaultPositiveRefresh,
		NegativeExpire: DefaultNegativeExpire, NegativeRefresh: DefaultNegativeRefresh,
		Wait: 20 * time.Second,
		Now:  func() time.Time { return time.Unix(0, r.now.Load()) },
	}
	if change != nil {
		change(&o)
	}
	r.Prober = NewProber(o)
	t.Cleanup(r.Prober.Close)
	return r
}

func (r *proberRig) verify(to, want string, asked int) {
	r.t.Helper()
	f, err := r.Verify(context.Background(), NextHop{Channel: "smtp", Host: "next.example", User: to + "@example.org"})
	got := "no"
	switch {
	case err != nil:
		got = "undecided"
		if u := (*UndecidedError)(nil); !errors.As(err, &u) || u.Code.Class != 4 {
			r.t.Errorf("%s: got %v, want a code of class 4", to, err)
		}
	case f.OK:
		got = "ok"
	}
	if got != want {
		r.t.Errorf("%s: got %s (%v), want %s", to, got, err, want)
	}
	r.settle()
	assert.Equal(r.t, lines(r.t, r.dir, "asked"), asked, "questions after %s", to)
}

// settle waits until no probe is on its way.
func (r *proberRig) settle() {
	for {
		r.mu.Lock()
		var f *flight
		for _, f = range r.flights {
			break
		}
		r.mu.Unlock()
		if f == nil {
			return
		}
		<-f.done
	}
}

func (r *proberRig) pass(d time.Duration) { r.now.Add(int64(d)) }

// Op9: answers are kept over restarts, for their times, and asked again in the background
// before they end. A next hop that is away changes no answer, and is no answer itself.
func TestAnswersOfNextHopsAreKept(t *testing.T) {
	r := newProberRig(t, nil)
	r.verify("bob", "ok", 1)
	r.verify("nobody", "no", 2)
	r.verify("bob", "ok", 2)
	r.verify("BOB", "ok", 2)
	r.verify("nobody", "no", 2)
	r.pass(4 * time.Hour)
	r.verify("nobody", "no", 3) // that asks in the background
	r.verify("nobody", "no", 3)
	r.verify("bob", "ok", 3)
	r.pass(8 * 24 * time.Hour)
	away := filepath.Join(r.dir, "away")
	assert.Must(t, os.WriteFile(away, nil, 0o644))
	r.verify("bob", "ok", 4)
	r.verify("nobody", "undecided", 4) // its answer has ended, and the next hop was away just now
	r.pass(hopHoldOff)
	r.verify("nobody", "undecided", 5)
	assert.Must(t, os.Remove(away))
	r.pass(hopHoldOff)
	r.verify("nobody", "no", 6)
	r.verify("bob", "ok", 7)
	r.verify("bob", "ok", 7)
	other := newProberRig(t, func(o *ProbeOptions) { o.Cache = r.o.Cache; o.Now = r.o.Now })
	other.verify("nobody", "no", 0)
}

func TestTemporaryAnswerIsAskedAgainLater(t *testing.T) {
	r := newProberRig(t, nil)
	r.verify("grey", "undecided", 1)
	r.verify("grey", "undecided", 1)
	r.verify("bob", "ok", 2)
	// Whoever knows a mailbox that is full does not keep others from being verified.
	r.verify("full", "undecided", 3)
	r.verify("carol", "ok", 4)
	r.pass(holdOff)
	r.verify("grey", "undecided", 5)
	r.verify("odd", "undecided", 6)
	if _, err := r.Verify(context.Background(), NextHop{Channel: "local", Host: "x", User: "y"}); err == nil {
		t.Error("a channel that is not served: got no error")
	}
	r.o.NegativeExpire = 0
	r.pass(time.Hour)
	r.verify("nobody", "no", 7)
	r.verify("nobody", "no", 8)
}

// A burst asks about each recipient once, and a next hop so often at most.
func TestProbesAreBounded(t *testing.T) {
	r := newProberRig(t, func(o *ProbeOptions) { o.Count, o.Per = 3, time.Minute })
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			_, _ = r.Verify(context.Background(), NextHop{Channel: "smtp", Host: "next.example", User: "bob@example.org"})
		})
	}
	all.Wait()
	r.verify("bob", "ok", 1)
	r.verify("b", "ok", 2)
	r.verify("c", "ok", 3)
	r.verify("d", "undecided", 3)
	if f, err := r.Verify(context.Background(), NextHop{Channel: "smtp", Host: "other.example", User: "d@example.org"}); err != nil || !f.OK {
		t.Errorf("another next hop: got %+v, %v", f, err)
	}
	r.pass(time.Minute)
	r.verify("d", "ok", 5)
}

// A client does not wait longer than it has to; the answer is for its next try.
func TestSlowNextHopKeepsNoClient(t *testing.T) {
	r := newProberRig(t, func(o *ProbeOptions) { o.Wait = 10 * time.Millisecond })
	for i := range maxHopProbes + 2 {
		_, err := r.Verify(context.Background(), NextHop{Channel: "smtp", Host: "next.example", User: "slow" + strings.Repeat("x", i)})
		if u := (*UndecidedError)(nil); !errors.As(err, &u) {
			t.Errorf("got %v", err)
		}
	}
	r.mu.Lock()
	n := len(r.flights)
	r.mu.Unlock()
	if n > maxHopProbes {
		t.Errorf("%d probes are on their way at one next hop", n)
	}
}

// A client that names senders in many domains, all served by a host of its choice, has that host
// asked as often as one next hop is, and leaves the places of our own next hops to them, however
// slow the host is.
func TestForeignNextHopsShareOneAllowance(t *testing.T) {
	at := func(host, user string) NextHop {
		return NextHop{Channel: "smtp", Host: host, User: user + "@" + host, Foreign: true}
	}
	t.Run("rate", func(t *testing.T) {
		r := newProberRig(t, func(o *ProbeOptions) { o.Count, o.Per = 3, time.Minute })
		for i := range 10 {
			_, err := r.Verify(context.Background(), at(fmt.Sprintf("d%d.example", i), "x"))
			assert.Equal(t, err == nil, i < 3, "domain %d: %v", i, err)
		}
		r.verify("bob", "ok", 4)
		r.pass(time.Minute)
		_, err := r.Verify(context.Background(), at("d5.example", "x"))
		assert.NoError(t, err)
	})
	t.Run("places", func(t *testing.T) {
		r := newProberRig(t, func(o *ProbeOptions) { o.Wait = 10 * time.Second })
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // the client does not wait
		for i := range maxProbes {
			_, _ = r.Verify(ctx, at(fmt.Sprintf("d%d.example", i), "slow"))
		}
		f, err := r.Verify(context.Background(), NextHop{Channel: "smtp", Host: "next.example", User: "bob@example.org"})
		assert.NoError(t, err)
		assert.Equal(t, f.OK, true, "our own")
		assert.Equal(t, len(r.flights), maxForeign, "probes that do not end")
	})
}

// No recipient changes a request of a probe, or what the cache keeps of another: each is asked about
// once, and its answer is found again by what reads the cache from the disk.
func TestNoTextChangesARequestOrTheCacheOfProbes(t *testing.T) {
	r := newProberRig(t, nil)
	next := map[string]NextHop{}
	for i, text := range hostile.Texts(t) {
		n := NextHop{Channel: "smtp", Host: "next.example", User: []string{"no", "yes"}[i%2] + text}
		if i%3 == 0 {
			n = NextHop{Channel: "lmtp", Host: "unix:/run/" + text, User: []string{"no", "yes"}[i%2] + "@x.example"}
		}
		next[n.Key()] = n
	}
	same := func(n NextHop, found Finding, err error) {
		t.Helper()
		if err != nil || found.Key != n.Key() || found.OK != strings.HasPrefix(n.User, "yes") {
			t.Errorf("%q: got %+v, %v", n.Key(), found, err)
		}
	}
	for _, n := range next {
		found, err := r.Verify(context.Background(), n)
		same(n, found, err)
	}
	assert.Equal(t, lines(t, r.dir, "asked"), len(next), "questions")
	r.o.Cache = verified.Open(assert.Get(durable.NewOS(r.dir))(t), verified.Options{})
	for _, n := range next {
		found, err := r.Verify(context.Background(), n)
		same(n, found, err)
	}
	assert.Equal(t, lines(t, r.dir, "asked"), len(next), "questions after a restart")
}
