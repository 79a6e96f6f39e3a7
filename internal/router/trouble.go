package router

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/router/rules"
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
	if t, ok := rules.IsTrouble(err); ok {
		return r.putOff(l, t.Why, err)
	}
	if errors.Is(err, workspec.ErrValue) {
		// Our own rules gave something that cannot be written: it would be so again.
		return r.putOff(l, "specification", err)
	}
	return r.giveBack(l.claim, err)
}

// putOff defers a message until somebody resubmits it (M10).
func (r *Router) putOff(l *letter, why string, cause error) error {
	if err := l.claim.Defer(why); err != nil {
		return r.giveBack(l.claim, errors.Join(cause, err))
	}
	r.c.Log.Warn("deferred", "id", l.id, "name", fmt.Sprintf("%s/%d.%s", postoffice.Deferred, l.claim.ID.Ino, why), "reason", cause,
		"advice", "zmctl resubmit when that is mended")
	return nil
}

// setAside gives the postmaster a message that cannot be routed: the only copy
// (M12).
func (r *Router) setAside(l *letter, why string) error {
	if err := l.claim.ToPostman(); err != nil {
		return r.giveBack(l.claim, fmt.Errorf("%s: %w", why, err))
	}
	r.c.Log.Error("set-aside", "id", l.id, "name", fmt.Sprintf("%s/%d", postoffice.Postman, l.claim.ID.Ino), "reason", why)
	return nil
}

// handOver gives message and specification to the scheduler (M7).
func (r *Router) handOver(l *letter) (name string, err error) {
	name, err = l.claim.HandOver()
	switch {
	case err == nil:
		return name, nil
	case name != "":
		// Both are in place; only a directory could not be synced.
		return "", err
	case errors.Is(err, postoffice.ErrOccupied):
		return "", r.putOff(l, "occupied", err)
	case errors.Is(err, postoffice.ErrGone):
		r.c.Log.Warn("gone", "id", l.id, "name", l.claim.Name(), "reason", err)
	}
	return "", r.giveBack(l.claim, err)
}

// giveBack puts a message back into router/ and returns why. If that fails too, it
// is tried again at the next poll: nobody else would take a living owner's claim.
func (r *Router) giveBack(c *postoffice.Claim, cause error) error {
	err := c.Release()
	switch {
	case err == nil:
		return cause
	case errors.Is(err, postoffice.ErrGone):
		// Somebody has moved the file by hand, or Release got as far as the rename.
		c.Close()
		return cause
	}
	r.mu.Lock()
	r.held = append(r.held, c)
	r.mu.Unlock()
	return errors.Join(cause, err)
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
