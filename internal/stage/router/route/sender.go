package route

import (
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/stage/router/rules"
)

// checkSender decides what of the envelope is believed. The submitter is the owner of the
// file, which the kernel sees to. A trusted owner's privileged lines hold. Of
// any other's only the from line does, which says where reports go: any sender, or with
// OwnSenders one that names the owner (docs/envelope.md).
func (en *Engine) checkSender(msg *message) error {
	e := &msg.head.Envelope
	msg.trusted = en.trusts(msg.uid)
	named := e.HasFrom && (msg.trusted || !en.c.OwnSenders)
	msg.external = msg.trusted && e.External
	if msg.external {
		msg.user = e.Submitted
		if user, err := address.DecodeXText(e.Submitted); err == nil {
			msg.user = user
		}
	}
	msg.report = msg.trusted && e.ErrorMsg || named && e.From == ""
	if named {
		m, err := address.Parse(e.From)
		if err == nil && !m.IsNull() && m.Domain == "" {
			m.Domain = en.c.Hostname
		}
		msg.sender = m
		return err
	}
	login, err := en.logins.of(msg.uid)
	if err != nil {
		return &rules.Trouble{Why: "users", Err: err}
	}
	msg.sender = address.Mailbox{Local: login, Domain: en.c.Hostname}
	if !e.HasFrom {
		return nil
	}
	m, err := address.Parse(e.From)
	if err != nil {
		return err
	}
	ours := false
	if strings.EqualFold(m.Local, login) {
		if ours, err = en.rules.Tables().IsLocal(msg.context(), m); err != nil {
			return err
		}
	}
	if ours {
		if m.Domain != "" {
			msg.sender = m
		}
		return nil
	}
	msg.claimed = "<" + e.From + ">"
	en.c.Log.Warn("sender-replaced", "id", msg.id, "uid", msg.uid, "claimed", msg.claimed, "from", msg.sender.String())
	return nil
}
