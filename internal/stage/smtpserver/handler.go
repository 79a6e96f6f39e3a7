package smtpserver

import (
	"net/netip"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/machine"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
)

// handler decides about the commands of one client. It implements session.Handler.
type handler struct {
	*server
	client       session.Client // User is set by AUTH, too
	authFailures int            // wrong passwords on this connection

	envelope   *envelope.Envelope // nil: no transaction is open
	lineSize   int                // bytes of the lines of its recipients
	requireTLS bool               // it has REQUIRETLS
	policy     policy.Transaction
	filters    content.Session
}

func (s *server) newHandler(c session.Client) session.Handler {
	return &handler{server: s, client: c, filters: s.filters.Session(s.ctx)}
}

// Hello implements session.Handler.
func (h *handler) Hello(name string) { h.client.Helo = name }

// Extensions implements session.Handler.
func (h *handler) Extensions() (list []string) {
	if most := h.maxRecipients(); most > 0 {
		list = append(list, "LIMITS RCPTMAX="+strconv.Itoa(most)) // RFC 9422
	}
	if h.client.Role != session.RoleLMTP {
		if f := h.rules.Facts(h.client, address.Mailbox{}); h.rules.OffersETRN(h.ctx, &f) {
			list = append(list, "ETRN")
		}
	}
	if mechanisms := h.mechanisms(); len(mechanisms) > 0 {
		list = append(list, "AUTH "+strings.Join(mechanisms, " "))
	}
	return list
}

// Mail implements session.Handler.
func (h *handler) Mail(m *session.Mail) *session.Reply {
	if r := h.checkMail(m.Size); r != nil {
		return r
	}
	f := h.rules.Facts(h.client, m.From)
	v := h.rules.CheckSender(h.ctx, &f, h.client)
	if v.Action == access.None {
		v = h.filters.Mail(h.client, m.From, m.Params)
	}
	h.policy = h.rules.Begin(f, h.client)
	if v.Action != access.None {
		return h.refuse(v, address.Mailbox{})
	}
	h.envelope = &envelope.Envelope{
		External:  true,
		RcvdFrom:  h.receivedFrom(),
		BodyType:  m.Body,
		With:      protocolName(m, &h.client),
		From:      m.From.String(),
		HasFrom:   true,
		EnvID:     m.EnvID,
		NotaryRet: m.Ret,
	}
	h.requireTLS, h.lineSize = m.RequireTLS, 0
	if m.RequireTLS && m.Ret == "" {
		h.envelope.NotaryRet = "HDRS" // RFC 8689 section 5: a report may go without TLS
	}
	return nil
}

// requireTLS is the word of a recipient's todsn line that asks for RFC 8689 on the way
// to the recipient. It travels with NOTIFY and ORCPT.
const requireTLS = "REQUIRETLS=YES"

// Rcpt implements session.Handler.
func (h *handler) Rcpt(r *session.Rcpt) *session.Reply {
	if refused := h.checkRcpt(); refused != nil {
		return refused
	}
	d, v := h.policy.Recipient(h.ctx, r.To)
	if v.Action == access.None {
		v = h.filters.Rcpt(r.To, r.Params)
	}
	if v.Action != access.None {
		return h.refuse(v, r.To)
	}
	var dsn []string
	if r.Notify != "" {
		dsn = append(dsn, "NOTIFY="+r.Notify)
	}
	if r.ORCPT != "" {
		dsn = append(dsn, "ORCPT="+r.ORCPT)
	}
	if h.requireTLS {
		dsn = append(dsn, requireTLS)
	}
	to := envelope.Recipient{Address: r.To.String(), DSN: strings.Join(dsn, " ")}
	// A router could not read a larger envelope.
	if h.lineSize+to.Size() > envelope.MaxRecipients {
		return session.NewReply(452, "4.5.3", "Error: too many recipients")
	}
	h.policy.Take(d)
	h.lineSize += to.Size()
	h.envelope.Recipients = append(h.envelope.Recipients, to)
	return nil
}

// Reset implements session.Handler.
func (h *handler) Reset() {
	h.envelope = nil
	h.policy = policy.Transaction{}
	h.filters.Reset()
}

// Close implements session.Handler.
func (h *handler) Close() {
	h.filters.Close()
	machine.Worked()
}

// refuse logs a refusal of a recipient, or of the sender where to is null, and makes its
// reply.
func (h *handler) refuse(v access.Verdict, to address.Mailbox) *session.Reply {
	r := reply(v)
	args := []any{"from", h.policy.From.String(), "rcpt", to.String(), "client", h.client.String(),
		"status", r.Status.String(), "reply", r.Text, "by", v.By}
	h.Log.Info("refused", args...)
	return r
}

// reply is the reply of a Reject or a Defer.
func reply(v access.Verdict) *session.Reply {
	code, st, text := v.Reply()
	return &session.Reply{Code: code, Status: st, Text: text}
}

// trusted reports whether the client may send to any domain, unless a rule forbids it.
func (h *handler) trusted() bool {
	return h.client.User != "" || h.rules.IsRelayNet(h.client.Addr.Addr())
}

// protocolName is the protocol of a message as Received lines name it (RFC 3848, RFC 6531
// section 4.3): UTF8, SMTP or LMTP, S in TLS, A from an authenticated user.
func protocolName(m *session.Mail, c *session.Client) string {
	word := m.Protocol
	if word == "SMTP" {
		return word // HELO: nothing else is registered
	}
	if m.UTF8 {
		word = "UTF8" + strings.TrimPrefix(word, "E")
	}
	if c.TLS != nil {
		word += "S"
	}
	if c.User != "" {
		word += "A"
	}
	return word
}

// receivedFrom is the client for the Received line: the name in its greeting, then what is
// known.
func (h *handler) receivedFrom() string {
	known := literal(h.client.Addr)
	if h.client.Name != "" {
		known = session.SafeName(h.client.Name) + " " + known
	}
	return session.SafeName(h.client.Helo) + " (" + known + ")"
}

// literal is an address for the Received line: "[192.0.2.1]:25" or
// "[IPv6:2001:db8::1]:25" (RFC 5321 section 4.1.3); "local" for a Unix socket, "unknown" for
// one that a proxy does not name.
func literal(a netip.AddrPort) string {
	switch {
	case !a.IsValid():
		return "local"
	case a.Addr().IsUnspecified():
		return "unknown"
	}
	addr := a.Addr().Unmap().WithZone("")
	text := "[" + addr.String() + "]"
	if addr.Is6() {
		text = "[IPv6:" + addr.String() + "]"
	}
	if a.Port() != 0 {
		text += ":" + strconv.Itoa(int(a.Port()))
	}
	return text
}
