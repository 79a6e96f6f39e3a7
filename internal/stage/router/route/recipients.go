package route

import (
	"strconv"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// maxAddress bounds what is repeated of a recipient that is no address. Bytes.
const maxAddress = 300

// group is the recipients that share a sender and a header.
type group struct {
	// owner is the sender, and where reports of them go, instead of the message's: that
	// of the list they are members of; "": the message's.
	owner string
	verp  bool // the sender of each names it
	// variant of the message, a place in letter.variants.
	variant int
}

// giver is told of a place where a message is to go. The recipient is valid during the
// call; after an error there is no other one.
type giver func(group, *workspec.Recipient) error

// resolve finds the recipients of a message and where they go, and gives each place
// once, in the order of expansion. It writes nothing. Its error is a *rules.Trouble, or
// the giver's; what was given before does not count then.
func (w *worker) resolve(l *letter, give giver) error {
	w.seen.reset()
	once := func(g group, r *workspec.Recipient) error {
		w.en.c.Service.Alive() // a list of very many members takes its time
		if w.seen.again(l.placeVariant(g.variant), r) {
			return nil
		}
		return give(g, r)
	}
	tables := w.en.rules.Tables()
	ahead := newAhead(l, tables)
	for i := range l.to {
		ahead.from(i)
		if l.next != nil {
			l.next(&l.to[i])
		}
		if err := w.one(l, &l.to[i], tables, once); err != nil {
			return err
		}
	}
	return w.archive(l, l.policy.copies, 0, tables, once)
}

// one resolves one recipient of the envelope.
func (w *worker) one(l *letter, to *envelope.Recipient, tables *rules.Tables, give giver) error {
	m, err := address.Parse(to.Address)
	a := newAsked(l, to, m, give)
	a.w, a.l = w, l
	switch {
	case err != nil:
		err = a.take(rules.Target{Channel: rules.Error, Host: rules.ErrBadAddress, User: human.Mask(to.Address[:min(len(to.Address), maxAddress)]), Privilege: rules.Nobody})
	case l.givenUp != "":
		err = a.take(rules.Target{Channel: rules.Error, Host: rules.ErrorHost("5.4.7", l.givenUp), User: m.String(), Privilege: rules.Nobody})
	case l.header.received > maxReceived:
		err = a.take(rules.Target{Channel: rules.Error, Host: rules.ErrLoop, User: m.String(), Privilege: rules.Nobody})
	default:
		return w.place(l, to, m, tables, a)
	}
	if err != nil {
		return err
	}
	return a.end()
}

func privilegeText(uid uint32) string {
	if uid == rules.Nobody {
		return "65534"
	}
	return strconv.FormatUint(uint64(uid), 10)
}
