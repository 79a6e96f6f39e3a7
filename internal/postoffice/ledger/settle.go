package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"zmailer/internal/postoffice"
)

// Settled is what Settle entered.
type Settled struct {
	Why            string // power, or start: the ledger is new
	Found, Unknown int    // messages
}

var (
	// ErrNotOpen means that nothing is to be explained about a message.
	ErrNotOpen = errors.New("ledger and disk agree about it, or the ledger does not know it; zmctl check --ledger names what is wrong")
	// ErrOnDisk means that a message cannot be called gone.
	ErrOnDisk = errors.New("it is still there, and is counted when it ends")
)

// Why of lines that are not a stage's.
const (
	whyPower = "power" // a power loss took lines or files
	whyStart = "start" // the message was there before the ledger
	// whySettled: an operator knows what became of it.
	whySettled = "settled"
)

// StartPatience is Settle's beside other daemons that start.
func StartPatience() Patience { return Patience{Looks: 4, Pause: 50 * time.Millisecond} }

// Settle enters, after a loss of power or into a new ledger, what ledger and disk
// contradict each other about: messages that are nowhere as unknown, messages that
// no line names as found. Without a loss of power it does nothing: an imbalance is
// then an operator's to explain. The scheduler calls it at its start, when it has taken up
// what was interrupted.
func (j *Journal) Settle(ctx context.Context, patience Patience) (Settled, error) {
	var done Settled
	if j == nil {
		return done, nil
	}
	b, err := read(j.po, true)
	if err != nil {
		return done, err
	}
	boot := j.c.Boot()
	switch {
	case b.powerLost(boot):
		done.Why = whyPower
	case !b.begun:
		done.Why = whyStart
	default:
		return done, nil
	}
	if patience.Before != nil {
		if err := patience.Before(); err != nil {
			return done, err
		}
	}
	patience.literal = done.Why == whyPower
	balance, err := Compare(ctx, j.po, patience)
	if err != nil {
		return done, fmt.Errorf("settle ledger: %w", err)
	}
	for i := range balance.Wrong {
		w := &balance.Wrong[i]
		switch w.Kind {
		case Missing:
			if done.Why != whyPower {
				continue
			}
			_ = j.write(Line{Verb: Unknown, ID: w.ID, N: w.Recipients, Why: done.Why})
			done.Unknown++
		case DiskOnly:
			_ = j.write(Line{Verb: Found, ID: w.ID, N: -w.Recipients, Why: done.Why})
			done.Found++
		case Returned:
			// Its end is durable and its files are back: it is delivered once more.
			j.Routed(w.ID, int(-w.Recipients), false)
		}
	}
	// Crash: without this line the next start settles again, to the same end.
	// Its error was logged, like that of every line.
	_ = j.write(Line{Verb: Boot, Boot: boot})
	return done, nil
}

// Explain enters that an operator has taken the matter of a message in hand which Compare
// has found missing, uneven or unreported: what has no outcome is counted as gone. Beyond
// what it had, it is counted as added; who was not told is taken to know. ErrNotOpen: nothing is wrong with it. ErrOnDisk: its files
// are there, and it gets its end from them.
func (j *Journal) Explain(found *Balance, id postoffice.SpoolID) error {
	at := slices.IndexFunc(found.Wrong, func(w Mismatch) bool { return w.ID == id })
	if at < 0 {
		return fmt.Errorf("settle %s: %w", id, ErrNotOpen)
	}
	switch w := &found.Wrong[at]; w.Kind {
	case Missing:
		return j.write(Line{Verb: Gone, ID: id, N: w.Recipients, Why: whySettled})
	case Uneven:
	case Unreported:
		b, err := Read(j.po)
		if err != nil || b.Records[id] == nil {
			return errors.Join(err, fmt.Errorf("settle %s: %w", id, ErrNotOpen))
		}
		return j.write(Line{Verb: Told, ID: id, N: b.Records[id].Unreported, Why: whySettled})
	default:
		return fmt.Errorf("settle %s: %w: %s", id, ErrOnDisk, w.Disk)
	}
	b, err := Read(j.po)
	if err != nil {
		return err
	}
	r := b.Records[id]
	if r == nil || !r.uneven() {
		return fmt.Errorf("settle %s: %w", id, ErrNotOpen)
	}
	o := r.End
	if missing := r.Size() - o.Total(); missing > 0 {
		o.Gone += missing
	} else if err := j.write(Line{Verb: Routed, ID: id, N: o.Total(), Entered: r.Entered}); err != nil {
		// Crash: behind this line it is open, and missing; it can be settled again.
		return err
	}
	return j.write(Line{Verb: Done, ID: id, End: o})
}
