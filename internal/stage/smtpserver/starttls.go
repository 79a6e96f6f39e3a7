package smtpserver

import (
	"crypto/tls"
	"errors"
	"io"
	"time"

	"zmailer/internal/run/config"
)

// defaultTLSTimeout is how long a handshake may take in all.
const defaultTLSTimeout = time.Minute

var errStopping = errors.New("the server is stopping")

// openTLS reads the certificates, and says what is missing.
func (c *Config) openTLS() (*certificates, error) {
	if err := c.TLS.check(); err != nil {
		return nil, &config.Error{File: "TLSKEY", Reason: "cannot be used", Err: err}
	}
	certs, err := openCertificates(c.TLS, time.Now, c.Log)
	switch {
	case err != nil:
		return nil, err
	case certs == nil && len(c.SubmissionsListen)+len(c.Activated[RoleSubmissions]) > 0:
		return nil, &config.Error{File: "SUBMISSIONSLISTEN", Reason: "needs TLSCERT"}
	case certs == nil && len(c.SubmissionListen)+len(c.Activated[RoleSubmission]) > 0:
		c.Log.Warn("no-tls", "role", string(RoleSubmission),
			"advice", "set TLSCERT: without it passwords would go in the clear, so that nobody but this machine can log in")
	}
	return certs, nil
}

// offersTLS tells a connection that can begin TLS. A Unix socket has no use for it.
func (w *wire) offersTLS() bool {
	return w.srv.certs != nil && w.client.tls == nil && w.Conn.RemoteAddr().Network() != "unix"
}

// startTLS answers STARTTLS (RFC 3207). go-smtp sees none of it: TLS is put below it,
// and a new session begins that knows nothing of what was said in the clear (§4.2).
func startTLS(w *wire, _ *session, arg string) bool {
	switch {
	case w.client.tls != nil:
		w.say(503, "5.5.1", "TLS is there already")
		return true
	case !w.offersTLS():
		w.say(502, "5.5.1", "there is no TLS here")
		return true
	case arg != "":
		w.say(501, "5.5.4", "STARTTLS takes no parameter")
		return true
	case len(w.peek()) > 0:
		// What somebody on the way has put behind the command must never be taken for
		// what the client says in TLS (CVE-2011-0411). What he puts there after this look
		// is no handshake.
		w.srv.Log.Warn("tls-failed", "client", w.client.String(), "reason", "commands came behind STARTTLS, in the clear")
		w.say(501, "5.5.1", "nothing may follow STARTTLS before TLS")
		w.leave()
		return true
	}
	w.say(220, "2.0.0", "ready to start TLS")
	if err := w.flush(); err != nil {
		w.err = io.EOF
		return true
	}
	if err := w.secure(); err != nil {
		// There is no common language left to say it in.
		w.leave()
		return true
	}
	w.restart(true)
	return true
}

// secure does the server's part of a TLS handshake, and logs if it fails.
func (w *wire) secure() error {
	if !w.limit(w.srv.TLSTimeout) {
		return errStopping
	}
	c := tls.Server(w.Conn, w.srv.certs.config())
	if err := c.Handshake(); err != nil {
		w.srv.Log.Info("tls-failed", "client", w.client.String(), "reason", err)
		return err
	}
	state := c.ConnectionState()
	w.stream, w.client.tls = c, &state
	return nil
}
