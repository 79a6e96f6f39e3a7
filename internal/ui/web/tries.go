package web

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

const (
	// triesFree are failures of a client without a pause; then each costs triesPause,
	// doubled up to triesLongest.
	triesFree    = 5
	triesPause   = time.Second
	triesLongest = time.Minute
	// maxClients is how many clients are kept. One that has not failed for triesForget is
	// forgotten when there are more.
	maxClients  = 1000
	triesForget = 10 * time.Minute
	// checksAtOnce bounds how many passwords are looked at, which takes memory.
	checksAtOnce = 2
)

// tries counts failures by client.
type tries struct {
	now    func() time.Time
	mu     sync.Mutex
	failed map[string]*failures // by origin
	busy   chan struct{}
}

type failures struct {
	n           int
	last, until time.Time
	user        string // whom the tries were for
	others      bool   // and others
}

// origin returns what a client is counted by: its address, or of IPv6 the network that it has
// to itself (RFC 4291 §2.5.4), in which it may take a new address for each try.
func origin(from string) string {
	a, err := netip.ParseAddr(from)
	if err != nil {
		return from
	}
	if a = a.Unmap(); a.Is4() {
		return a.String()
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return from
	}
	return p.String()
}

// wait returns how long a client must wait before it may try again.
func (t *tries) wait(from string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.failed[origin(from)]; f != nil {
		return f.until.Sub(t.now())
	}
	return 0
}

// count counts a try. A success ends the count of that user's own failures alone: who may log in
// does not buy more guesses at others' passwords by it.
func (t *tries) count(from, user string, ok bool) {
	from = origin(from)
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.failed[from]
	if ok {
		if f != nil && f.user == user && !f.others {
			delete(t.failed, from)
		}
		return
	}
	if f == nil || now.Sub(f.last) > triesForget {
		if f == nil {
			t.room(now)
		}
		f = &failures{user: user}
		t.failed[from] = f
	}
	f.last, f.others = now, f.others || f.user != user
	if f.n++; f.n >= triesFree {
		f.until = now.Add(min(triesPause<<min(f.n-triesFree, 16), triesLongest))
	}
}

// room makes room for one more client: who failed long ago goes, or else who failed first.
func (t *tries) room(now time.Time) {
	if t.failed == nil {
		t.failed = map[string]*failures{}
	}
	if len(t.failed) < maxClients {
		return
	}
	oldest := ""
	for from, f := range t.failed {
		if now.Sub(f.last) > triesForget {
			delete(t.failed, from)
		} else if oldest == "" || f.last.Before(t.failed[oldest].last) {
			oldest = from
		}
	}
	if len(t.failed) >= maxClients {
		delete(t.failed, oldest)
	}
}

// enter waits for a place to look at a password in.
func (t *tries) enter(ctx context.Context) (leave func(), err error) {
	t.mu.Lock()
	if t.busy == nil {
		t.busy = make(chan struct{}, checksAtOnce)
	}
	busy := t.busy
	t.mu.Unlock()
	select {
	case busy <- struct{}{}:
		return func() { <-busy }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
