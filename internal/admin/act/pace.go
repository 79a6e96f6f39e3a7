package act

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
)

const (
	// DefaultPace is how many messages wait for a router at a time.
	DefaultPace = 200
	// pollInterval is how often is checked whether the router has taken some.
	pollInterval = 20 * time.Millisecond
	// aliveInterval is how often is checked whether a router still runs.
	aliveInterval = 2 * time.Second
)

// ErrComeBack means that messages given to the router came back in a row, so that the cause
// of their deferral still exists.
var ErrComeBack = errors.New("the messages come back")

// comeBackError is ErrComeBack with the numbers.
type comeBackError struct {
	back int
	last postoffice.SpoolID
}

func (e *comeBackError) Error() string { return fmt.Sprintf("the last %d messages came back", e.back) }
func (e *comeBackError) Unwrap() error { return ErrComeBack }

// ComeBack returns how many messages came back in a row and the reason of the last one.
func ComeBack(po *postoffice.PostOffice, err error) (n int, reason string) {
	back := (*comeBackError)(nil)
	if !errors.As(err, &back) {
		return 0, ""
	}
	if list, err := po.Aside.Reasons(back.last); err == nil && len(list) > 0 {
		reason = list[len(list)-1].Text
	}
	return back.back, reason
}

// pace keeps messages that are given back from delaying new mail: they are older, and
// routers take the oldest first.
type pace struct {
	po     *postoffice.PostOffice
	to     string // the router directory
	window int    // messages at a time; 0: all at once

	given   int     // messages so far
	before  []given // before a router or claimed by one, as far as is known; at most a window
	back    int     // came back in a row
	last    given   // that came back
	checked time.Time
	lives   bool // a router runs
}

// given is a message that was given to the router.
type given struct {
	id   postoffice.SpoolID
	from string // its path before
}

// newPace chooses the router directory. An operator waits for messages that he has named, so
// those go to the first one.
func newPace(po *postoffice.PostOffice, from *Aside, window int) (*pace, error) {
	p := &pace{po: po, to: postoffice.Router, window: window}
	if from.Named() {
		return p, nil
	}
	dirs, err := po.Router.Dirs()
	if err != nil {
		return nil, err
	}
	p.to = dirs[len(dirs)-1]
	return p, nil
}

func (p *pace) gave(id postoffice.SpoolID, from string) {
	p.given++
	if p.window > 0 {
		p.before = append(p.before, given{id, from})
	}
}

// wait waits until the router has taken some messages if it has enough of them. Without a
// router it does not wait.
func (p *pace) wait(ctx context.Context) error {
	if p == nil || p.window <= 0 || len(p.before) < p.window {
		return nil
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if !p.alive() {
			p.before = p.before[:0]
			return nil
		}
		if err := p.poll(); err != nil {
			return err
		}
		// Half of it, so that each poll finds something.
		if len(p.before) <= p.window/2 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *pace) alive() bool {
	if now := time.Now(); now.Sub(p.checked) >= aliveInterval {
		p.checked, p.lives = now, view.New(p.po, now).Runs("router")
	}
	return p.lives
}

// poll removes from the list what the router has done with. A message that it has claimed
// stays in the list: while a lookup takes long, no one knows yet whether it comes back.
func (p *pace) poll() error {
	left, taken := p.before[:0], []given(nil)
	for _, g := range p.before {
		at := p.to + "/" + strconv.FormatUint(g.id.Ino, 10)
		info, err := p.po.FS().Stat(at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && postoffice.IDOf(info) == g.id {
			left = append(left, g)
		} else {
			taken = append(taken, g)
		}
	}
	claimed, err := p.claimed(len(taken) > 0)
	if err != nil {
		return err
	}
	for _, g := range taken {
		if claimed[g.id.Ino] {
			left = append(left, g)
		} else if info, err := p.po.FS().Stat(g.from); err == nil && postoffice.IDOf(info) == g.id {
			p.back++
			p.last = g
		} else {
			p.back = 0
		}
	}
	p.before = left
	if p.back >= p.window {
		return &comeBackError{p.back, p.last.id}
	}
	return nil
}

// claimed returns the inode numbers of the messages that a router has claimed. It is asked
// after a message was missed under its own name, and before it is looked for where it was: so
// one that comes back meanwhile is found.
func (p *pace) claimed(asked bool) (map[uint64]bool, error) {
	if !asked {
		return nil, nil
	}
	entries, err := p.po.FS().ReadDir(p.to)
	if err != nil {
		return nil, err
	}
	inos := map[uint64]bool{}
	for _, e := range entries {
		if n, ok := postoffice.ParseName(e.Name); ok && n.Owner != 0 {
			inos[n.Ino] = true
		}
	}
	return inos, nil
}
