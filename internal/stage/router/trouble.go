package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// isStorage tells an error that the next message would meet too: the disk is full
// or broken, the process or the system is out of something.
func isStorage(err error) bool {
	for _, errno := range [...]unix.Errno{
		unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ESTALE,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// failed finds the way of a message that could not be routed.
func (r *Router) failed(l *letter, err error) error {
	if cause := context.Cause(l.context()); cause != nil {
		// Nothing has failed, and no router has ended: that counts as no try.
		r.c.Log.Info("given-back", "id", l.id, "name", l.claim.Name(), "reason", cause)
		return r.giveBack(l.claim, cause)
	}
	if f, ok := isFrozen(err); ok {
		return r.freeze(l, f.cause, f.reason)
	}
	if why, ok := putsOff(err); ok {
		return r.putOff(l, why, err)
	}
	return r.giveBack(l.claim, err)
}

// putsOff reports whether a message that an error keeps from being routed goes to
// deferred/, and the word for that.
func putsOff(err error) (why string, ok bool) {
	if t, ok := rules.IsTrouble(err); ok {
		return t.Why, true
	}
	// Our own rules gave something that cannot be written: it would be so again, until
	// somebody has changed them.
	return "specification", errors.Is(err, workspec.ErrValue)
}

// putOff defers a message until it is resubmitted (M10). why is a word for its name;
// the whole cause stands in the log and beside the message.
func (r *Router) putOff(l *letter, why string, cause error) error {
	r.explain(postoffice.Deferred, l.claim.ID, postoffice.WasDeferred, why+": "+cause.Error())
	if err := l.claim.Defer(why); err != nil {
		return r.giveBack(l.claim, errors.Join(cause, err))
	}
	r.meters.messages.With(resultDeferred).Add(1)
	args := []any{"id", l.id, "name", fmt.Sprintf("%s/%d.%s", postoffice.Deferred, l.claim.ID.Ino, why), "reason", cause}
	if s := r.c.Resubmit; s.IsOff() {
		args = append(args, "advice", "zmctl resubmit when that is mended")
	} else {
		args = append(args, "next", s.Due(l.claim.Info.ModTime, r.c.Now()).UTC().Format(time.RFC3339), "advice", "it is routed again at that time; zmctl resubmit does it now")
	}
	r.c.Log.Warn("deferred", args...)
	return nil
}

// freeze puts a message away until a person thaws or discards it (M13). cause is a word
// for its name, why the reason in full.
func (r *Router) freeze(l *letter, cause, why string) error {
	r.explain(postoffice.Freezer, l.claim.ID, postoffice.WasFrozen, cause+": "+why)
	if err := l.claim.Freeze(cause); err != nil {
		return r.giveBack(l.claim, fmt.Errorf("%s: %w", why, err))
	}
	r.meters.messages.With(resultFrozen).Add(1)
	r.c.Log.Warn("frozen", "id", l.id, "name", fmt.Sprintf("%s/%d.%s", postoffice.Freezer, l.claim.ID.Ino, postoffice.CauseWord(cause)), "reason", why,
		"advice", "zmctl freezer thaw, or zmctl freezer discard")
	return nil
}

// thawed tells whether a person has thawed a message: a policy does not freeze it again.
func (r *Router) thawed(id postoffice.SpoolID) bool {
	if r.po == nil {
		return false
	}
	// What cannot be read says nothing: then it is frozen again, and a person decides.
	list, _ := r.po.Aside.Reasons(id)
	return slices.ContainsFunc(list, func(p postoffice.Reason) bool { return p.What == postoffice.WasThawed })
}

// setAside gives the postmaster a message that cannot be routed: the only copy
// (M12).
func (r *Router) setAside(l *letter, why string) error {
	r.explain(postoffice.Postman, l.claim.ID, postoffice.WasSetAside, why)
	if err := l.claim.ToPostman(); err != nil {
		return r.giveBack(l.claim, fmt.Errorf("%s: %w", why, err))
	}
	r.meters.messages.With(resultAside).Add(1)
	r.c.Log.Error("set-aside", "id", l.id, "name", fmt.Sprintf("%s/%d", postoffice.Postman, l.claim.ID.Ino), "reason", why,
		"advice", "mend the file, then zmctl postman resubmit")
	return nil
}

// explain writes down beside a message why it is put aside, before it is. Without room
// for that it is put aside all the same: the log says why, too.
func (r *Router) explain(dir string, id postoffice.SpoolID, what, why string) {
	err := r.po.Aside.Explain(dir, postoffice.Reason{ID: id, Time: r.c.Now(), Who: "router", What: what, Text: why})
	if err != nil {
		r.c.Log.Warn("no-reason", "id", id.String(), "name", dir, "reason", err)
	}
}

// panicked gives a message back that has made us panic, or sets it aside when that was
// the last of so many tries (M8).
func (r *Router) panicked(l *letter, cause any) error {
	why, _, _ := strings.Cut(fmt.Sprint(cause), "\n")
	name, try, err := l.claim.Panicked("panic: "+why, r.c.Now(), r.c.Tries)
	switch {
	case err != nil:
		return r.giveBack(l.claim, fmt.Errorf("%w: %s: %w", ErrPanic, why, err))
	case try >= r.c.Tries:
		r.poison(l.id, name, fmt.Sprintf("%d routers ended with it, the last by a panic: %s", try, why))
		return nil
	}
	return fmt.Errorf("%w: %s: try %d of %d", ErrPanic, why, try, r.c.Tries)
}

// handOver gives message and specification, which has n recipients, to the scheduler
// (M7).
func (r *Router) handOver(l *letter, n int) (name string, err error) {
	// Crash: the message is routed again, and entered again.
	r.c.Ledger.Routed(l.claim.ID, n, l.external || l.trusted && l.head.ErrorMsg)
	name, err = l.claim.HandOver()
	switch {
	case err == nil:
		return name, nil
	case name != "":
		// Both are in place; only a directory could not be synced.
		return "", err
	case errors.Is(err, postoffice.ErrGone):
		r.c.Log.Warn("gone", "id", l.id, "name", l.claim.Name(), "reason", err)
	}
	return "", r.giveBack(l.claim, err)
}

// giveBack puts a message back into router/ and returns why. If that fails too, it
// is tried again at the next poll: nobody else would take a living owner's claim.
func (r *Router) giveBack(c *postoffice.Claim, cause error) error {
	r.meters.messages.With(resultBack).Add(1)
	err := c.Release()
	switch {
	case err == nil:
		return cause
	case errors.Is(err, postoffice.ErrGone):
		// Somebody has moved the file by hand, or Release or HandOver got as far as the
		// rename.
		if err = c.Lost(); err == nil {
			return cause
		}
	}
	r.hold(c)
	return errors.Join(cause, err)
}

// hold keeps a claim for giveBackHeld.
func (r *Router) hold(c *postoffice.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, c)
}

// giveBackHeld tries again what giveBack could not do.
func (r *Router) giveBackHeld() {
	r.mu.Lock()
	held := r.held
	r.held = nil
	r.mu.Unlock()
	for _, c := range held {
		// An error puts the claim into held again; it was logged when it came first.
		_ = r.giveBack(c, nil)
	}
}
