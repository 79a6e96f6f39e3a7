package agent

import (
	"bytes"
	"errors"
	"slices"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// lock records the doubts and sets the locks, all or none.
func (d *Delivery) lock(doubts []workspec.Event) error {
	// Crash: the doubt is recorded before the lock that implies it is overwritten.
	if err := d.record(doubts); err != nil {
		return err
	}
	lock := workspec.TagBytes(d.Spec.Format, workspec.TagLocked)
	if d.Spec.Format&workspec.FormatPID != 0 {
		lock = workspec.LockBytes(d.agent.Owner.Number())
	}
	d.agent.noteLocks()
	d.tags.file, d.tags.format = d.file, d.Spec.Format
	findNeighbours(d.text, d.Recipients)
	for done := 0; done < len(d.Recipients); {
		n := neighbours(d.Recipients[done:])
		// Crash: this process's owner number is free again, so the locks have no
		// owner, whether all or only some of them were written.
		err := d.tags.write(lock, d.Recipients[done:done+n])
		done += n
		if err == nil {
			continue
		}
		for _, l := range d.Recipients[:done] {
			err = errors.Join(err, d.tags.set(l, workspec.TagToDo))
		}
		return err
	}
	return nil
}

// Adjacent recipients are locked, and marked, by one write(2): of 100,000
// for one host the last would else wait for half a second of system calls. It writes over
// their own lines alone, of which nothing but tags ever changes, and those only under the
// lock that we hold.
const (
	few      = 3        // fewer are marked each on its own
	together = 64 << 10 // bytes
)

// findNeighbours finds out which recipients directly follow the one before them.
func findNeighbours(text *workspec.Partial, list []*Recipient) {
	for i, r := range list {
		r.index = i
		if i > 0 {
			between := text.Slice(list[i-1].Offset, r.Offset)
			r.beside = between != nil && !bytes.Contains(between, []byte("\nr"))
		}
	}
}

// neighbours returns how many of the first recipients are adjacent, at least one.
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

// tags writes tags into a specification.
type tags struct {
	file   *postoffice.Spec
	format uint32
	last   []byte // the tag written last
	block  []byte // scratch
}

// write writes the tag of adjacent recipients.
func (w *tags) write(tag []byte, list []*Recipient) error {
	from := workspec.TagOffset(list[0].Offset)
	if len(list) == 1 {
		return w.file.SetTag(tag, from)
	}
	size := int(workspec.TagOffset(list[len(list)-1].Offset)-from) + len(tag)
	b := slices.Grow(w.block[:0], size)[:size]
	w.block = b
	if err := w.file.ReadAt(b, from); err != nil {
		return err
	}
	for _, r := range list {
		copy(b[workspec.TagOffset(r.Offset)-from:], tag)
	}
	return w.file.SetTag(b, from)
}

// setAll writes the tag of recipients in the order of the file, adjacent ones together. It
// calls failed for each that it could not write.
func (w *tags) setAll(t workspec.Tag, list []*Recipient, failed func(*Recipient, error)) {
	if len(list) == 0 {
		return
	}
	tag := w.bytes(t)
	for len(list) > 0 {
		n := neighbours(list)
		if err := w.write(tag, list[:n]); err != nil {
			for _, r := range list[:n] {
				failed(r, err)
			}
		}
		list = list[n:]
	}
}

// set writes one recipient's tag, which is not a lock.
func (w *tags) set(r *Recipient, t workspec.Tag) error {
	return w.file.SetTag(w.bytes(t), workspec.TagOffset(r.Offset))
}

func (w *tags) bytes(t workspec.Tag) []byte {
	if len(w.last) == 0 || w.last[0] != byte(t) {
		w.last = workspec.TagBytes(w.format, t)
	}
	return w.last
}
