package view

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/postoffice"
)

// Ref names a file that may be a message, or its specification in transport/ if the
// message is gone. Nothing was asked about it yet but its directory.
type Ref struct {
	dir, name string
	ino       uint64
}

// SortLimit is how many messages are put in order by their age; more of them come as the
// directories have them, because the first line must not wait for the last.
const SortLimit = 10000

// walkOrder returns the directories in the order in which messages go through them: what
// moves on meanwhile is met in the next one. So each message that is there all the time
// is met; one that moves may be met twice.
func (s *Files) walkOrder() []string {
	return append(s.RouterDirs(), postoffice.Deferred, postoffice.Freezer, postoffice.Postman, postoffice.Queue, postoffice.Transport)
}

// Walk calls fn with each message that waits for something. It holds no more names than
// one read of a directory gives. Directories that cannot be listed are in the error; the rest is walked.
func (s *Files) Walk(ctx context.Context, sel selector.Selector, fn func(Ref) error) error {
	ids, only := sel.IDs()
	if !only {
		return s.WalkInodes(ctx, nil, fn)
	}
	inodes := map[uint64]bool{}
	for _, text := range ids {
		if id, err := postoffice.ParseSpoolID(text); err == nil {
			inodes[id.Ino] = true
		}
	}
	return s.WalkInodes(ctx, inodes, fn)
}

// WalkInodes is walk for files with these inode numbers, or names with them; nil: all.
func (s *Files) WalkInodes(ctx context.Context, inodes map[uint64]bool, fn func(Ref) error) error {
	var errs []error
	for _, dir := range s.walkOrder() {
		err := s.refs(ctx, dir, func(r Ref) error {
			n, ok := postoffice.ParseName(r.name)
			if inodes != nil && !inodes[r.ino] && !(ok && inodes[n.Ino]) {
				return nil
			}
			if dir == postoffice.Transport {
				if _, err := s.Find(postoffice.Queue, n); err == nil {
					return nil // it was met in queue/
				}
			}
			return fn(r)
		})
		if err != nil && !errors.Is(err, ErrListing) {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// refs calls fn with each name in a directory that may be a message.
func (s *Files) refs(ctx context.Context, dir string, fn func(Ref) error) error {
	return s.walk(dir, func(r Ref, kind fs.FileMode) error {
		if kind != 0 && kind != fs.ModeIrregular {
			return nil
		}
		if _, ok := postoffice.ParseName(r.name); !ok && isHashed(dir) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return fn(r)
	}, nil)
}

// Load makes a message of a name; nil if it is none that waits, ErrMoved if it has gone
// on.
func (s *Spool) Load(r Ref) (*Message, error) { return s.loadAny(r, false) }

// loadAny is load that, if it is asked to, takes a copy for the postmaster for a message.
func (s *Spool) loadAny(r Ref, copies bool) (*Message, error) {
	if r.dir == postoffice.Queue || r.dir == postoffice.Transport {
		n, _ := postoffice.ParseName(r.name)
		return s.LoadQueued(n)
	}
	f, err := s.Stat(r.dir, r.name)
	if err != nil {
		return nil, err
	}
	k := s.KindOf(f)
	if k.State == "" || k.State == StateCopy && !copies {
		return nil, nil
	}
	return s.LoadKind(f, k)
}

// Each calls fn with every message that the selector chooses, and only the recipients
// that it does. They come oldest first if there are at most SortLimit; sorted
// reports that. Directories that cannot be listed are in the error, beside the rest.
func (s *Spool) Each(ctx context.Context, sel selector.Selector, fn func(m *Message) error) (sorted bool, err error) {
	var errs []error
	visit := func(r Ref) error {
		m, err := s.Load(r)
		if errors.Is(err, ErrMoved) {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		if m == nil || !m.Choose(sel, s.Now) {
			return nil
		}
		return fn(m)
	}
	first := make([]Ref, 0, 64)
	sorted = true
	err = s.Walk(ctx, sel, func(r Ref) error {
		if sorted && len(first) < SortLimit {
			first = append(first, r)
			return nil
		}
		sorted = false
		for _, f := range first {
			if err := visit(f); err != nil {
				return err
			}
		}
		first = nil
		return visit(r)
	})
	if err != nil && !errors.Is(err, ErrListing) {
		return sorted, err
	}
	for _, f := range s.byAge(first) {
		if err := cmp.Or(ctx.Err(), visit(f)); err != nil {
			return sorted, err
		}
	}
	return sorted, errors.Join(append(errs, err)...)
}

// byAge sorts names by when their messages were accepted, by the times of their files.
func (s *Spool) byAge(list []Ref) []Ref {
	type dated struct {
		Ref
		since time.Time
	}
	all := make([]dated, 0, len(list))
	for _, r := range list {
		if f, err := s.Stat(r.dir, r.name); err == nil {
			all = append(all, dated{r, f.Info.ModTime})
		} else {
			all = append(all, dated{r, s.Now}) // load returns the error
		}
	}
	slices.SortFunc(all, func(a, b dated) int {
		return cmp.Or(a.since.Compare(b.since), strings.Compare(a.name, b.name))
	})
	for i := range all {
		list[i] = all[i].Ref
	}
	return list
}
