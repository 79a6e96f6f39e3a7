package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/logging"
	"zmailer/internal/stage/router/route"
)

// isStorage reports whether the next message would meet an error too: the disk is full
// or broken, the process or the system is out of something, or this machine has no lease.
func isStorage(err error) bool {
	if errors.Is(err, lease.ErrNoLease) {
		return true
	}
	for _, errno := range [...]unix.Errno{
		unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ESTALE,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// outcome acts on what routing a claimed message came to. It returns nil when the message has
// left router/, else why it is there again.
func (r *Router) outcome(ctx context.Context, c *postoffice.Claim, start time.Time, res route.Result) error {
	if err := r.c.Lease.Check(lease.Step); err != nil {
		// Past the deadline nothing is renamed. Crash: as after the death of this router: the
		// claim is a dead owner's.
		r.hold(c)
		return err
	}
	frozen, held := route.IsFrozen(res.Err)
	why, deferred := route.Defers(res.Err)
	switch {
	case res.Panic != nil:
		return r.panicked(c, res.Panic)
	case res.Aside != "":
		return r.setAside(c, res.Aside)
	case res.Err == nil:
		return r.handOver(c, start, res)
	case context.Cause(ctx) != nil:
		// The router stops: nothing has failed, and that counts as no try.
		cause := context.Cause(ctx)
		r.c.Log.Info("given-back", "id", c.ID.String(), "name", c.Name(), "reason", cause)
		return r.giveBack(c, cause)
	case held:
		return r.freeze(c, frozen.Cause, frozen.Reason)
	case deferred:
		return r.deferMessage(c, why, res.Err)
	}
	return r.giveBack(c, res.Err)
}

// handOver gives message and specification to the scheduler (M7): the rename of router/I-P to
// queue/I-P, then that of router/..I-P to transport/I-P. What a reader finds if the router or
// the power goes (docs/durability.md has the pairs, docs/walk-relay.md the walk):
//
//	router/I-P: the message is routed again
//	queue/I-P with router/..I-P: recovery does the second rename, or has the message
//	routed again if the specification is not whole
//	transport/I-P with the message in router/, after a power loss only: it is routed again,
//	and the specification is put away
//	queue/I-P with transport/I-P: handed over
func (r *Router) handOver(c *postoffice.Claim, start time.Time, res route.Result) error {
	// Crash: the message is routed again, and entered in the ledger again.
	r.c.Ledger.Routed(c.ID, res.Recipients, res.Report)
	name, err := c.HandOver()
	switch {
	case err == nil:
		r.meters.routed(c, start, r.c.Now)
		if log := r.c.Log; log.Enabled(context.Background(), slog.LevelInfo) {
			list := append(make([]slog.Attr, 0, 9), slog.String("id", c.ID.String()), slog.String("name", name),
				slog.String("from", res.Sender), slog.Int("rcpts", res.Recipients), slog.Int64("size", c.Info.Size),
				slog.Duration("took", r.c.Now().Sub(start)))
			if res.MessageID != "" {
				list = append(list, slog.String("message-id", res.MessageID))
			}
			if res.Before != "" {
				list = append(list, slog.String("orig-id", res.Before))
			}
			switch {
			case res.Local:
				list = append(list, slog.Uint64("uid", uint64(res.UID)))
			case res.OwnReport:
				list = append(list, slog.String("origin", "report"))
			}
			logging.LogAttrs(log, slog.LevelInfo, "routed", list...)
		}
		return nil
	case name != "":
		// Both are in place; only a directory could not be synced.
		return err
	case errors.Is(err, postoffice.ErrGone):
		r.c.Log.Warn("gone", "id", c.ID.String(), "name", c.Name(), "reason", err)
	}
	return r.giveBack(c, err)
}

// deferMessage defers a message until it is resubmitted (M10). why is the suffix of its name;
// the whole cause is in the log and beside the message.
func (r *Router) deferMessage(c *postoffice.Claim, why string, cause error) error {
	r.engine.NoteReason(postoffice.Deferred, c.ID, postoffice.WasDeferred, why+": "+cause.Error())
	if err := c.Defer(why); err != nil {
		return r.giveBack(c, errors.Join(cause, err))
	}
	r.meters.messages.With(resultDeferred).Add(1)
	args := []any{"id", c.ID.String(), "name", fmt.Sprintf("%s/%d.%s", postoffice.Deferred, c.ID.Ino, why), "reason", cause}
	if s := r.c.Resubmit; s.IsOff() {
		args = append(args, "advice", "run zmctl resubmit when the cause is corrected")
	} else {
		args = append(args, "next", s.Due(c.Info.ModTime, r.c.Now()).UTC().Format(time.RFC3339), "advice", "it is routed again at that time; zmctl resubmit does it now")
	}
	r.c.Log.Warn("deferred", args...)
	return nil
}

// freeze holds a message until an operator thaws or discards it (M13). cause is the suffix of
// its name, why the reason in full.
func (r *Router) freeze(c *postoffice.Claim, cause, why string) error {
	r.engine.NoteReason(postoffice.Freezer, c.ID, postoffice.WasFrozen, cause+": "+why)
	if err := c.Freeze(cause); err != nil {
		return r.giveBack(c, fmt.Errorf("%s: %w", why, err))
	}
	r.meters.messages.With(resultFrozen).Add(1)
	r.c.Log.Warn("frozen", "id", c.ID.String(), "name", fmt.Sprintf("%s/%d.%s", postoffice.Freezer, c.ID.Ino, postoffice.CauseWord(cause)), "reason", why,
		"advice", "zmctl freezer thaw, or zmctl freezer discard")
	return nil
}

// setAside puts a message that cannot be routed into postman/: the only copy (M12).
func (r *Router) setAside(c *postoffice.Claim, why string) error {
	r.engine.NoteReason(postoffice.Postman, c.ID, postoffice.WasSetAside, why)
	if err := c.ToPostman(); err != nil {
		return r.giveBack(c, fmt.Errorf("%s: %w", why, err))
	}
	r.meters.messages.With(resultAside).Add(1)
	r.c.Log.Error("set-aside", "id", c.ID.String(), "name", fmt.Sprintf("%s/%d", postoffice.Postman, c.ID.Ino), "reason", why,
		"advice", "correct the file, then zmctl postman resubmit")
	return nil
}

// panicked gives back a message that made the router panic, or sets it aside after the last
// of its tries (M8).
func (r *Router) panicked(c *postoffice.Claim, cause any) error {
	why, _, _ := strings.Cut(fmt.Sprint(cause), "\n")
	id := c.ID.String()
	name, try, err := c.Panicked("panic: "+why, r.c.Now(), r.c.Tries)
	switch {
	case err != nil:
		return r.giveBack(c, fmt.Errorf("%w: %s: %w", ErrPanic, why, err))
	case try >= r.c.Tries:
		r.poison(id, name, fmt.Sprintf("%d routers ended with it, the last by a panic: %s", try, why))
		return nil
	}
	return fmt.Errorf("%w: %s: try %d of %d", ErrPanic, why, try, r.c.Tries)
}

// giveBack puts a message back into router/ and returns why. If that fails too, it
// is tried again at the next poll: no other process would take a living owner's claim.
func (r *Router) giveBack(c *postoffice.Claim, cause error) error {
	r.meters.messages.With(resultBack).Add(1)
	err := c.Release()
	switch {
	case err == nil:
		return cause
	case errors.Is(err, postoffice.ErrGone):
		// Somebody has moved the file by hand, or Release or HandOver got as far as the
		// rename.
		if err = c.EndMissing(); err == nil {
			return cause
		}
	}
	r.hold(c)
	return errors.Join(cause, err)
}

// hold keeps a claim for releaseHeld.
func (r *Router) hold(c *postoffice.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, c)
}

// releaseHeld tries again what giveBack could not do.
func (r *Router) releaseHeld() {
	r.mu.Lock()
	held := r.held
	r.held = nil
	r.mu.Unlock()
	if r.c.Lease.Check(lease.Step) != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.held = append(held, r.held...)
		return
	}
	for _, c := range held {
		// An error puts the claim into held again; it was logged when it came first.
		_ = r.giveBack(c, nil)
	}
}
