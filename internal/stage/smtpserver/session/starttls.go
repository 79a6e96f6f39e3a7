package session

import "crypto/tls"

// offersTLS reports whether the connection can begin TLS. A Unix socket has no use for it.
func (c *Conn) offersTLS() bool {
	return c.config.TLS != nil && c.client.TLS == nil && c.conn.RemoteAddr().Network() != "unix"
}

// startTLS answers STARTTLS (RFC 3207).
func (c *Conn) startTLS(arg string) {
	switch {
	case c.client.TLS != nil:
		c.reply(replyHasTLS)
	case !c.offersTLS():
		c.reply(replyNotImplemented)
	case arg != "":
		c.reply(NewReply(501, "5.5.4", "Syntax: STARTTLS"))
	case len(c.peek()) > 0:
		// Commands that an attacker on the way has put behind this one must never be taken
		// for the client's in TLS (CVE-2011-0411). Those that come later are no handshake.
		c.config.Log.Warn("tls-failed", "client", c.client.String(), "reason", "commands followed STARTTLS in the clear")
		c.reply(replyTLSData)
	default:
		c.reply(replyTLS)
		if c.flush() != nil {
			return
		}
		if c.Secure() != nil {
			c.leave() // no reply can be sent between clear text and TLS
			return
		}
		c.restart()
	}
}

// Secure does the server's part of a TLS handshake, and logs if it fails.
func (c *Conn) Secure() error {
	if !c.limit(c.config.TLSTimeout) {
		return ErrStopping
	}
	t := tls.Server(c.conn, c.config.TLS())
	if err := t.Handshake(); err != nil {
		c.config.Log.Info("tls-failed", "client", c.client.String(), "reason", err)
		return err
	}
	state := t.ConnectionState()
	c.stream, c.client.TLS, c.progress = t, &state, true
	return nil
}
