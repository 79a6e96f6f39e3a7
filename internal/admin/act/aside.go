package act

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
)

// Aside selects messages in deferred/, freezer/ or postman/: by names in that directory,
// spool IDs, patterns of causes, or "all", narrowed by a selector.
type Aside struct {
	// Only excludes messages by what their names mean; explicit: the message was named by its
	// name or ID. nil: all are selected.
	Only func(k view.Kind, explicit bool) bool

	dir   string
	words []*word
	sel   selector.Selector
	list  []AsideMessage // what was found, once it was looked for
	done  bool
}

type word struct {
	text   string
	id     postoffice.SpoolID
	isID   bool
	met    bool
	others []postoffice.SpoolID // that have the inode number of the ID
}

// AsideMessage is one message that was selected. There may be a million of them.
type AsideMessage struct {
	ID   postoffice.SpoolID
	Name string
}

// wordAll selects every message of the directory.
const wordAll = "all"

// NewAside reads the arguments of a command.
func NewAside(dir string, args []string, sel selector.Selector) (*Aside, error) {
	a := &Aside{dir: dir, sel: sel}
	for _, arg := range args {
		w := &word{text: strings.TrimPrefix(arg, dir+"/")}
		if _, err := path.Match(w.text, ""); err != nil {
			return nil, fmt.Errorf("%s: neither a name in %s/ nor a pattern of causes: %w", arg, dir, err)
		}
		if id, err := postoffice.ParseSpoolID(w.text); err == nil {
			w.id, w.isID = id, true
		}
		a.words = append(a.words, w)
	}
	return a, nil
}

// Dir returns the directory.
func (a *Aside) Dir() string { return a.dir }

// Empty reports whether nothing was selected.
func (a *Aside) Empty() bool { return len(a.words) == 0 && a.sel.Empty() }

// Named reports whether messages are selected by their names or IDs and nothing else.
func (a *Aside) Named() bool {
	if len(a.words) == 0 || !a.sel.Empty() {
		return false
	}
	return !slices.ContainsFunc(a.words, func(w *word) bool { return !w.isID && !isName(w.text) })
}

func (a *Aside) hasID(id postoffice.SpoolID) bool {
	return slices.ContainsFunc(a.words, func(w *word) bool { return w.isID && w.id == id })
}

// isName reports whether a word may be a name in the directory, which begins with a digit.
func isName(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// String returns the selection as the log of operations has it.
func (a *Aside) String() string {
	parts := []string{a.dir + "/"}
	for _, w := range a.words {
		parts = append(parts, w.text)
	}
	if !a.sel.Empty() {
		parts = append(parts, a.sel.String())
	}
	return strings.Join(parts, " ")
}

// matches reports whether an argument selects the file, and whether one names it. It marks
// each argument that does.
func (a *Aside) matches(f view.File, k view.Kind) (any, explicit bool) {
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
		case !isName(w.text):
			// NewAside has tried the pattern.
			ok, _ = path.Match(w.text, k.Why)
		}
		w.met = w.met || ok
		any = any || ok
		explicit = explicit || ok && (w.isID || w.text == f.Name)
	}
	return any, explicit
}

// Find lists what is selected, the oldest first. It is done once, before anything is moved: a
// message that comes back meanwhile is not selected again.
func (a *Aside) Find(ctx context.Context, s *view.Spool) ([]AsideMessage, error) {
	if a.done {
		return a.list, nil
	}
	var errs []error
	err := s.EachFile(a.dir, func(f view.File) {
		k := s.KindOf(f)
		if k.State == "" || ctx.Err() != nil {
			return
		}
		if any, explicit := a.matches(f, k); !any || a.Only != nil && !a.Only(k, explicit) {
			return
		}
		if !a.sel.Empty() {
			m, err := s.LoadKind(f, k)
			if err != nil || !m.Choose(a.sel, s.Now) {
				errs = append(errs, view.UnlessMoved(err))
				return
			}
		}
		a.list = append(a.list, AsideMessage{postoffice.IDOf(f.Info), f.Name})
	})
	if err := errors.Join(append(errs, err, ctx.Err())...); err != nil {
		return nil, err
	}
	slices.SortFunc(a.list, func(x, y AsideMessage) int {
		return cmp.Or(cmp.Compare(x.ID.MTime, y.ID.MTime), cmp.Compare(x.ID.Ino, y.ID.Ino), strings.Compare(x.Name, y.Name))
	})
	a.done = true
	return a.list, nil
}

// Missing returns an ErrArgument for each argument that selects nothing, after Find.
func (a *Aside) Missing(verb string) error {
	var errs []error
	for _, w := range a.words {
		if w.met || w.text == wordAll {
			continue
		}
		err := fmt.Errorf("%s %s: %w in %s/", verb, w.text, ErrArgument, a.dir)
		if !w.isID && !isName(w.text) {
			err = fmt.Errorf("%s %s: %w in %s/ has that cause", verb, w.text, ErrArgument, a.dir)
		}
		for _, o := range w.others {
			err = fmt.Errorf("%w; %s", err, otherMessage(o))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// load reads a selected message. view.ErrMoved: it has gone on, or the name has another one.
func (a *Aside) load(s *view.Spool, c AsideMessage) (*view.Message, error) {
	f, err := s.Stat(a.dir, c.Name)
	if err != nil {
		return nil, err
	}
	k := s.KindOf(f)
	if k.State == "" || postoffice.IDOf(f.Info) != c.ID {
		return nil, view.ErrMoved
	}
	m, err := s.LoadKind(f, k)
	if err == nil {
		m.Choose(a.sel, s.Now)
	}
	return m, err
}

// Each calls fn with every selected message, the oldest first.
func (a *Aside) Each(ctx context.Context, po *postoffice.PostOffice, fn func(m *view.Message) error) error {
	s := view.New(po, time.Now())
	list, err := a.Find(ctx, s)
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
