package tasmtp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/wire/smtpclient"
)

// link is an open session with a server.
type link struct {
	key    poolKey
	source *source // nil: the system's choice
	conn   *smtpclient.Conn
	lmtp   bool
	remote string // for reports
	way    string // what protects it, for the log
	proven bool   // the server's certificate is what the policy requires, or would require
	pooled
}

// connect opens a session with the first server of a destination that wants one.
// Addresses that are marked down come last.
func (r *connector) connect(ctx context.Context, key poolKey, d *destination) (*link, *refusal) {
	ctx, cancel := context.WithTimeout(ctx, r.search)
	defer cancel()
	var last *refusal
	var later []server
	for s, why := range r.servers(ctx, d) {
		if why == nil {
			alive, dead := r.hosts.split(key.from, s.addrs)
			if len(dead) > 0 {
				later = append(later, server{name: s.name, addrs: dead})
			}
			if s.addrs = alive; len(alive) == 0 {
				continue
			}
			var l *link
			if l, why = r.connectTo(ctx, key, d, s); why == nil {
				return l, nil
			}
		}
		last = r.notConnected(key, last, why)
		if ctx.Err() != nil {
			return nil, last
		}
	}
	for _, s := range later {
		var why *refusal
		if s.addrs, why = r.hosts.retry(key.from, s.addrs); len(s.addrs) > 0 {
			var l *link
			if l, why = r.connectTo(ctx, key, d, s); why == nil {
				return l, nil
			}
		}
		if last = r.notConnected(key, last, why); ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// notConnected returns the refusal to report after one more server has failed.
func (r *connector) notConnected(key poolKey, last, why *refusal) *refusal {
	r.log.Debug("not-connected", "channel", key.channel, "host", key.host, "remote", why.remote, "reply", why.reply)
	return worse(last, why)
}

// connectTo opens a session at the first address of a server that wants one.
func (r *connector) connectTo(ctx context.Context, key poolKey, d *destination, s server) (*link, *refusal) {
	g, last := r.security.requirement(ctx, key.terms, d, &s)
	if last != nil {
		return nil, last
	}
	var until time.Time
	for left := s.addrs; len(left) > 0 && (last == nil || ctx.Err() == nil); {
		a := r.dialFree(ctx, key.from, left, &until)
		if a.why != nil {
			return nil, worse(last, a.why)
		}
		l, why := r.open(&a, key, d, g)
		if why != nil && why.retryPlain {
			l, why = r.openPlain(ctx, key, d, a.target, g, &until)
		}
		if why == nil {
			r.hosts.markUp(a.target, a.source)
			return l, nil
		}
		if why.silent {
			r.openings.silent(a.target)
			r.hosts.markDown(a.target, a.source, why)
		}
		last = worse(last, why)
		left = behind(left, a.target)
	}
	return nil, last
}

// dialFree is dial at addresses that another session may be opened at, when there are some.
// until is as for unheard.free.
func (r *connector) dialFree(ctx context.Context, from origin, addrs []target, until *time.Time) attempt {
	for {
		free, why := r.openings.awaitFree(ctx, addrs, until)
		if why != nil {
			return attempt{why: why}
		}
		// Others may have taken the places meanwhile.
		if a := r.dial(ctx, from, free); a.why == nil || !a.why.crowded || ctx.Err() != nil {
			return a
		}
	}
}

// openPlain asks a server again with which TLS, which need not be, did not come about.
func (r *connector) openPlain(ctx context.Context, key poolKey, d *destination, t target, g *requirement, until *time.Time) (*link, *refusal) {
	a := r.dialFree(ctx, key.from, []target{t}, until)
	if a.why != nil {
		return nil, a.why
	}
	plain := *g
	plain.off, plain.count = true, nil
	return r.open(&a, key, d, &plain)
}

// open opens the session on a connection.
func (r *connector) open(a *attempt, key poolKey, d *destination, g *requirement) (*link, *refusal) {
	defer r.openings.end(a.trial, false) // in a panic; else it has ended
	cfg := r.client
	if a.source != nil {
		cfg.Hostname = a.source.helo
	}
	cfg.LMTP = d.lmtp
	cfg.Ignore = r.ignored(key, a.target)
	conn := smtpclient.New(a.nc, cfg)
	l := &link{key: key, source: a.source, conn: conn, lmtp: d.lmtp, remote: a.target.remote(a.nc.LocalAddr())}
	r.openings.connected(a.trial, a.nc)
	why := r.security.secure(l, a.nc, g)
	if r.openings.end(a.trial, why == nil) && why != nil && why.outcome == status.Deferred && !isReply(why.reply) {
		why.silent, why.retryPlain = true, false
		why.reply = fmt.Sprintf("no session within %v, while many hosts are silent", r.openings.short)
	}
	if why != nil {
		return nil, why
	}
	l.way = wayOf(conn.TLS(), l.proven || conn.TLS() != nil && g.check != nil && !g.soft)
	return l, nil
}

// wayOf returns what protects a connection, for the log.
func wayOf(state *tls.ConnectionState, verified bool) string {
	if state == nil {
		return ""
	}
	version := strings.Replace(tls.VersionName(state.Version), "TLS ", "TLSv", 1)
	return "tls=" + version + " cipher=" + tls.CipherSuiteName(state.CipherSuite) + " verified=" + strconv.FormatBool(verified)
}

// ignored returns the EHLO keywords of a server that are ignored.
func (r *connector) ignored(key poolKey, t target) []string {
	var list []string
	if r.discard != nil {
		host, _ := netip.ParseAddrPort(t.address)
		list = r.discard.Current().Match(key.channel, key.host, host.Addr())
	}
	if r.pool.isSlow(key) {
		list = append(slices.Clone(list), "PIPELINING")
	}
	return list
}

// helloRefusal returns why a session was not opened. All reasons are temporary: a 5xx
// reply to a host decides nothing about the recipients. Only 521 as the greeting means
// that the host never takes mail (RFC 7504 section 3).
func (l *link) helloRefusal(err error) *refusal {
	why := &refusal{weight: weightServer, remote: l.remote, text: l.conn.HelloText()}
	if refused := (*smtpclient.ReplyError)(nil); errors.As(err, &refused) {
		why.reply = refused.Reply.String()
		if refused.Phase == smtpclient.PhaseGreeting && refused.Reply.Code == 521 {
			why.outcome, why.weight, why.code = status.Failed, weightPermanent, neverMail
			if code := refused.Reply.Status(); code.Class == 5 && code.Subject != 0 {
				why.code = code
			}
			return why
		}
		why.code = notNow
		if code := refused.Reply.Status(); code.Subject != 0 {
			why.code = status.Code{Class: 4, Subject: code.Subject, Detail: code.Detail}
		}
		return why
	}
	why.weight, why.code, why.reply = weightConnect, status.BadConnection, brief(err)
	if broke := (*smtpclient.ConnError)(nil); errors.As(err, &broke) {
		why.silent = broke.Timeout()
	}
	return why
}

// brief returns the text of an error for a diagnostic, which names both ends anyway.
func brief(err error) string {
	if broke := (*smtpclient.ConnError)(nil); errors.As(err, &broke) {
		return broke.Phase.String() + ": " + cause(broke.Err).Error()
	}
	return err.Error()
}

// cause removes from an error what the diagnostic contains anyway: operation and both
// addresses.
func cause(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		if op.Timeout() {
			return os.ErrDeadlineExceeded
		}
		err = op.Err
		if call := (*os.SyscallError)(nil); errors.As(err, &call) {
			err = call.Err
		}
	}
	return err
}

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
	trial  *opening // with nc, while the session is opened; nil: it is not counted
	why    *refusal
}

// dial connects to one of a server's addresses, all of which serve as well: the first
// that answers is kept (RFC 8305 §5). An address is tried when the one before has
// failed or was silent for a while. Each is connected to from the origin's source of
// its family, and left out if there is none.
func (r *connector) dial(ctx context.Context, from origin, addrs []target) attempt {
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

// race tries addresses in order until one answers. If none does the result is the worst of
// their refusals and the one given.
func (r *connector) race(ctx context.Context, order []attempt, last *refusal) attempt {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan attempt, len(order)) // late attempts do not block
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
func (r *connector) overtaken(before []attempt) {
	for i := range before {
		if before[i].why == nil {
			r.hosts.markDown(before[i].target, before[i].source, late)
		}
	}
}

// closeLate closes connections to addresses that answered after another one had won.
func (r *connector) closeLate(ended <-chan attempt, running int) {
	for range running {
		if a := <-ended; a.nc != nil {
			a.nc.Close()
			r.openings.end(a.trial, false)
		}
	}
}

// try connects to one address.
func (r *connector) try(ctx context.Context, a *attempt) {
	x, ok := r.openings.begin(a.target)
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
	r.openings.end(x, false)
	if a.source != nil && unusable(err) {
		a.why = r.sourceRefusal(a.source, err)
		return
	}
	a.why = &refusal{code: status.NoAnswer, weight: weightConnect, remote: a.target.remote(nil),
		reply: fmt.Sprintf("connect to %s: %v", a.target.address, cause(err))}
	if ctx.Err() != nil || errors.Is(err, syscall.ENETUNREACH) {
		return // another address has won, the search is over, or we have no network
	}
	// A refused connection costs no time and may be tried again; an address that costs time,
	// such as an unreachable host, is not.
	a.why.silent = !errors.Is(err, syscall.ECONNREFUSED)
	r.hosts.markDown(a.target, a.source, a.why)
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

// behind returns the addresses that come after one in the order in which they are tried.
func behind(addrs []target, t target) []target {
	order := interleave(addrs)
	return order[slices.Index(order, t)+1:]
}
