package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"zmailer/internal/mail/status"
)

// Deliverability is what is known of an address.
type Deliverability struct {
	State  AddressState
	Status status.Code // why not
	Text   string      // the same in words
}

// AddressState is whether there is anybody behind an address.
type AddressState uint8

const (
	Undecided     AddressState = iota // it is not known now
	Deliverable                       // mail for it would be taken
	Undeliverable                     // it would be refused
)

// DefaultAddressCode is the code of the reply about an address that is undeliverable
// (unverified_sender_reject_code), and of one about which nothing is known now.
const DefaultAddressCode = 450

// addressTest makes reject_unlisted_* and, with probe, reject_unverified_*. The null sender is not
// tested: the probes of other mail systems have it.
func addressTest(probe bool, class string) builder {
	b := builder{}
	if probe {
		b.options = []string{"reject_code", "defer_code", "tempfail_action"}
	}
	b.make = func(s *sources, _ string, o *ruleOptions) (*restriction, error) {
		if s.o.Address == nil {
			return nil, errors.New("the router has to be asked about addresses: not with RCPTCHECK=no in zmailer.conf")
		}
		rejectCode, deferCode := cmp.Or(o.rejectCode, DefaultAddressCode), cmp.Or(o.deferCode, DefaultAddressCode)
		return &restriction{once: true, check: func(ctx context.Context, f *Facts) (outcome, error) {
			m := f.From
			if class == "Recipient address" {
				m = f.To
			}
			if m.IsNull() {
				return outcome{}, nil
			}
			d, err := s.o.Address(ctx, f, m, probe)
			if err != nil || d.State == Deliverable {
				return outcome{}, err
			}
			object, code, trouble := fmt.Sprintf("<%s>: %s rejected: ", m, class), rejectCode, d.State == Undecided
			if !probe {
				return reply(Reject, 550, unlisted(d.Status, class), "%s%s", object, d.Text), nil
			}
			if trouble {
				code = deferCode
			}
			st := detail(uint16(code/100), 1, 1)
			if class == "Sender address" {
				st.Detail = 7
			}
			if code >= 500 {
				return reply(Reject, code, st, "%sundeliverable address: %s", object, d.Text), nil
			}
			out := reply(Defer, code, st, "%sunverified address: %s", object, d.Text)
			out.ifPermit, out.trouble = o.tempfail != "defer", trouble
			return out, nil
		}}, nil
	}
	return b
}

// unlisted returns the enhanced code about an address that our tables do not have: "unknown
// mailbox" is about recipients alone.
func unlisted(st status.Code, class string) status.Code {
	if class == "Sender address" && st == status.BadMailbox {
		st.Detail = 0
	}
	return st
}
