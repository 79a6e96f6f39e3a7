package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// gone returns how long a file stays away.
func gone(d *dice) time.Duration { return d.between(time.Millisecond, 900*time.Millisecond) }

// away takes a message out of router/, claimed or not, and brings it back later under
// its number. Nothing comes of that: it is delivered once.
func (h *hand) away(ctx context.Context, d *dice) error {
	length := gone(d)
	f, err := h.pick(d, "router")
	if err != nil {
		return err
	}
	defer f.Close()
	aside := h.beside(f)
	if err := h.rename(h.path(f.name), aside); err != nil {
		return err
	}
	d.say("%v away for %v", f, length.Round(time.Millisecond))
	wait(ctx, length)
	return os.Rename(aside, h.path("router/"+strconv.FormatUint(f.ino, 10)))
}

// pairAway takes a message with its specification out of the queue, and brings both
// back later, the message first. It is delivered once.
func (h *hand) pairAway(ctx context.Context, d *dice) error {
	length := gone(d)
	f, err := h.pick(d, "queue")
	if err != nil {
		return err
	}
	defer f.Close()
	queue, spec := h.beside(f), h.beside(f)+".spec"
	if err := h.rename(h.path("transport/"+f.below()), spec); err != nil {
		return err
	}
	d.say("%v and its specification away for %v", f, length.Round(time.Millisecond))
	if err := h.rename(h.path(f.name), queue); err != nil {
		// Routed again for want of a specification, or done.
		h.mayRepeat(f)
		d.say("%v went on meanwhile", f)
		return os.Remove(spec)
	}
	wait(ctx, length)
	return errors.Join(os.Rename(queue, h.path(f.name)), os.Rename(spec, h.path("transport/"+f.below())))
}

// halfAway takes a message or its specification away alone, and brings it back later:
// the scheduler may have given it up by then, and it is routed again.
func (h *hand) halfAway(ctx context.Context, d *dice) error {
	length, dir := gone(d), []string{"queue", "transport"}[d.IntN(2)]
	f, err := h.pick(d, dir)
	if err != nil {
		return err
	}
	defer f.Close()
	aside := h.beside(f)
	h.mayRepeat(f)
	if err := h.rename(h.path(f.name), aside); err != nil {
		return err
	}
	h.mayPart(f)
	d.say("%v alone away for %v", f, length.Round(time.Millisecond))
	wait(ctx, length)
	return os.Rename(aside, h.path(f.name))
}

// deferred puts a message of router/ into deferred/, and has zmctl resubmit it. It is
// delivered once.
func (h *hand) deferred(ctx context.Context, d *dice) error {
	length := gone(d)
	f, err := h.pick(d, "router")
	if err != nil {
		return err
	}
	defer f.Close()
	name := strconv.FormatUint(f.ino, 10) + ".hand"
	if err := h.rename(h.path(f.name), h.path("deferred/"+name)); err != nil {
		return err
	}
	d.say("%v is deferred/%s for %v", f, name, length.Round(time.Millisecond))
	wait(ctx, length)
	out, code, err := h.zmctl("resubmit", name)
	if _, gone := os.Lstat(h.path("deferred/" + name)); errors.Is(gone, fs.ErrNotExist) {
		return err // a clerk has frozen or removed it
	}
	if err == nil && code > 0 {
		err = fmt.Errorf("zmctl resubmit %s: exit code %d: %s", name, code, out)
	}
	return err // code -1: it was killed with all others; drain does it again
}

// otherDirectory moves message and specification into a hash directory that is not
// their own, or to another depth, one after the other. It is delivered once.
func (h *hand) otherDirectory(_ context.Context, d *dice) error {
	to := []string{"", "A", "Q", "Z", "B/C", "Q/A"}[d.IntN(6)]
	first, second := "queue", "transport"
	if d.chance(50) {
		first, second = second, first
	}
	f, err := h.pick(d, "queue")
	if err != nil {
		return err
	}
	defer f.Close()
	target := filepath.Join(to, f.base())
	if target == f.below() {
		return errNothing
	}
	for _, dir := range []string{first, second} {
		if err := os.MkdirAll(h.path(filepath.Join(dir, to)), 0o755); err != nil {
			return err
		}
	}
	if err := h.rename(h.path(first+"/"+f.below()), h.path(first+"/"+target)); err != nil {
		return err
	}
	d.say("%v to %q, %s first", f, to, first)
	if err := h.rename(h.path(second+"/"+f.below()), h.path(second+"/"+target)); !errors.Is(err, errNothing) {
		return err
	}
	// It was moved to its half meanwhile, or the message has ended between the two: then
	// what was moved is routed again.
	h.mayRepeat(f)
	d.say("its other half has gone")
	return nil
}

// touch gives a file another time, and so a message another spool ID.
func (h *hand) touch(_ context.Context, d *dice) error {
	f, err := h.pick(d, "queue", "router", "transport")
	if err != nil {
		return err
	}
	defer f.Close()
	h.identify(f) // by its old ID too
	h.books.edit(f.seq, func(m *message) { m.touched = true })
	now := time.Now()
	if err := os.Chtimes("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), now, now); err != nil {
		return err
	}
	d.say("touched %v", f)
	h.identify(f)
	return nil
}

// remove takes a message away for good; or its specification, and it is routed again.
func (h *hand) remove(_ context.Context, d *dice) error {
	what := d.IntN(4)
	dir := []string{"router", "queue", "queue", "transport"}[what]
	f, err := h.pick(d, dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if dir == "transport" {
		h.mayRepeat(f)
	} else {
		h.identify(f)
		h.books.edit(f.seq, func(m *message) {
			if f.report {
				m.reports.removed = true
			} else {
				m.removed = true
			}
		})
	}
	err = os.Remove(h.path(f.name))
	if err == nil && dir == "queue" {
		h.mayPart(f)
	}
	if err == nil && what == 2 {
		// The specification too. An error means that the scheduler was faster.
		_ = os.Remove(h.path("transport/" + f.below()))
	}
	d.say("removed %v, with its specification %v: %v", f, what == 2, err)
	return nil
}

// copy makes a message of a message: it arrives once more.
func (h *hand) copy(_ context.Context, d *dice) error {
	number := uint64(1e11) + d.Uint64N(1e11)
	direct := d.chance(30)
	f, err := h.pick(d, "router", "queue")
	if err != nil {
		return err
	}
	defer f.Close()
	to := fmt.Sprintf("router/%d", number)
	if direct || f.part {
		// As cp does it: a router may meet a part of it, which it sets aside. Of one that
		// was rerouted some recipients have a copy.
		h.mayRepeat(f)
		d.say("cp %v %s", f, to)
		return h.place(f, to, f.size, to)
	}
	h.books.edit(f.seq, func(m *message) {
		if f.report {
			m.reports.copies++
		} else {
			m.copies++
		}
	})
	d.say("copied %v as %s", f, to)
	return h.place(f, fmt.Sprintf("router/copy.%d", number), f.size, to)
}

// part puts the first part of a message into router/: it must not be delivered.
func (h *hand) part(_ context.Context, d *dice) error {
	number, share := uint64(2e11)+d.Uint64N(1e11), d.Float64()
	f, err := h.pick(d, "router", "queue")
	if err != nil {
		return err
	}
	defer f.Close()
	size := int64(share * float64(f.size))
	to := fmt.Sprintf("router/%d", number)
	d.say("%d bytes of %v as %s", size, f, to)
	return h.place(f, fmt.Sprintf("router/part.%d", number), size, to)
}

// place writes the first bytes of a file and renames them. A file that was visible
// before it was whole, or never is, may stay in the postoffice.
func (h *hand) place(f *spoolFile, draft string, size int64, to string) error {
	file, err := os.OpenFile(h.path(draft), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if draft == to || size < f.size {
		if err := h.keep(file); err != nil {
			return err
		}
	} else {
		defer file.Close()
	}
	if _, err := copyPart(file, f, size); err != nil {
		return err
	}
	if draft == to {
		return nil
	}
	return os.Rename(h.path(draft), h.path(to))
}

// identify notes the spool ID that a message has now.
func (h *hand) identify(f *spoolFile) {
	if strings.HasPrefix(f.name, "transport/") {
		return
	}
	if info, err := f.Stat(); err == nil {
		h.books.named(spoolID(f.ino, info.ModTime()), f.seq, f.report)
	}
}
