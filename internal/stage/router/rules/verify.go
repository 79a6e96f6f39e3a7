package rules

import (
	"context"
	"errors"

	"zmailer/internal/mail/address"
)

// errEnough ends an expansion that has found somebody.
var errEnough = errors.New("somebody was found")

// Verify reports whether there is anybody behind a recipient: the first place where its
// mail would go, or a target of channel error if it would go nowhere. That a list or a
// user is there is enough: members, included files and users' own aliases are not read,
// so that it is quick, and the errors with them concerns their owners and not whoever
// writes to them. Its error is a *Trouble or a shortage of files or memory.
func (t *Tables) Verify(ctx context.Context, m address.Mailbox) (Target, error) {
	var good, bad Target
	// Its steps are not reported, and what is refused on the way is not logged: there was no
	// mail.
	x := expansion{lookups: lookups{ctx: ctx}, t: t, rcpt: m, brief: true, trace: func(Step) {}}
	x.give = func(to Target) error {
		if to.Channel != Error {
			good = to
			return errEnough
		}
		if bad.Channel == "" {
			bad = to
		}
		return nil
	}
	err := x.mailbox(m, false)
	switch {
	case errors.Is(err, errEnough):
		return good, nil
	case err != nil:
		return Target{}, err
	case x.given == 0:
		return Target{Channel: Bitbucket, Host: "-", User: m.String(), Privilege: Nobody}, nil
	}
	return bad, nil
}

// somebody replaces the members that Verify does not look for.
func (x *expansion) somebody(m address.Mailbox) error {
	return x.add(Bitbucket, "-", m.String(), Nobody)
}
