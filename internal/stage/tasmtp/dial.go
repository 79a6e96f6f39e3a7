package tasmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"zmailer/internal/mail/status"
)

const (
	// stagger is how long an address has for itself before the next one is tried beside
	// it: the connection attempt delay of RFC 8305 §5.
	stagger = 250 * time.Millisecond
	// maxAttempts bounds the attempts that are on the way at once.
	maxAttempts = 8
)

// late is why an address is remembered that another one has overtaken by so much.
var late = &refusal{code: status.NoAnswer, weight: weightConnect, reply: "other addresses of the server answer earlier"}

// attempt is one address being connected to, then its end: a connection or a refusal.
type attempt struct {
	target target
	source *source
	turn   int // in the order of a race
	nc     net.Conn
	trial  *trial // with nc, while the session is opened; nil: it is not counted
	why    *refusal
}

// dial connects to one of a server's addresses, all of which serve as well: the first
// that answers is kept (RFC 8305 §5). An address is tried when the one before has
// failed or was silent for a while. Each is connected to from the origin's source of
// its family, and left out if there is none.
func (r *Relay) dial(ctx context.Context, from origin, addrs []target) attempt {
	var last *refusal
	order := make([]attempt, 0, len(addrs))
	for _, t := range interleave(addrs) {
		src, ok := from.source(t)
		if !ok {
			last = noSource(t)
			continue
		}
		order = append(order, attempt{target: t, source: src, turn: len(order)})
	}
	switch len(order) {
	case 0:
		return attempt{why: last}
	case 1:
		r.try(ctx, &order[0])
		return order[0]
	}
	return r.race(ctx, order, last)
}

// race tries addresses in order until one answers. If none does it is told what worse
// makes of their refusals and the one given.
func (r *Relay) race(ctx context.Context, order []attempt, last *refusal) attempt {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan attempt, len(order)) // nobody who is late waits
	next, running := 0, 0
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	start := func() {
		if next == len(order) || running == maxAttempts || ctx.Err() != nil && next > 0 {
			return
		}
		a := order[next]
		next, running = next+1, running+1
		go func() {
			r.try(ctx, &a)
			ended <- a
		}()
		timer.Reset(stagger)
	}
	for start(); running > 0; {
		select {
		case <-timer.C:
			start()
		case a := <-ended:
			running--
			order[a.turn].why = a.why
			if a.why == nil {
				cancel()
				go r.closeLate(ended, running)
				r.overtaken(order[:a.turn])
				return a
			}
			last = worse(last, a.why)
			start()
		}
	}
	return attempt{why: last}
}

// overtaken remembers the addresses that were tried before the winner and have not
// answered yet.
func (r *Relay) overtaken(before []attempt) {
	for i := range before {
		if before[i].why == nil {
			r.dead.bury(before[i].target, before[i].source, late)
		}
	}
}

// closeLate hangs up on the addresses that answered after another one had won.
func (r *Relay) closeLate(ended <-chan attempt, running int) {
	for range running {
		if a := <-ended; a.nc != nil {
			a.nc.Close()
			r.unheard.end(a.trial, false)
		}
	}
}

// try connects to one address.
func (r *Relay) try(ctx context.Context, a *attempt) {
	x, ok := r.unheard.begin(a.target)
	if !ok {
		a.why = crowded(a.target)
		return
	}
	// Deadlines of ours end a dead connection; keep-alive would cost four system
	// calls for each.
	dialer := net.Dialer{Timeout: r.client.Timeouts.Connect, KeepAlive: -1}
	if a.source != nil {
		a.source.bind(&dialer)
	}
	nc, err := r.dialWith(&dialer, ctx, a.target.network, a.target.address)
	if err == nil {
		a.nc, a.trial = nc, x
		return
	}
	r.unheard.end(x, false)
	if a.source != nil && unusable(err) {
		a.why = r.sourceRefusal(a.source, err)
		return
	}
	a.why = &refusal{code: status.NoAnswer, weight: weightConnect, remote: a.target.remote(nil),
		reply: fmt.Sprintf("connect to %s: %v", a.target.address, cause(err))}
	if ctx.Err() != nil || errors.Is(err, syscall.ENETUNREACH) {
		return // another one has won, the search is over, we are cut off: nothing about this one
	}
	// A refusal comes at once and may be asked for again; what keeps us waiting, as
	// an unreachable host does, is not.
	a.why.silent = !errors.Is(err, syscall.ECONNREFUSED)
	r.dead.bury(a.target, a.source, a.why)
	r.log.Debug("not-connected", "remote", a.why.remote, "reply", a.why.reply)
}

// interleave puts the addresses of both families in turn, IPv6 first (RFC 8305 §4);
// those of one family stay in their order.
func interleave(addrs []target) []target {
	var six, other []target
	for _, t := range addrs {
		if host, err := netip.ParseAddrPort(t.address); err == nil && host.Addr().Is6() {
			six = append(six, t)
		} else {
			other = append(other, t)
		}
	}
	if len(six) == 0 || len(other) == 0 {
		return addrs
	}
	order := make([]target, 0, len(addrs))
	for len(six) > 0 && len(other) > 0 {
		order = append(order, six[0], other[0])
		six, other = six[1:], other[1:]
	}
	return slices.Concat(order, six, other)
}

// behind is the addresses that come after one in the order in which they are tried.
func behind(addrs []target, t target) []target {
	order := interleave(addrs)
	return order[slices.Index(order, t)+1:]
}
