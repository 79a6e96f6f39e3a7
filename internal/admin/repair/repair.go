// Package repair repairs a postoffice: it plans steps for problems that need no guess, and
// executes them.
//
//	steps, err := repair.Do(po, time.Now(), nil) // those of repair.Plan, which changes nothing
//
// A repair holds the lock of repairs, and the one of schedulers if none runs; without that
// one it does not change queue/ and transport/. What survives a crash: the next repair finds an
// interrupted step again and completes it.
//
// Diagnostics: ErrNotBegun: nothing was changed, because another repair runs, for instance.
// The error about a single step is its Left.
package repair

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
)

// ErrNotBegun means that the repair did not begin.
var ErrNotBegun = errors.New("nothing was repaired")

// Words of step.Action.
const (
	doMake       = "make"
	doMode       = "mode"
	doRenumber   = "renumber"
	doHandOver   = "hand-over"
	doRequeue    = "requeue"
	doDrop       = "drop"
	doQuarantine = "quarantine"
	doRelease    = "release"
)

// Step is one step of a repair.
type Step struct {
	File   string `json:"file"`
	Action string `json:"action"`
	Text   string `json:"text"`
	Left   string `json:"left,omitempty"` // why it is not done

	id string // distinguishes messages that get the same name

	// do executes the step; nil: it is only reported. The next repair finds an interrupted
	// step again and completes it.
	do func(m *mender) error
}

// mender executes the steps of one repair.
type mender struct {
	*postoffice.Repair
	po     *postoffice.PostOffice
	claims []string // to return to the router when every name is free
	aside  []string // to be renamed again then
}

// Plan returns the steps that Do would do. seen is called for each file; it may be nil.
func Plan(po *postoffice.PostOffice, now time.Time, seen func()) ([]Step, error) {
	p := planned(po, now, !view.New(po, now).Runs("scheduler"), seen)
	return p.steps, errors.Join(p.errs...)
}

// Do plans the steps and does them. Why a step was not done is its Left; the error is about
// the repair as a whole.
func Do(po *postoffice.PostOffice, now time.Time, seen func()) (steps []Step, err error) {
	r, err := po.BeginRepair()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	defer func() { err = errors.Join(err, r.End()) }()
	journal := ledger.New(po, ledger.Config{Role: "zmctl"})
	defer journal.Close()
	po.OnRenumber(journal.Moved)
	p := planned(po, now, r.Exclusive(), seen)
	m := &mender{Repair: r, po: po}
	for i := range p.steps {
		p.steps[i].run(m)
	}
	return p.steps, errors.Join(append(p.errs, m.finish())...)
}

// looks is how often the steps are planned before they are done.
const looks = 3

// planned returns the steps that every look finds: routers may hand messages over while the
// directories are listed.
func planned(po *postoffice.PostOffice, now time.Time, exclusive bool, seen func()) *planner {
	var p *planner
	for range looks {
		before := p
		p = &planner{Spool: view.New(po, now), exclusive: exclusive}
		p.Spool.Seen = seen
		p.plan()
		if before != nil {
			p.steps = slices.DeleteFunc(p.steps, func(s Step) bool {
				return !slices.ContainsFunc(before.steps, func(b Step) bool { return b.File == s.File && b.Action == s.Action && b.id == s.id })
			})
		}
		if len(p.steps) == 0 {
			break
		}
	}
	return p
}

func (s *Step) run(m *mender) {
	if s.do == nil || s.Left != "" {
		return
	}
	switch err := s.do(m); {
	case errors.Is(err, postoffice.ErrGone):
		s.Left = "it has moved meanwhile"
	case errors.Is(err, postoffice.ErrBusy):
		s.Left = "a running process uses it; repair again later"
	case err != nil:
		s.Left = err.Error()
	}
}

// finish renames the files whose names were in use before.
func (m *mender) finish() error {
	var errs []error
	for _, c := range m.claims {
		if err := m.Unclaim(c); err != nil && !errors.Is(err, postoffice.ErrGone) {
			errs = append(errs, err)
		}
	}
	// Each round gives at least one its name, unless a name belongs to another file.
	for len(m.aside) > 0 {
		list, before := m.aside, len(m.aside)
		m.aside = nil
		for _, name := range list {
			if err := m.renumberAside(name); err != nil {
				errs = append(errs, err)
			}
		}
		if len(m.aside) == before {
			errs = append(errs, fmt.Errorf("renumber %s: %w", strings.Join(m.aside, " "), postoffice.ErrOccupied))
			break
		}
	}
	return errors.Join(errs...)
}

func (m *mender) renumberAside(name string) error {
	to, again, err := m.RenumberAside(name)
	if again {
		m.aside = append(m.aside, to)
	}
	return err
}

// requeue returns a message to the routers once every name in router/ is free.
func (m *mender) requeue(name string) error {
	claim, err := m.Requeue(name)
	if err == nil {
		m.claims = append(m.claims, claim)
	}
	return err
}

func (m *mender) quarantine(name, why string) error {
	_, err := m.po.Aside.Quarantine(name, why)
	return err
}
