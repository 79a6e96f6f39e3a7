package agent

import (
	"bytes"
	"errors"
	"slices"

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
	d.lineUp()
	for done := 0; done < len(d.Recipients); {
		n := neighbours(d.Recipients[done:])
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

// Recipients that stand side by side are locked, and marked, by one write(2): of 100,000
// for one host the last would else wait for half a second of system calls. It writes over
// their own lines alone, of which nothing but tags ever changes, and those only under the
// lock that we hold.
const (
	few      = 3        // fewer are marked each on its own
	together = 64 << 10 // bytes
)

// lineUp finds out which recipients stand right behind the one before them.
func (d *Delivery) lineUp() {
	for i, r := range d.Recipients {
		r.index = i
		if i > 0 {
			between := d.text.Slice(d.Recipients[i-1].Offset, r.Offset)
			r.beside = between != nil && !bytes.Contains(between, []byte("\nr"))
		}
	}
}

// neighbours is how many of the first recipients stand side by side, one at least.
func neighbours(list []*Recipient) int {
	n := 1
	for n < len(list) && list[n].beside && list[n].index == list[n-1].index+1 && list[n].Offset-list[0].Offset <= together {
		n++
	}
	if n < few {
		return 1
	}
	return n
}

// setTags writes the tag of recipients that stand side by side.
func (d *Delivery) setTags(tag []byte, list []*Recipient) error {
	from := workspec.TagOffset(list[0].Offset)
	if len(list) == 1 {
		return d.file.SetTag(tag, from)
	}
	size := int(workspec.TagOffset(list[len(list)-1].Offset)-from) + len(tag)
	b := slices.Grow(d.block[:0], size)[:size]
	d.block = b
	if err := d.file.ReadAt(b, from); err != nil {
		return err
	}
	for _, r := range list {
		copy(b[workspec.TagOffset(r.Offset)-from:], tag)
	}
	return d.file.SetTag(b, from)
}

// setAll writes the tag of recipients in the order of the file, those that stand side by
// side together, and tells what it could not write.
func (d *Delivery) setAll(t workspec.Tag, list []*Recipient, failed func(*Recipient, error)) {
	if len(list) == 0 {
		return
	}
	tag := d.tagBytes(t)
	for len(list) > 0 {
		n := neighbours(list)
		if err := d.setTags(tag, list[:n]); err != nil {
			for _, r := range list[:n] {
				failed(r, err)
			}
		}
		list = list[n:]
	}
}
