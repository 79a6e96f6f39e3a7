package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

func runRepair(c *cli.Context, po *postoffice.PostOffice) error {
	dry := c.Bool("dry-run")
	bar := newCounter(c, "repair", "files")
	steps, err := repair(po, time.Now(), dry, bar)
	bar.End()
	if errors.Is(err, errNotBegun) {
		return err
	}
	left := 0
	for i := range steps {
		if steps[i].Left != "" {
			left++
		}
	}
	if c.Bool("json") {
		if steps == nil {
			steps = []step{}
		}
		err = errors.Join(err, text.PrintJSON(c.App.Writer, steps))
	} else {
		shown := steps
		if c.Bool("quiet") {
			shown = slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.Left == "" })
		}
		err = errors.Join(err, printSteps(c.App.Writer, shown))
		done := "done"
		if dry {
			done = "to be done; nothing was changed"
		}
		_, perr := fmt.Fprintf(c.App.Writer, "%s %s, %d left\n", human.Count(len(steps)-left, "repair"), done, left)
		err = errors.Join(err, perr)
	}
	if err == nil && (left > 0 || dry && len(steps) > 0) {
		return cli.Exit("", 1)
	}
	return err
}

// errNotBegun means that a repair has not looked at anything.
var errNotBegun = errors.New("nothing was repaired")

func printSteps(w io.Writer, steps []step) error {
	p := term.For(w)
	var errs []error
	for _, s := range steps {
		_, err := fmt.Fprintf(w, "%s  %s: %s\n", p.Yellow(fmt.Sprintf("%-10s", s.Action)), p.Bold(human.Clean(s.File)), human.Clean(s.Text))
		errs = append(errs, err)
		if s.Left != "" {
			_, err := fmt.Fprintf(w, "            %s\n", p.Red("left: "+human.Clean(s.Left)))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

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

// step is one thing that a repair does.
type step struct {
	File   string `json:"file"`
	Action string `json:"action"`
	Text   string `json:"text"`
	Left   string `json:"left,omitempty"` // why it is not done

	id string // tells the message from another that gets the same name

	// do does it; nil: it is told only. A step that was interrupted is found again by
	// the next repair, which ends it.
	do func(m *mender) error
}

// mender does the steps of one repair.
type mender struct {
	*postoffice.Repair
	po     *postoffice.PostOffice
	claims []string // to be given back when every name is free
	aside  []string // to be renamed again then
}

// repair plans what is to be mended and does it, unless dry. What it could not do is
// told by the steps' Left; the error is about the whole.
func repair(po *postoffice.PostOffice, now time.Time, dry bool, bar *text.Progress) (steps []step, err error) {
	if dry {
		p := planned(po, now, !view.New(po, now).Runs("scheduler"), bar)
		return p.steps, errors.Join(p.errs...)
	}
	r, err := po.BeginRepair()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotBegun, err)
	}
	defer func() { err = errors.Join(err, r.End()) }()
	journal := ledger.New(po, ledger.Config{Role: "zmctl"})
	defer journal.Close()
	po.OnRenumber(journal.Moved)
	p := planned(po, now, r.Exclusive(), bar)
	m := &mender{Repair: r, po: po}
	for i := range p.steps {
		p.steps[i].run(m)
	}
	return p.steps, errors.Join(append(p.errs, m.finish())...)
}

// planned gives the steps that every look finds to be done: routers may hand messages
// over while the directories are listed.
func planned(po *postoffice.PostOffice, now time.Time, exclusive bool, bar *text.Progress) *planner {
	var p *planner
	for range looks {
		before := p
		p = &planner{Spool: view.New(po, now), exclusive: exclusive}
		p.Spool.Seen = bar.Step
		p.plan()
		if before != nil {
			p.steps = slices.DeleteFunc(p.steps, func(s step) bool {
				return !slices.ContainsFunc(before.steps, func(b step) bool { return b.File == s.File && b.Action == s.Action && b.id == s.id })
			})
		}
		if len(p.steps) == 0 {
			break
		}
	}
	return p
}

func (s *step) run(m *mender) {
	if s.do == nil || s.Left != "" {
		return
	}
	switch err := s.do(m); {
	case errors.Is(err, postoffice.ErrGone):
		s.Left = "it went on meanwhile"
	case errors.Is(err, postoffice.ErrBusy):
		s.Left = "a live process works on it; repair again later"
	case err != nil:
		s.Left = err.Error()
	}
}

// finish gives the names that others had when it was their turn.
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

// requeue gives a message to the routers once every name in router/ is free.
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
