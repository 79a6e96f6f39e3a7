package smtpserver

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/machine"
	"zmailer/internal/stage/smtpserver/content"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
)

// handler decides about the commands of one client. It implements session.Handler.
type handler struct {
	*server
	client session.Client // User is set by AUTH, too
	login  login
	tx     transaction
	score  *access.Score // of the client in DNS lists; nil: none is asked
}

func (s *server) newHandler(c session.Client, p session.Peer) session.Handler {
	h := &handler{server: s, client: c, score: s.rules.Score(c)}
	h.login = login{server: s, client: &h.client}
	// Field by field: a whole transaction would be made on the stack first, which would then
	// be twice as large for the rest of an idle connection's life.
	h.tx.server, h.tx.client, h.tx.conn = s, &h.client, p
	if c.Role == session.RoleReinject {
		h.tx.filters = content.NoFilters() // its mail has passed them
	} else {
		h.tx.filters = s.filters.Session(s.ctx)
	}
	return h
}

// Hello implements session.Handler.
func (h *handler) Hello(name string) { h.client.Helo = name }

// Extensions implements session.Handler.
func (h *handler) Extensions(list []string) []string {
	if most := h.maxRecipients(); most > 0 {
		list = append(list, "LIMITS RCPTMAX="+strconv.Itoa(most)) // RFC 9422
	}
	if h.client.Role != session.RoleLMTP {
		if f := h.rules.Facts(h.client, address.Mailbox{}); h.rules.OffersETRN(h.ctx, &f) {
			list = append(list, "ETRN")
		}
	}
	if mechanisms := h.login.mechanisms(); len(mechanisms) > 0 {
		list = append(list, "AUTH "+strings.Join(mechanisms, " "))
	}
	return list
}

// Mail implements session.Handler.
func (h *handler) Mail(m *session.Mail) *session.Reply {
	if r := h.checkMail(m); r != nil {
		return r
	}
	f := h.rules.Facts(h.client, m.From)
	f.Peer, f.Protocol, f.Score = &h.client, m.Protocol, h.score
	v := h.rules.CheckSender(h.ctx, &f, h.client)
	if v.Action == access.None {
		v = h.tx.filters.Mail(h.client, m.From, m.Params)
	}
	h.tx.policy = h.rules.Begin(f, &h.client)
	if v.Action != access.None {
		return h.refuse(v, address.Mailbox{})
	}
	h.tx.envelope = &envelope.Envelope{
		External:  true,
		Filtered:  h.client.Role == session.RoleReinject,
		Submitted: h.submitter(),
		RcvdFrom:  receivedFrom(h.client.Helo, h.client.Name, h.client.Addr),
		BodyType:  m.Body,
		With:      protocolName(m, &h.client),
		From:      m.From.String(),
		HasFrom:   true,
		EnvID:     m.EnvID,
		NotaryRet: m.Ret,
	}
	if h.tx.forwarded = m.Forwarded; m.Forwarded != nil {
		h.tx.envelope.Forwarded = receivedFrom(m.Forwarded.Helo, m.Forwarded.Name, m.Forwarded.Addr)
	}
	h.tx.requireTLS, h.tx.lineSize = m.RequireTLS, 0
	if m.RequireTLS && m.Ret == "" {
		h.tx.envelope.NotaryRet = "HDRS" // RFC 8689 section 5: a report may go without TLS
	}
	h.beginRules()
	return nil
}

// submitter returns the user of a message for its envelope: the router adds what a submission
// server has to (RFC 6409 section 8). "": it is another host's mail.
func (h *handler) submitter() string {
	switch {
	case h.client.User != "":
		return address.EncodeXText(h.client.User)
	case h.client.Addr.IsValid() && session.Contains(h.Clients.HeaderNets, h.client.Addr.Addr()):
		return "-"
	}
	return ""
}

// requireTLS is the word of a recipient's todsn line that asks for RFC 8689 on the way
// to the recipient. It travels with NOTIFY and ORCPT.
const requireTLS = "REQUIRETLS=YES"

// recipientDSN returns what each recipient's todsn line has beside its own parameters.
func (t *transaction) recipientDSN() string {
	if t.requireTLS {
		return requireTLS
	}
	return ""
}

// Data implements session.Handler.
func (h *handler) Data() *session.Reply {
	v := h.tx.policy.Data(h.ctx)
	if v.Action != access.Reject && v.Action != access.Defer {
		v = h.tx.filters.Data()
	}
	if v.Action != access.None {
		return h.refuse(v, address.Mailbox{})
	}
	return nil
}

// Unknown implements session.Handler.
func (h *handler) Unknown(line string) *session.Reply {
	if v := h.tx.filters.Unknown(h.client, session.OneLine(line)); v.Action != access.None {
		return h.refuse(v, address.Mailbox{})
	}
	return nil
}

// Rcpt implements session.Handler.
func (h *handler) Rcpt(r *session.Rcpt) *session.Reply {
	if refused := h.checkRcpt(); refused != nil {
		return refused
	}
	if strings.EqualFold(r.To.Local, "postmaster") && r.To.Domain != "" && h.isOwnLiteral(r.To.Domain) {
		r.To.Domain = "" // RFC 5321 section 4.5.1
	}
	if v := h.early(); v.Action != access.None {
		return h.refuse(v, r.To)
	}
	d, v := h.tx.policy.Recipient(h.ctx, r.To)
	if v.Action != access.None {
		refused := h.refuse(v, r.To)
		h.tx.filters.Refused(r.To, r.Params, refused.Status, refused.Text)
		return refused
	}
	if v = h.tx.filters.Rcpt(r.To, r.Params); v.Action != access.None {
		return h.refuse(v, r.To)
	}
	to := envelope.Recipient{Address: r.To.String(), DSN: r.DSN(h.tx.recipientDSN())}
	if r.To.Domain == "" {
		to.Address = strings.Clone(to.Address) // it is a part of the command line
	}
	// A router could not read a larger envelope.
	if h.tx.lineSize+to.Size() > envelope.MaxRecipients {
		return session.NewReply(452, "4.5.3", "Error: too many recipients")
	}
	if refused := h.tx.add(to, d.Pending != "", h.tx.reserved()); refused != nil {
		return refused
	}
	h.tx.policy.Take(d)
	h.tx.lineSize += to.Size()
	return nil
}

// Content implements session.Handler.
func (h *handler) Content(c *session.Content) *session.Reply {
	began := h.meters.now()
	r, a, err := h.receive(c)
	h.meters.message(&h.tx, began, r, err)
	if err == nil {
		if r := h.withheld(a); r != nil {
			return r
		}
		return &session.Reply{Code: 250, Status: status.OK, Text: "Ok: queued as " + a.ID.String()}
	}
	return r
}

// receive stores a message, or makes the reply that refuses it.
func (h *handler) receive(c *session.Content) (*session.Reply, postoffice.Accepted, error) {
	c.RefuseBareLF = h.refusesBareLF()
	a, err := h.tx.store(c)
	if err == nil || errors.Is(err, session.ErrLost) || errors.Is(err, session.ErrAbandoned) {
		return nil, a, err
	}
	return h.tx.refusal(err), a, err
}

// Reset implements session.Handler.
func (h *handler) Reset() {
	h.tx.reset()
}

// Close implements session.Handler.
func (h *handler) Close() {
	h.tx.endRecipients()
	h.tx.removed()
	h.tx.filters.Close()
	machine.Worked()
}

// refuse logs a refusal of a recipient, or of the sender where to is null, and makes its
// reply.
func (h *handler) refuse(v access.Verdict, to address.Mailbox) *session.Reply {
	r := reply(v)
	stage := stageRcpt
	switch {
	case !to.IsNull():
	case h.tx.envelope == nil:
		stage = stageMail
	default:
		stage = stageData
	}
	h.tx.logRefused(stage, h.tx.policy.From.String(), to.String(), r, v.By)
	return r
}

// reply returns the reply of a Reject or a Defer.
func reply(v access.Verdict) *session.Reply {
	code, st, text := v.Reply()
	return &session.Reply{Code: code, Status: st, Text: text, More: v.More, Last: code == 521} // RFC 7504 section 3
}

// isOwnLiteral reports whether a domain is the address that the client has connected to.
func (h *handler) isOwnLiteral(domain string) bool {
	local := h.client.Local.Addr().Unmap().WithZone("")
	return local.IsValid() && (domain == "["+local.String()+"]" || strings.EqualFold(domain, "[IPv6:"+local.String()+"]"))
}

// trusted reports whether the client may send to any domain, unless a rule forbids it.
func (h *handler) trusted() bool {
	return h.client.User != "" || h.rules.IsRelayNet(h.client.Addr.Addr())
}

// protocolName returns the protocol of a message as Received lines name it (RFC 3848, RFC
// 6531 section 4.3): UTF8, SMTP or LMTP, S in TLS, A from an authenticated user.
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

// receivedFrom returns a client for the Received line: the name in its greeting, then what is
// known.
func receivedFrom(helo, name string, addr netip.AddrPort) string {
	known := literal(addr)
	if name != "" {
		known = session.SafeName(name) + " " + known
	}
	return session.SafeName(helo) + " (" + known + ")"
}

// literal returns an address for the Received line: "[192.0.2.1]:25" or
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
