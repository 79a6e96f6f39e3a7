package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
)

const (
	// defaultPace is how many messages lie before a router at a time.
	defaultPace = 200
	// paceLook is how often is looked whether the router has taken some.
	paceLook = 20 * time.Millisecond
	// paceAlive is how often is looked whether there still is a router.
	paceAlive = 2 * time.Second
)

// pace keeps what is given back from standing before all new mail: those messages are
// older, and routers take the oldest first.
type pace struct {
	po     *postoffice.PostOffice
	to     string // the router directory
	window int    // so many at a time; 0: all at once

	given   int     // messages so far
	before  []given // before a router, as far as is known; those of a window at most
	back    int     // came back in a row
	last    given   // that came back
	checked time.Time
	lives   bool // a router does
}

// given is a message that was given to the router.
type given struct {
	id   postoffice.SpoolID
	from string // its path before
}

// errComeBack means that nothing is mended.
var errComeBack = errors.New("they come back")

// newPace decides where messages go. Those that a person has named he waits for.
func newPace(c *cli.Context, po *postoffice.PostOffice, from *aside) (*pace, error) {
	p := &pace{po: po, to: postoffice.Router, window: c.Int("pace")}
	if from.named() {
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

// wait waits until the router has taken some, if it has enough. Without a router nobody is
// kept waiting.
func (p *pace) wait(ctx context.Context) error {
	if p == nil || p.window <= 0 || len(p.before) < p.window {
		return nil
	}
	tick := time.NewTicker(paceLook)
	defer tick.Stop()
	for {
		if !p.alive() {
			p.before = p.before[:0] // nobody takes them; how many they are is no matter
			return nil
		}
		if err := p.look(); err != nil {
			return err
		}
		// Half of it: so that a look is worth it.
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
	if now := time.Now(); now.Sub(p.checked) >= paceAlive {
		p.checked, p.lives = now, view.New(p.po, now).Runs("router")
	}
	return p.lives
}

// look takes off the list what the router has taken.
func (p *pace) look() error {
	left := p.before[:0]
	for _, g := range p.before {
		at := p.to + "/" + strconv.FormatUint(g.id.Ino, 10)
		info, err := p.po.FS().Stat(at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && postoffice.IDOf(info) == g.id {
			left = append(left, g)
			continue
		}
		if info, err := p.po.FS().Stat(g.from); err == nil && postoffice.IDOf(info) == g.id {
			p.back++
			p.last = g
		} else {
			p.back = 0
		}
	}
	p.before = left
	if p.back >= p.window {
		return errComeBack
	}
	return nil
}

// comeBack tells that it was stopped.
func (p *pace) comeBack(left int) error {
	why := "see zmctl resubmit"
	if list, err := p.po.Aside.Reasons(p.last.id); err == nil && len(list) > 0 {
		why = human.Clean(list[len(list)-1].Text)
	}
	return cli.Exit(fmt.Errorf("the last %d came back, %s were left where they are; the last one because: %s\n    mend that first; zmctl resubmit --check says whether it is",
		p.back, human.Count(left, "message"), why), config.ExitTempFail)
}
