package tasmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"zmailer/internal/smtpclient"
	"zmailer/internal/status"
)

// link is an open session with a server.
type link struct {
	key    poolKey
	source *source // nil: the system's choice
	conn   *smtpclient.Conn
	lmtp   bool
	remote string      // for reports
	timer  *time.Timer // of its idle time, set when it was kept once
}

// connect opens a session with the first server of a destination that wants one.
func (r *Relay) connect(ctx context.Context, key poolKey, d *destination) (*link, *refusal) {
	ctx, cancel := context.WithTimeout(ctx, r.search)
	defer cancel()
	var last *refusal
	for t, why := range r.targets(ctx, d) {
		if why == nil {
			var l *link
			if l, why = r.open(ctx, key.from, d, t); why == nil {
				l.key = key
				return l, nil
			}
			r.log.Debug("not-connected", "channel", key.channel, "host", key.host, "remote", why.remote, "reply", why.reply)
		}
		last = worse(last, why)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// open connects to one address and opens the session.
func (r *Relay) open(ctx context.Context, from origin, d *destination, t target) (*link, *refusal) {
	src, ok := from.source(t)
	if !ok {
		return nil, noSource(t)
	}
	// Deadlines of ours end a dead connection; keep-alive would cost four system
	// calls for each.
	dialer := net.Dialer{Timeout: r.client.Timeouts.Connect, KeepAlive: -1}
	cfg := r.client
	if src != nil {
		src.bind(&dialer)
		cfg.Hostname = src.helo
	}
	nc, err := dialer.DialContext(ctx, t.network, t.address)
	if src != nil && unusable(err) {
		return nil, r.sourceRefusal(src, err)
	}
	if err != nil {
		return nil, &refusal{code: status.NoAnswer, weight: weightConnect, remote: t.remote(nil),
			reply: fmt.Sprintf("connect to %s: %v", t.address, cause(err))}
	}
	cfg.LMTP = d.lmtp
	conn := smtpclient.New(nc, cfg)
	l := &link{source: src, conn: conn, lmtp: d.lmtp, remote: t.remote(nc.LocalAddr())}
	if err := conn.Hello(); err != nil {
		return nil, l.helloRefusal(err)
	}
	return l, nil
}

// helloRefusal is why a session was not opened. All of it may be over later: a
// server that says 5xx to a host is not the judge of the recipients.
func (l *link) helloRefusal(err error) *refusal {
	why := &refusal{weight: weightServer, remote: l.remote, text: l.conn.HelloText()}
	if refused := (*smtpclient.ReplyError)(nil); errors.As(err, &refused) {
		why.reply = refused.Reply.String()
		why.code = notNow
		if code := refused.Reply.Status(); code.Subject != 0 {
			why.code = status.Code{Class: 4, Subject: code.Subject, Detail: code.Detail}
		}
		return why
	}
	why.weight, why.code, why.reply = weightConnect, status.BadConnection, brief(err)
	return why
}

// brief is an error in words for a diagnostic, which names both ends anyhow.
func brief(err error) string {
	if broke := (*smtpclient.ConnError)(nil); errors.As(err, &broke) {
		return broke.Phase.String() + ": " + cause(broke.Err).Error()
	}
	return err.Error()
}

// cause leaves out of an error what the diagnostic says anyhow: operation and both
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
