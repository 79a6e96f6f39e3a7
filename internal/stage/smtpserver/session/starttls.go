package session

import (
	"crypto/tls"
	"io"

	"zmailer/internal/mail/status"
)

// offersTLS reports whether the connection can begin TLS. A Unix socket has no use for it.
func (w *Conn) offersTLS() bool {
	return w.server.TLS != nil && w.client.TLS == nil && w.Conn.RemoteAddr().Network() != "unix"
}

// startTLS answers STARTTLS (RFC 3207). go-smtp sees none of it: TLS is put below it,
// and a new session begins that knows nothing of the commands in the clear (section 4.2).
func startTLS(w *Conn, _ *librarySession, arg string) bool {
	switch {
	case w.client.TLS != nil:
		w.say(NewReply(503, "5.5.1", "Error: TLS already active"))
		return true
	case !w.offersTLS():
		w.say(NewReply(502, "5.5.1", "Error: command not implemented"))
		return true
	case arg != "":
		w.say(NewReply(501, "5.5.4", "Syntax: STARTTLS"))
		return true
	case len(w.peek()) > 0:
		// Commands that an attacker on the way has put behind this one must never be taken
		// for the client's in TLS (CVE-2011-0411). Those that come later are no handshake.
		w.server.Log.Warn("tls-failed", "client", w.client.String(), "reason", "commands followed STARTTLS in the clear")
		w.say(&Reply{Code: 501, Status: status.Code{Class: 5, Subject: 5, Detail: 1}, Text: "Error: data after STARTTLS", Last: true})
		return true
	}
	w.say(NewReply(220, "2.0.0", "Ready to start TLS"))
	if err := w.flush(); err != nil {
		w.err = io.EOF
		return true
	}
	if err := w.Secure(); err != nil {
		// No reply can be sent between clear text and TLS.
		w.leave()
		return true
	}
	w.restart(true)
	return true
}

// Secure does the server's part of a TLS handshake, and logs if it fails.
func (w *Conn) Secure() error {
	if !w.limit(w.server.TLSTimeout) {
		return ErrStopping
	}
	c := tls.Server(w.Conn, w.server.TLS())
	if err := c.Handshake(); err != nil {
		w.server.Log.Info("tls-failed", "client", w.client.String(), "reason", err)
		return err
	}
	state := c.ConnectionState()
	w.stream, w.client.TLS = c, &state
	return nil
}
