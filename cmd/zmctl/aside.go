package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
)

// aside is what a command about deferred/, freezer/ or postman/ was told to be about: the
// arguments are names in that directory, spool IDs, patterns of causes, or all; the flags
// of the selector narrow them.
type aside struct {
	dir   string
	words []*word
	sel   selector.Selector
	// fits tells beside what the command can be about; explicit: the message was named by
	// its name or ID.
	fits func(k view.Kind, explicit bool) bool
	list []chosenFile // what was found, once it was looked for
	done bool
}

// word is one argument.
type word struct {
	text   string
	id     postoffice.SpoolID
	isID   bool
	met    bool
	others []postoffice.SpoolID // that have the ID's inode number
}

// chosenFile is one message that was chosen. There may be a million: it is kept small.
type chosenFile struct {
	id   postoffice.SpoolID
	name string
}

// wordAll stands for every message of the directory.
const wordAll = "all"

// newAside reads the arguments and flags.
func newAside(c *cli.Context, dir string) (*aside, error) {
	sel, err := flagged(c)
	if err != nil {
		return nil, err
	}
	a := &aside{dir: dir, sel: sel, fits: func(view.Kind, bool) bool { return true }}
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return nil, cli.Exit("zmctl "+c.Command.FullName()+": flags like "+arg+" stand before the names", config.ExitUsage)
		}
		w := &word{text: strings.TrimPrefix(arg, dir+"/")}
		if _, err := path.Match(w.text, ""); err != nil {
			return nil, cli.Exit(fmt.Sprintf("zmctl %s %s: neither a name in %s/ nor a pattern of causes: %v", c.Command.FullName(), arg, dir, err), config.ExitUsage)
		}
		if id, err := postoffice.ParseSpoolID(w.text); err == nil {
			w.id, w.isID = id, true
		}
		a.words = append(a.words, w)
	}
	return a, nil
}

// empty: nobody said what is meant.
func (a *aside) empty() bool { return len(a.words) == 0 && a.sel.Empty() }

// named: messages by their names or IDs and nothing else, so nobody is to be asked.
func (a *aside) named() bool {
	if len(a.words) == 0 || !a.sel.Empty() {
		return false
	}
	return !slices.ContainsFunc(a.words, func(w *word) bool { return !w.isID && !isAsideName(w.text) })
}

// isAsideName tells what could be a name in one of the directories: it starts with a digit.
func isAsideName(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// String is what stands in an order.
func (a *aside) String() string {
	parts := []string{a.dir + "/"}
	for _, w := range a.words {
		parts = append(parts, w.text)
	}
	if !a.sel.Empty() {
		parts = append(parts, a.sel.String())
	}
	return strings.Join(parts, " ")
}

// matches tells whether one of the arguments means the file, and whether one names it.
// Each that means it is met.
func (a *aside) matches(f view.File, k view.Kind) (any, explicit bool) {
	if len(a.words) == 0 {
		return true, false
	}
	id := postoffice.IDOf(f.Info)
	for _, w := range a.words {
		ok := w.text == wordAll || w.text == f.Name
		switch {
		case ok:
		case w.isID:
			if ok = w.id == id; !ok && w.id.Ino == id.Ino {
				w.others = append(w.others, id)
			}
		case !isAsideName(w.text):
			// The pattern was tried when it was read.
			ok, _ = path.Match(w.text, k.Why)
		}
		w.met = w.met || ok
		any = any || ok
		explicit = explicit || ok && (w.isID || w.text == f.Name)
	}
	return any, explicit
}

// find looks for what is meant, oldest first. It is done before anything is moved: a
// message that comes back meanwhile is not met again.
func (a *aside) find(ctx context.Context, s *view.Spool) ([]chosenFile, error) {
	if a.done {
		return a.list, nil
	}
	var errs []error
	err := s.EachFile(a.dir, func(f view.File) {
		k := s.KindOf(f)
		if k.State == "" || ctx.Err() != nil {
			return
		}
		if any, explicit := a.matches(f, k); !any || !a.fits(k, explicit) {
			return
		}
		if !a.sel.Empty() {
			m, err := s.LoadKind(f, k)
			if err != nil || !m.Choose(a.sel, s.Now) {
				errs = append(errs, view.UnlessMoved(err))
				return
			}
		}
		a.list = append(a.list, chosenFile{postoffice.IDOf(f.Info), f.Name})
	})
	if err := errors.Join(append(errs, err, ctx.Err())...); err != nil {
		return nil, err
	}
	slices.SortFunc(a.list, func(x, y chosenFile) int {
		return cmp.Or(cmp.Compare(x.id.MTime, y.id.MTime), cmp.Compare(x.id.Ino, y.id.Ino), strings.Compare(x.name, y.name))
	})
	a.done = true
	return a.list, nil
}

// missing tells of arguments that mean nothing here.
func (a *aside) missing(verb string) error {
	var errs []error
	for _, w := range a.words {
		if w.met || w.text == wordAll {
			continue
		}
		err := fmt.Errorf("%s %s: there is no such message in %s/", verb, w.text, a.dir)
		if !w.isID && !isAsideName(w.text) {
			err = fmt.Errorf("%s %s: no message in %s/ has such a cause", verb, w.text, a.dir)
		}
		for _, o := range w.others {
			err = fmt.Errorf("%w; inode %d belongs to another message now, %s, written %s", err, o.Ino, o, o.Time().Format(human.TimeFormat))
		}
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return cli.Exit(errors.Join(errs...), config.ExitUsage)
	}
	return nil
}

// load reads a message that was chosen. errMoved: it has gone on, or is another by now.
func (a *aside) load(s *view.Spool, c chosenFile) (*view.Message, error) {
	f, err := s.Stat(a.dir, c.name)
	if err != nil {
		return nil, err
	}
	k := s.KindOf(f)
	if k.State == "" || postoffice.IDOf(f.Info) != c.id {
		return nil, view.ErrMoved
	}
	m, err := s.LoadKind(f, k)
	if err == nil {
		m.Choose(a.sel, s.Now)
	}
	return m, err
}

// each calls fn with every message that is meant, oldest first.
func (a *aside) each(ctx context.Context, po *postoffice.PostOffice, fn func(m *view.Message) error) error {
	s := view.New(po, time.Now())
	list, err := a.find(ctx, s)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := a.load(s, c)
		if errors.Is(err, view.ErrMoved) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := fn(m); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
