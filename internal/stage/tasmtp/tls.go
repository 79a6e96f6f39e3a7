package tasmtp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/tasmtp/dane"
	"zmailer/internal/stage/tasmtp/tlspolicy"
	"zmailer/internal/stage/tasmtp/tlsrpt"
	"zmailer/internal/wire/smtpclient"
)

// secure opens the session on a connection as a requirement demands: TLS from the first byte,
// or after STARTTLS, or none, and a login.
func (r *security) secure(l *link, nc net.Conn, g *requirement) *refusal {
	if g.policy != nil && g.policy.Implicit {
		if err := l.conn.BeginTLS(r.tlsConfig(g)); err != nil {
			return r.tlsRefusal(l, nc, g, err)
		}
		r.record(g, nc, "", "")
	}
	if err := l.conn.Hello(); err != nil {
		return l.helloRefusal(err)
	}
	if !g.off && l.conn.TLS() == nil {
		if why := r.startTLS(l, nc, g); why != nil {
			return why
		}
	}
	// RFC 8689 §4.2.1: a server that offers it promises to require TLS in turn.
	if g.require && !l.conn.Extensions().RequireTLS {
		why := never(notSafe, "the message requires TLS, and the server does not know REQUIRETLS")
		l.leave(why)
		return why
	}
	if g.account != nil {
		why := r.login(l, nc, g)
		if why != nil && g.account.From != "" {
			// The sender's own password: no other sender waits, and the address is not down.
			why.mine, why.silent = true, false
		}
		return why
	}
	return nil
}

// leave ends a session that was opened, with what was said in it.
func (l *link) leave(why *refusal) {
	why.remote, why.text = l.remote, l.conn.HelloText()
	l.conn.Quit()
}

// startTLS puts TLS under the session if the server offers it.
func (r *security) startTLS(l *link, nc net.Conn, g *requirement) *refusal {
	if !l.conn.Extensions().StartTLS {
		r.record(g, nc, tlsrpt.NotSupported, "")
		if !g.must {
			return nil
		}
		why := g.insecure("the server does not offer STARTTLS, and TLS is wanted")
		l.leave(why)
		r.tlsFailed(l, g, errors.New("the server does not offer STARTTLS"))
		return why
	}
	if err := l.conn.StartTLS(r.tlsConfig(g)); err != nil {
		return r.tlsRefusal(l, nc, g, err)
	}
	if g.check != nil && g.soft {
		if err := g.check(l.conn.TLS()); err != nil {
			r.record(g, nc, resultType(err), err.Error())
			return nil
		}
		l.proven = true
	}
	r.record(g, nc, "", "")
	return nil
}

// tlsConfig is for one connection. What Go's own verification does not know of, TLSA
// records and names that are written down, is verified in its place.
func (r *security) tlsConfig(g *requirement) *tls.Config {
	c := &tls.Config{ServerName: g.sni, MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, ClientSessionCache: r.sessions}
	if g.check != nil && !g.soft {
		c.VerifyConnection = func(state tls.ConnectionState) error { return g.check(&state) }
	}
	return c
}

// tlsRefusal returns the refusal for a failed handshake. If TLS is optional a refused
// STARTTLS is ignored, and after a broken handshake the server is tried again without TLS.
func (r *security) tlsRefusal(l *link, nc net.Conn, g *requirement, err error) *refusal {
	if broke := (*smtpclient.ConnError)(nil); errors.As(err, &broke) {
		return l.helloRefusal(err)
	}
	refused := (*smtpclient.ReplyError)(nil)
	if errors.As(err, &refused) && refused.Phase != smtpclient.PhaseTLS {
		r.record(g, nc, "", "") // TLS has come about; it is the hello under it that they refuse
		return l.helloRefusal(err)
	}
	r.record(g, nc, resultType(err), brief(err))
	if refused != nil && !g.must && l.conn.Usable() {
		return nil
	}
	why := g.insecure(brief(err))
	why.remote, why.text = l.remote, l.conn.HelloText()
	why.retryPlain = !g.must && refused == nil
	if refused != nil {
		l.conn.Quit()
	}
	r.tlsFailed(l, g, err)
	return why
}

// tlsFailed logs that TLS failed.
func (r *security) tlsFailed(l *link, g *requirement, reason error) {
	r.log.Info("tls-failed", "channel", l.key.channel, "host", l.key.host, "remote", l.remote, "reason", reason, "policy", g.why)
}

// resultType returns what RFC 8460 §4.3 calls a failure.
func resultType(err error) string {
	var name *tlspolicy.NameError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, new(*smtpclient.ReplyError)):
		return tlsrpt.NotSupported
	case errors.As(err, &name), errors.As(err, &host):
		return tlsrpt.HostMismatch
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return tlsrpt.Expired
	case errors.As(err, &invalid), errors.As(err, &unknown):
		return tlsrpt.NotTrusted
	case errors.Is(err, dane.ErrNoMatch):
		return tlsrpt.TLSAInvalid
	}
	return tlsrpt.Failure
}

// record counts a session for the TLS reports of domains.
func (r *security) record(g *requirement, nc net.Conn, result, reason string) {
	if g.count == nil {
		return
	}
	s := *g.count
	s.Result, s.Reason = result, reason
	if nc != nil {
		s.From, s.To = ipOf(nc.LocalAddr()), ipOf(nc.RemoteAddr())
	}
	r.reports.Add(s)
}

func ipOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return ""
	}
	return host
}

// login gives user and password to a server that may have them. Whatever comes of it
// concerns the host, or the sender's mail to it if the account is his: the recipients
// wait, and a password that is put right counts at the next attempt.
func (r *security) login(l *link, nc net.Conn, g *requirement) *refusal {
	if l.conn.TLS() == nil && (!isLoopback(nc) || r.far) && !(g.off && g.account.Cleartext) {
		why := g.insecure("the password of " + g.account.Where + " is not sent in the clear")
		l.leave(why)
		return why
	}
	err := l.conn.Auth(g.terms.login())
	if err == nil {
		return nil
	}
	if broke := (*smtpclient.ConnError)(nil); errors.As(err, &broke) {
		return l.helloRefusal(err)
	}
	why := &refusal{code: status.Code{Class: 4, Subject: 7, Detail: 8}, weight: weightServer, remote: l.remote, text: l.conn.HelloText(), reply: brief(err)}
	r.log.Error("login-refused", "channel", l.key.channel, "host", l.key.host, "remote", l.remote, "user", g.account.User, "reason", err,
		"advice", "correct user or password at "+g.account.Where+"; its mail waits and goes on without a restart")
	if refused := (*smtpclient.ReplyError)(nil); errors.As(err, &refused) {
		why.reply = "login as " + g.account.User + ": " + refused.Reply.String()
	}
	return why
}

func isLoopback(nc net.Conn) bool {
	tcp, ok := nc.RemoteAddr().(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}
