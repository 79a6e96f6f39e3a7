package agent

import (
	"bytes"
	"errors"

	"zmailer/internal/workspec"
)

// lock records the doubts and sets the locks, all or none.
func (d *Delivery) lock(doubts []workspec.Event) error {
	// Crash: the doubt is known before the lock that tells of it is overwritten.
	if err := d.record(doubts); err != nil {
		return err
	}
	lock := workspec.TagBytes(d.Spec.Format, workspec.TagLocked)
	if d.Spec.Format&workspec.FormatPID != 0 {
		lock = workspec.LockBytes(d.agent.Owner.Number())
	}
	d.agent.bear()
	for done := 0; done < len(d.Recipients); {
		n := d.neighbours(d.Recipients[done:])
		// Crash: this process's owner number is free again, so the locks are nobody's,
		// those of many that were written and those that were not.
		err := d.setTags(lock, d.Recipients[done:done+n])
		done += n
		if err == nil {
			continue
		}
		for _, l := range d.Recipients[:done] {
			err = errors.Join(err, d.unlock(l))
		}
		return err
	}
	return nil
}

// Of more recipients than few, those that stand side by side are locked by one write(2):
// of 100,000 for one host the last would else wait for half a second of system calls. It
// writes over their own lines alone, of which nothing but tags ever changes, and those
// only under the lock that we hold.
const (
	few      = 100
	together = 64 << 10 // bytes
)

// neighbours is how many of the first recipients stand side by side, one at least.
func (d *Delivery) neighbours(list []*Recipient) int {
	if len(d.Recipients) <= few {
		return 1
	}
	n := 1
	for ; n < len(list); n++ {
		last, next := list[n-1].Offset, list[n].Offset
		if next-list[0].Offset > together || bytes.Contains(d.raw[last:next], []byte("\nr")) {
			break
		}
	}
	return n
}

// setTags writes the tag of recipients that stand side by side.
func (d *Delivery) setTags(tag []byte, list []*Recipient) error {
	from := workspec.TagOffset(list[0].Offset)
	if len(list) == 1 {
		return d.file.SetTag(tag, from)
	}
	to := workspec.TagOffset(list[len(list)-1].Offset) + int64(len(tag))
	b := bytes.Clone(d.raw[from:to])
	for _, r := range list {
		copy(b[workspec.TagOffset(r.Offset)-from:], tag)
	}
	return d.file.SetTag(b, from)
}
