package router

import (
	"strings"

	"zmailer/internal/address"
	"zmailer/internal/router/rules"
)

// judge decides what of the envelope is believed. The file's owner is who submitted
// the message: the kernel saw to that. A trusted owner's privileged lines hold; of
// any other's only a from line that names the owner (formats.md "Message file").
func (r *Router) judge(l *letter) error {
	e := &l.head.Envelope
	l.trusted = r.trusts(l.claim.Info.UID)
	l.external = l.trusted && e.External
	l.report = l.trusted && (e.ErrorMsg || e.HasFrom && e.From == "")
	if l.trusted && e.HasFrom {
		m, err := address.Parse(e.From)
		if err == nil && !m.IsNull() && m.Domain == "" {
			m.Domain = r.c.Hostname
		}
		l.sender = m
		return err
	}
	login, err := r.logins.of(l.claim.Info.UID)
	if err != nil {
		return &rules.Trouble{Why: "users", Err: err}
	}
	l.sender = address.Mailbox{Local: login, Domain: r.c.Hostname}
	if !e.HasFrom {
		return nil
	}
	m, err := address.Parse(e.From)
	if err != nil {
		return err
	}
	ours := false
	if strings.EqualFold(m.Local, login) {
		if ours, err = r.rules.Tables().IsLocal(l.context(), m); err != nil {
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
	r.c.Log.Warn("sender-replaced", "id", l.id, "uid", l.claim.Info.UID, "claimed", l.claimed, "from", l.sender.String())
	return nil
}
