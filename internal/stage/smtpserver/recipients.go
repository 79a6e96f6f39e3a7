package smtpserver

import (
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/session"
)

const (
	// maxKept is how many recipients a transaction keeps in memory before it begins the
	// message file with them. Filters may change the list, so that it stays while one does.
	maxKept = 100
	// recipientCost is what a recipient takes in memory beside its text. Bytes.
	recipientCost = 64
)

// recipients are those of a transaction that are written to the message file as they come,
// and what all of them take in memory.
type recipients struct {
	draft   *postoffice.Draft // nil: not begun, or the content follows
	written int               // recipients in it
	failed  error             // it could not be written: nothing more is accepted
	listed  int64             // bytes that envelope.Recipients take of server.memory
	pending int64             // bytes that the recipients take whose rules wait for the content
}

// count returns how many recipients the message has.
func (t *transaction) count() int { return t.written + len(t.envelope.Recipients) }

// add adds a recipient. pending: the policy keeps it, too. The first one finds memory
// always, so that mail to one recipient goes on.
func (t *transaction) add(to envelope.Recipient, pending, reserved bool) *session.Reply {
	if t.failed != nil {
		return t.refusal(t.failed)
	}
	e := t.envelope
	listed, waiting := recipientCost+int64(len(to.Address)+len(to.DSN)), int64(0)
	if pending {
		waiting = recipientCost + int64(len(to.Address))
	}
	mayWrite := len(e.Recipients) > 0 && !t.filters.Wanted()
	if mayWrite && len(e.Recipients) >= maxKept {
		if r := t.writeRecipients(); r != nil {
			return r
		}
		mayWrite = false
	}
	ok := t.memory.take(listed+waiting, reserved)
	if !ok && mayWrite {
		if r := t.writeRecipients(); r != nil {
			return r
		}
		ok = t.memory.take(listed+waiting, reserved)
	}
	if !ok {
		if len(e.Recipients) > 0 || pending && t.written > 0 {
			t.memory.refused(t.client.String())
			return session.NewReply(452, "4.3.1", "Insufficient system memory")
		}
		t.memory.used.Add(listed + waiting)
	}
	t.listed += listed
	t.pending += waiting
	e.Recipients = append(e.Recipients, to)
	return nil
}

// writeRecipients moves the recipients from memory to the message file, which it begins if
// there is none. The file is a draft as any other: it is removed when the transaction ends
// without a message.
// Crash: a file without execute bit in public/, swept away when it is old.
func (t *transaction) writeRecipients() *session.Reply {
	if r := t.checkSpace(0); r != nil {
		return r
	}
	buf := envelopeBuffers.Get().(*[]byte)
	defer envelopeBuffers.Put(buf)
	if err := t.writeOut(buf); err != nil {
		t.failed = err
		t.abandon()
		return t.refusal(err)
	}
	e := t.envelope
	t.written += len(e.Recipients)
	clear(e.Recipients)
	e.Recipients = e.Recipients[:0]
	t.memory.give(t.listed)
	t.listed = 0
	return nil
}

func (t *transaction) writeOut(buf *[]byte) (err error) {
	lines := (*buf)[:0]
	if t.draft != nil {
		lines, err = envelope.AppendRecipients(lines, t.envelope.Recipients)
	} else if lines, err = envelope.AppendOpen(lines, t.envelope); err == nil {
		t.draft, err = t.openDraft()
	}
	if err != nil {
		return err
	}
	*buf = lines
	// The space was measured before, and is before the next ones.
	_ = t.wrote(len(lines))
	return t.draft.WriteOut(lines)
}

// endEnvelope writes what is missing of a draft's envelope.
func (t *transaction) endEnvelope(draft *postoffice.Draft, buf *[]byte) error {
	lines, err := envelope.AppendRecipients((*buf)[:0], t.envelope.Recipients)
	if err != nil {
		return err
	}
	if t.written > 0 && t.envelope.Filter != "" {
		// The draft was begun before all rules were asked.
		lines = append(append(append(lines, "filter "...), t.envelope.Filter...), '\n')
	}
	*buf = append(lines, envelope.End...)
	_, err = draft.Write(*buf)
	return err
}

// abandon removes the draft, if one was begun.
func (t *transaction) abandon() {
	if t.draft != nil {
		t.abort(t.draft)
		t.draft = nil
	}
}

// endRecipients forgets the recipients of a transaction.
func (t *transaction) endRecipients() {
	t.abandon()
	if n := t.listed + t.pending; n > 0 {
		t.memory.give(n)
	}
	t.recipients = recipients{}
}
