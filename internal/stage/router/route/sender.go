package route

import (
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/stage/router/rules"
)

// judge decides what of the envelope is believed. Who submitted the message was seen by
// the owner of a file, which the kernel sees to. A trusted owner's privileged lines hold. Of
// any other's only the from line does, which says where reports go: any sender, or with
// OwnSenders one that names the owner (docs/envelope.md).
func (en *Engine) judge(l *letter) error {
	e := &l.head.Envelope
	l.trusted = en.trusts(l.uid)
	named := e.HasFrom && (l.trusted || !en.c.OwnSenders)
	l.external = l.trusted && e.External
	l.report = l.trusted && e.ErrorMsg || named && e.From == ""
	if named {
		m, err := address.Parse(e.From)
		if err == nil && !m.IsNull() && m.Domain == "" {
			m.Domain = en.c.Hostname
		}
		l.sender = m
		return err
	}
	login, err := en.logins.of(l.uid)
	if err != nil {
		return &rules.Trouble{Why: "users", Err: err}
	}
	l.sender = address.Mailbox{Local: login, Domain: en.c.Hostname}
	if !e.HasFrom {
		return nil
	}
	m, err := address.Parse(e.From)
	if err != nil {
		return err
	}
	ours := false
	if strings.EqualFold(m.Local, login) {
		if ours, err = en.rules.Tables().IsLocal(l.context(), m); err != nil {
			return err
		}
	}
	if ours {
		if m.Domain != "" {
			l.sender = m
		}
		return nil
	}
	l.claimed = "<" + e.From + ">"
	en.c.Log.Warn("sender-replaced", "id", l.id, "uid", l.uid, "claimed", l.claimed, "from", l.sender.String())
	return nil
}
