package smtpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"time"
)

// TLSError is a TLS handshake that failed, or a certificate that the caller's
// configuration refused. The connection is closed.
type TLSError struct{ Err error }

func (e *TLSError) Error() string { return PhaseTLS.String() + ": " + e.Err.Error() }

func (e *TLSError) Unwrap() error { return e.Err }

// errInjected is text behind the answer to STARTTLS that was not sent by whom the
// handshake is made with (RFC 3207 §6).
var errInjected = errors.New("the server sent more behind its answer to STARTTLS")

// StartTLS puts TLS under an open session and says hello again: what the server said
// before counts no more (RFC 3207 §4.2). It fails with *ReplyError if the server does not
// want it, and the session goes on in the clear unless Usable says otherwise; with
// *TLSError or *ConnError, and the connection is closed.
func (c *Conn) StartTLS(cfg *tls.Config) error {
	c.hello.said("STARTTLS")
	if err := c.write(PhaseTLS, []byte("STARTTLS\r\n")); err != nil {
		return err
	}
	r, err := c.reply(PhaseTLS)
	if err != nil {
		return err
	}
	c.hello.answered(r)
	if r.Code != 220 {
		return &ReplyError{Phase: PhaseTLS, Reply: r}
	}
	if c.r.Buffered() > 0 {
		return c.fail(PhaseTLS, errInjected)
	}
	if err := c.handshake(cfg); err != nil {
		return err
	}
	c.ext = Extensions{}
	return c.ehlo()
}

// BeginTLS puts TLS under a connection on which nothing was said yet (RFC 8314 §3.3).
func (c *Conn) BeginTLS(cfg *tls.Config) error { return c.handshake(cfg) }

func (c *Conn) handshake(cfg *tls.Config) error {
	below := &under{Conn: c.nc}
	secure := tls.Client(below, cfg)
	c.nc.SetDeadline(time.Now().Add(c.cfg.Timeouts.of(PhaseTLS)))
	if err := secure.HandshakeContext(context.Background()); err != nil {
		c.Close()
		return &TLSError{Err: err}
	}
	c.nc.SetDeadline(time.Time{})
	c.nc, c.under = secure, below
	c.r.Reset(secure)
	state := secure.ConnectionState()
	c.tls = &state
	c.hello.remark(tls.VersionName(state.Version) + " " + tls.CipherSuiteName(state.CipherSuite))
	return nil
}

// TLS is how the connection is secured, nil if it is not.
func (c *Conn) TLS() *tls.ConnectionState { return c.tls }
