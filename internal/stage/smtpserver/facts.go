package smtpserver

import (
	"crypto/tls"
	"log/slog"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/logging"
	"zmailer/internal/stage/smtpserver/session"
)

// clientAttrs appends what is known about a client and its connection, for the log: for
// people who ask where a message came from, and how.
func clientAttrs(list []slog.Attr, c *session.Client) []slog.Attr {
	list = append(list, slog.String("client", c.String()))
	if c.Name != "" {
		list = append(list, slog.String("client-name", session.SafeName(c.Name)))
	}
	if c.Helo != "" {
		list = append(list, slog.String("helo", session.SafeName(c.Helo)))
	}
	if c.User != "" {
		list = append(list, slog.String("user", session.OneLine(c.User)))
	}
	return tlsAttrs(list, c.TLS)
}

// forwardedAttrs appends where the client has a message from.
func forwardedAttrs(list []slog.Attr, f *session.Forwarded) []slog.Attr {
	list = append(list, slog.String("orig-client", f.String()))
	for _, a := range [...]slog.Attr{
		slog.String("orig-client-name", f.Name), slog.String("orig-helo", f.Helo), slog.String("orig-protocol", f.Protocol), slog.String("orig-id", f.Ident),
	} {
		if a.Value.String() != "" {
			list = append(list, a)
		}
	}
	return list
}

// tlsAttrs appends what protects a connection. verified reports whether the other side has
// shown a certificate of a known authority.
func tlsAttrs(list []slog.Attr, state *tls.ConnectionState) []slog.Attr {
	if state == nil {
		return list
	}
	return append(list, slog.String("tls", tlsVersion(state.Version)), slog.String("cipher", tls.CipherSuiteName(state.CipherSuite)),
		slog.Bool("verified", len(state.VerifiedChains) > 0))
}

// tlsVersion returns a version as other mail systems write it.
func tlsVersion(v uint16) string {
	switch v {
	case tls.VersionTLS13:
		return "TLSv1.3"
	case tls.VersionTLS12:
		return "TLSv1.2"
	case tls.VersionTLS11:
		return "TLSv1.1"
	case tls.VersionTLS10:
		return "TLSv1"
	}
	return tls.VersionName(v)
}

// Stages of a session at which the log reports a refusal, in its key stage.
const (
	stageConnect = "connect"
	stageAuth    = "auth"
	stageMail    = "mail"
	stageRcpt    = "rcpt"
	stageData    = "data"
)

// logRefused writes the line of a sender, a recipient or a message that was refused.
func (t *transaction) logRefused(stage, from, rcpt string, r *session.Reply, by string) {
	list := make([]slog.Attr, 0, 16)
	list = append(list, slog.String("from", from))
	if rcpt != "" {
		list = append(list, slog.String("rcpt", rcpt))
	}
	list = clientAttrs(list, t.client)
	list = append(list, slog.String("stage", stage), slog.Int("code", r.Code), slog.String("status", r.Status.String()), slog.String("reply", r.AllText()))
	if by != "" {
		list = append(list, slog.String("by", by))
	}
	t.Log.LogAttrs(t.ctx, slog.LevelInfo, "refused", t.joined(list)...)
}

// shownRecipients returns the recipients of a message that is refused, for the log: the first ones, with
// commas between them.
func (t *transaction) shownRecipients() string {
	const most = 10
	var list []string
	for _, r := range t.envelope.Recipients[:min(len(t.envelope.Recipients), most)] {
		list = append(list, r.Address)
	}
	return strings.Join(list, ",")
}

// logAccepted writes the line of a message that is stored.
func (t *transaction) logAccepted(a postoffice.Accepted) {
	if !t.Log.Enabled(t.ctx, slog.LevelInfo) {
		return
	}
	var room [16]slog.Attr
	list := append(room[:0], slog.String("id", a.ID.String()), slog.String("from", t.envelope.From),
		slog.Int64("size", a.Size), slog.Int("rcpts", t.count()))
	list = t.joined(append(clientAttrs(list, t.client), slog.String("protocol", t.envelope.With)))
	if t.forwarded != nil {
		list = forwardedAttrs(list, t.forwarded)
	}
	logging.LogAttrs(t.Log, slog.LevelInfo, "accepted", list...)
}
