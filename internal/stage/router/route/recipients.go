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
	// of the list they are members of, or that of forwarded mail (see forwardedFrom); "": the
	// message's.
	owner string
	verp  bool // the sender of each names it
	// variant of the message, a place in message.variants.
	variant int
}

// addFunc is called with a place where a message is to go. The recipient is valid during the
// call; after an error there is no other one.
type addFunc func(group, *workspec.Recipient) error

// resolve finds the recipients of a message and where they go, and gives each place
// once, in the order of expansion. It writes nothing. Its error is a *rules.Trouble, or
// the addFunc's; what was given before does not count then.
func (w *worker) resolve(msg *message, give addFunc) error {
	w.seen.reset()
	once := func(g group, r *workspec.Recipient) error {
		w.en.c.Service.Alive() // a list of very many members takes its time
		if w.seen.again(msg.variants.place(g.variant), r) {
			return nil
		}
		return give(g, r)
	}
	tables := w.en.rules.Tables()
	ahead := newAhead(msg, tables)
	for i := range msg.to {
		ahead.from(i)
		if msg.next != nil {
			msg.next(&msg.to[i])
		}
		if err := w.one(msg, &msg.to[i], tables, once); err != nil {
			return err
		}
	}
	return w.archive(msg, msg.policy.copies, 0, tables, once)
}

// one resolves one recipient of the envelope.
func (w *worker) one(msg *message, to *envelope.Recipient, tables *rules.Tables, give addFunc) error {
	m, err := address.Parse(to.Address)
	a := newExpansion(msg, to, m, give)
	a.w, a.msg = w, msg
	switch {
	case err != nil:
		err = a.take(rules.Target{Channel: rules.Error, Host: rules.ErrBadAddress, User: human.Mask(to.Address[:min(len(to.Address), maxAddress)]), Privilege: rules.Nobody})
	case msg.expiredText != "":
		err = a.take(rules.Target{Channel: rules.Error, Host: rules.ErrorHost("5.4.7", msg.expiredText), User: m.String(), Privilege: rules.Nobody})
	case msg.header.received > maxReceived:
		err = a.take(rules.Target{Channel: rules.Error, Host: rules.ErrLoop, User: m.String(), Privilege: rules.Nobody})
	default:
		return w.place(msg, to, m, tables, a)
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
