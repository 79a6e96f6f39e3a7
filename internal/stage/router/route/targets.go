package route

import (
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// expansion is a recipient of the envelope while its targets are given: what its sender
// wants to hear of it (RFC 3461) is divided among them.
type expansion struct {
	rcpt       address.Mailbox
	dsn        string // the todsn line
	rest       string // the same without SUCCESS
	success    bool   // it had that
	ret, envid string
	keep       bool // the null sender stays, also for a list
	give       addFunc
	variant    int // of the message that its targets get

	w      *worker
	msg    *message
	name   string // of rcpt in Delivered-To; "": not asked for yet
	looped bool   // its mail was forwarded before, and has come back

	held    *rules.Target // the first target, until it is known whether it is the only one
	targets int           // given, or held
	members int           // of them, those of a list with an owner
	via     []string      // of the first
}

func newExpansion(msg *message, to *envelope.Recipient, m address.Mailbox, give addFunc) *expansion {
	a := &expansion{rcpt: m, dsn: to.DSN, give: give, envid: msg.head.EnvID, keep: msg.sender.IsNull()}
	if !m.IsNull() {
		a.rest, a.success = withoutSuccess(to.DSN)
	}
	if ret := strings.ToUpper(msg.head.NotaryRet); ret == "FULL" || ret == "HDRS" {
		a.ret = ret
	}
	return a
}

func (a *expansion) take(t rules.Target) error {
	if a.w != nil && a.forwards(&t) {
		if a.name == "" {
			a.name = a.w.deliveredName(a.rcpt)
			a.looped = a.msg.header.came(a.name)
		}
		if a.looped {
			via := t.Via
			t = loopOf(a.name, a.rcpt)
			t.Via = via
		}
	}
	if a.targets++; a.targets == 1 {
		a.via = t.Via
	}
	// RFC 5321 §4.5.5: a message without a sender gets none; no report is made about a report.
	member := t.Owner != "" && !a.keep
	if member {
		a.members++
	}
	if a.success && a.targets == 1 && !member {
		a.held = &t
		return nil
	}
	if err := a.release(a.rest); err != nil {
		return err
	}
	if member {
		return a.member(&t)
	}
	dsn := a.dsn
	if a.success {
		dsn = a.rest
	}
	return a.plain(&t, dsn)
}

// release gives the target that was held back.
func (a *expansion) release(dsn string) error {
	t := a.held
	if t == nil {
		return nil
	}
	a.held = nil
	return a.plain(t, dsn)
}

// end is called behind the last target.
func (a *expansion) end() error {
	if a.held != nil {
		return a.release(a.dsn)
	}
	if !a.success || a.targets < 2 && a.members == 0 {
		return nil
	}
	// RFC 3461 §5.2.7: where one recipient becomes several, the sender who wants to hear
	// of success hears that, once, and not of each; a list that has it has it delivered.
	t := rules.Target{Channel: rules.Bitbucket, Host: hostExpanded, User: a.rcpt.String(), Privilege: rules.Nobody, Via: a.via}
	if a.members == a.targets {
		t.Host = hostList
	}
	return a.plain(&t, a.dsn)
}

// plain gives a target whose reports the message's sender gets.
func (a *expansion) plain(t *rules.Target, dsn string) error {
	g := group{variant: a.variant}
	if a.name != "" && a.forwards(t) {
		g.variant = a.msg.forwarded(g.variant, a.name)
		var err error
		if g.owner, err = a.w.forwardedFrom(a.msg); err != nil {
			return err
		}
	}
	return a.give(g, &workspec.Recipient{
		Channel: t.Channel, Host: t.Host, Address: t.User, Privilege: privilegeText(t.Privilege),
		Notary: notary(dsn, t, a.rcpt), Ret: a.ret, EnvID: a.envid,
	})
}

// member gives a target that is a list's member. What the author asked for ends at the
// list: the message goes on as the owner's own (RFC 3461 §5.2.7.1). That it must not
// travel in the clear is no wish to hear anything, and holds for all of its way (RFC
// 8689 §6); reports of it have its header alone (§5).
func (a *expansion) member(t *rules.Target) error {
	var ret string
	require := requireTLS(a.dsn)
	if require != "" {
		ret = "HDRS"
	}
	return a.give(group{owner: t.Owner, verp: t.VERP, variant: a.variant}, &workspec.Recipient{
		Channel: t.Channel, Host: t.Host, Address: t.User, Privilege: privilegeText(t.Privilege),
		Notary: require, Ret: ret,
	})
}

// requireTLS returns the word of a todsn line that asks for RFC 8689, "" without.
func requireTLS(dsn string) string {
	for _, word := range strings.Fields(dsn) {
		if strings.EqualFold(word, "REQUIRETLS=YES") {
			return word
		}
	}
	return ""
}

// Hosts, on channel bitbucket, of a recipient that is there to be reported only: the
// scheduler reports it as expanded or as delivered (RFC 3464 §2.3.3).
const (
	hostExpanded = "expanded" // it became several
	hostList     = "list"     // a list has it
)

// withoutSuccess takes SUCCESS out of the NOTIFY of a todsn line, and reports whether it
// was there. NEVER stays where nothing else was wanted.
func withoutSuccess(dsn string) (rest string, asked bool) {
	if !strings.Contains(strings.ToUpper(dsn), "SUCCESS") {
		return dsn, false
	}
	fields := strings.Fields(dsn)
	for i, f := range fields {
		key, value, ok := strings.Cut(f, "=")
		if !ok || !strings.EqualFold(key, "NOTIFY") {
			continue
		}
		words := strings.Split(value, ",")
		kept := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.EqualFold(w, "SUCCESS") })
		asked = asked || len(kept) < len(words)
		if len(kept) == 0 {
			kept = []string{"NEVER"}
		}
		fields[i] = key + "=" + strings.Join(kept, ",")
	}
	return strings.Join(fields, " "), asked
}

// notary returns a target's N line. Where an alias was expanded and the sender gave no
// ORCPT, the address that the sender wrote is recorded, so that a report names what
// the sender knows (RFC 3461 §5.2.1).
//
// Beside a sender's ORCPT it goes into INRCPT, as ZMailer has it: for the log alone.
func notary(dsn string, t *rules.Target, m address.Mailbox) string {
	if len(t.Via) == 0 || m.Domain == "" {
		return dsn
	}
	switch upper := strings.ToUpper(dsn); {
	case strings.Contains(upper, "INRCPT="):
		return dsn
	case strings.Contains(upper, "ORCPT="):
		return dsn + " INRCPT=rfc822;" + address.EncodeXText(m.String())
	}
	orcpt := "ORCPT=rfc822;" + address.EncodeXText(m.String())
	if !m.IsASCII() {
		orcpt = "ORCPT=utf-8;" + unitext(m.String())
	}
	if dsn == "" {
		return orcpt
	}
	return dsn + " " + orcpt
}

// unitext returns an address as ORCPT of type utf-8 has it: \x{HEX} for what would end it or
// mean something else (RFC 6533 §3 utf-8-addr-unitext).
func unitext(addr string) string {
	var b strings.Builder
	for _, r := range addr {
		if r <= ' ' || r == 0x7f || r == '+' || r == '=' || r == '\\' {
			fmt.Fprintf(&b, `\x{%X}`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
