package policy

import (
	"context"
	"errors"
	"fmt"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/stage/smtpserver/session"
)

// rcptFailed logs that the router cannot be asked now and returns the verdict meanwhile.
func (p *Policy) rcptFailed(err error) access.Verdict {
	does := "recipients are accepted unverified"
	if p.RcptCheck.Defer {
		does = "recipients are deferred"
	}
	p.rcptTrouble.Begin(p.Log, "rcpt-check-trouble", "reason", err, "advice", does)
	if !p.RcptCheck.Defer {
		return access.Verdict{}
	}
	return lookupTrouble("rcpt-check")
}

// verify asks the router whether the recipient in f exists; None: it does, or is not to be
// verified. Next hops are asked for the recipients of other hosts' mail alone: our own clients
// are not told to wait for them.
func (p *Policy) verify(ctx context.Context, f *access.Facts) access.Verdict {
	stranger := f.Role == string(session.RoleMX) && !f.Trusted
	if p.rcpts == nil || !p.RcptCheck.All && (!f.Local || p.RcptCheck.Untrusted && !stranger) {
		return access.Verdict{}
	}
	a, err := p.rcpts.Check(ctx, f.From, f.To)
	if err != nil {
		return p.rcptFailed(err)
	}
	p.rcptTrouble.End(p.Log, "rcpt-check-recovered")
	if a.Verify && p.prober != nil && (p.RcptCheck.All || stranger) {
		return p.ask(ctx, f, a.Next)
	}
	if a.Known {
		return access.Verdict{}
	}
	return access.Verdict{Action: access.Reject, Code: 550, Status: a.Code,
		Text: fmt.Sprintf("<%s>: Recipient address rejected: %s", f.To, a.Text), By: "rcpt-check"}
}

// ask has the next hop of a recipient decide. Trouble with it is temporary, whatever the client
// is told elsewhere: the next hop would refuse the mail, or not.
func (p *Policy) ask(ctx context.Context, f *access.Facts, next rcptcheck.NextHop) access.Verdict {
	found, err := p.prober.Verify(ctx, next)
	if err == nil && found.OK {
		return access.Verdict{}
	}
	if undecided := (*rcptcheck.UndecidedError)(nil); errors.As(err, &undecided) {
		return access.Verdict{Action: access.Defer, Code: 451, Status: undecided.Code,
			Text: fmt.Sprintf("<%s>: Recipient address rejected: unverified address: %s", f.To, undecided.Text), By: "address-verify"}
	}
	if err != nil {
		return lookupTrouble("address-verify")
	}
	return access.Verdict{Action: access.Reject, Code: 550, Status: refusalOf(found),
		Text: fmt.Sprintf("<%s>: Recipient address rejected: undeliverable address: %s", f.To, found.Text), By: "address-verify"}
}

// ownChannels are those on which mail stays here: what our tables know there exists.
var ownChannels = map[string]bool{"local": true, "file": true, "pipe": true, "bitbucket": true, "hold": true}

// deliverability finds out whether there is anybody behind an address, for the restrictions that
// want to know. Our tables decide about the domains of ours, and with probe the next hop about
// the others.
func (p *Policy) deliverability(ctx context.Context, f *access.Facts, m address.Mailbox, probe bool) (access.Deliverability, error) {
	local, err := p.IsLocal(ctx, m)
	if err != nil || !local && !probe {
		return access.Deliverability{State: access.Deliverable}, err
	}
	// The null sender asks, as for a report to the address.
	a, err := p.rcpts.Check(ctx, address.Mailbox{}, m)
	switch {
	case err != nil:
		return access.Deliverability{}, err
	case !a.Known:
		return access.Deliverability{State: access.Undeliverable, Status: a.Code, Text: a.Text}, nil
	case !probe || local && !a.Verify || a.Next.Channel == "" || ownChannels[a.Next.Channel]:
		return access.Deliverability{State: access.Deliverable}, nil
	case p.prober == nil:
		return access.Deliverability{Status: status.SystemTrouble, Text: "no next hop is asked"}, nil
	}
	next := a.Next
	next.Foreign = !local
	found, err := p.prober.Verify(ctx, next)
	if undecided := (*rcptcheck.UndecidedError)(nil); errors.As(err, &undecided) {
		return access.Deliverability{Status: undecided.Code, Text: undecided.Text}, nil
	}
	if err != nil || found.OK {
		return access.Deliverability{State: access.Deliverable}, err
	}
	return access.Deliverability{State: access.Undeliverable, Status: refusalOf(found), Text: found.Text}, nil
}

// refusalOf returns the enhanced code of a next hop's refusal.
func refusalOf(found rcptcheck.Finding) status.Code {
	if code, ok := status.Parse(found.Code); ok && code.Class == 5 {
		return code
	}
	return status.BadMailbox
}
