package agent

import (
	"errors"

	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// follow marks results in the file that has the specification's name now, if an operator
// has edited a copy and put it in place of the one that we have marked them in (K10).
// Without this the message would be delivered again.
func (d *Delivery) follow() {
	replaced, err := d.file.Replaced()
	if err != nil || !replaced {
		return // moved: what we have open is the file
	}
	file, err := d.agent.PostOffice.Queue.Open(d.Job.Name)
	if err == nil {
		err = d.followTo(file)
		err = errors.Join(err, file.Close())
	}
	if err == nil {
		return
	}
	for _, r := range d.Recipients {
		// A delivery has happened; that the file does not show it is logged.
		if r.result.Outcome == status.Failed {
			d.fault(r, err)
			continue
		}
		d.logFault(r, err)
	}
}

// followTo marks the results in another file.
func (d *Delivery) followTo(file *postoffice.Spec) (err error) {
	if err := file.Lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Unlock()) }()
	raw, err := file.Read()
	if err != nil {
		return err
	}
	spec, err := workspec.Parse(raw)
	if err != nil {
		return err
	}
	var lines []byte
	type mark struct {
		tag workspec.Tag
		off int64
	}
	var marks []mark
	for _, r := range d.Recipients {
		group, there := find(spec, r, d.agent.Owner.Number())
		if there == nil {
			d.agent.log().Warn("replaced", "id", d.ID(), "name", d.Job.Name, "rcpt", r.Address, "result", r.result.Outcome,
				"reason", "the specification was replaced, and the recipient is not in it any more or is locked by another process")
			continue
		}
		switch r.result.Outcome {
		case status.Delivered:
			marks = append(marks, mark{workspec.TagOK, there.Offset})
			if !r.owesSuccess() {
				continue
			}
		case status.Failed:
			marks = append(marks, mark{workspec.TagFailed, there.Offset})
		default:
			marks = append(marks, mark{workspec.TagToDo, there.Offset})
			continue
		}
		line := d.agent.diagnostic(r)
		line.Recipient, line.HeaderOffset, line.NotaryOffset = there.Offset, group.HeaderOffset, there.NotaryOffset
		lines = workspec.AppendDiagnostic(lines, line)
	}
	if len(lines) > 0 {
		// Crash: as in markFailed, with recipients that have no lock maybe.
		if err := file.Append(lines); err != nil {
			return err
		}
	}
	if err := file.Sync(); err != nil {
		return err
	}
	for _, m := range marks {
		// Crash: those without their tag are delivered again, as after any kill here.
		if err := file.SetTag(workspec.TagBytes(spec.Format, m.tag), workspec.TagOffset(m.off)); err != nil {
			return err
		}
	}
	return nil
}

// find finds the recipient in another version of the file: open, or locked by us when the
// copy was made.
func find(spec *workspec.Spec, r *Recipient, owner int) (*workspec.Group, *workspec.Recipient) {
	for gi := range spec.Groups {
		g := &spec.Groups[gi]
		for ri := range g.Recipients {
			n := &g.Recipients[ri]
			open := n.Tag == workspec.TagToDo || n.Tag == workspec.TagLocked && (n.Owner == owner || n.Owner == 0)
			if open && n.Address == r.Address && n.Channel == r.Channel {
				return g, n
			}
		}
	}
	return nil, nil
}
