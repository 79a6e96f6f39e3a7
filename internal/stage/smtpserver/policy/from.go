package policy

import (
	"context"
	"fmt"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/smtpserver/policy/access"
	"zmailer/internal/stage/smtpserver/session"
)

// Values of HEADERFROM: what the From field of an authenticated user's message may be.
const (
	FromAny    = "any"
	FromDomain = "domain" // in the domain of the envelope sender
	FromSender = "sender" // the envelope sender
	FromLogin  = "login"  // an address that SENDERLOGIN allows the user
)

// ChecksFrom reports whether the From field is checked at all.
func (p *Policy) ChecksFrom() bool { return p.HeaderFrom != "" && p.HeaderFrom != FromAny }

// CheckFrom decides whether a user may send a message with these fields; None: it may. Each address
// in each From field counts. A message without one gets the envelope sender as its From.
func (p *Policy) CheckFrom(ctx context.Context, f *access.Facts, fields []envelope.Field, client session.Client) access.Verdict {
	for _, field := range fields {
		if !strings.EqualFold(field.Name, "From") {
			continue
		}
		list := address.ParseList(field.Value())
		for _, it := range list {
			ok := it.Err == nil && !it.Mailbox.IsNull()
			if ok {
				var err error
				if ok, err = p.mayWrite(ctx, f, it.Mailbox); err != nil {
					return p.lookupFailed(err, client)
				}
			}
			if !ok {
				return fromRefused(fmt.Sprintf("<%s>: From address rejected: not allowed for user %s", session.OneLine(it.Mailbox.String()), f.User))
			}
		}
		if len(list) == 0 {
			return fromRefused("From address rejected: the field names no address")
		}
	}
	return access.Verdict{}
}

func fromRefused(text string) access.Verdict {
	return access.Verdict{Action: access.Reject, Code: 550, Status: status.Code{Class: 5, Subject: 7, Detail: 1}, Text: text, By: "headerfrom"}
}

// mayWrite reports whether a user may write an address in From.
func (p *Policy) mayWrite(ctx context.Context, f *access.Facts, from address.Mailbox) (bool, error) {
	if p.HeaderFrom == FromLogin {
		return p.maySend(ctx, f.User, from)
	}
	if f.From.IsNull() {
		// Such as a receipt, which names its writer in From alone. Who may not choose the sender
		// does not choose this either by leaving the sender out.
		if len(p.senders) == 0 {
			return true, nil
		}
		return p.maySend(ctx, f.User, from)
	}
	if p.HeaderFrom == FromSender {
		return strings.EqualFold(from.Key(), f.From.Key()), nil
	}
	a, err := from.ASCIIDomain()
	b, berr := f.From.ASCIIDomain()
	return err == nil && berr == nil && a == b, nil
}
