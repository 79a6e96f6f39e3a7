// Package view reads a postoffice and returns what it holds as Go values: messages with the
// state of each recipient, why one waits and what happens to it next, its history, the files
// of each directory, alarms, and what a running scheduler answers. zmctl, zmweb and zmotlp
// print or serve these values; nothing is printed here.
//
//	s := view.New(po, time.Now())
//	_, err := s.Each(ctx, selector.Selector{}, func(m *view.Message) error {
//		return show(m) // with those of its recipients that the selector chooses
//	})
//	why, err := view.NewExplainer(s, settings).Why(ctx, dir, id)
//
// It writes nothing, takes no lock on a message, and keeps no state between calls, so a
// crash cannot harm anything.
//
// Diagnostics: ErrMoved means that a file was renamed to its next state while it was being read,
// ErrListing that a directory could not be listed while the others were, ErrNoScheduler that
// no scheduler answers. What is wrong with one message is its Problem, not an error.
package view

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
)

// Files reads the directories and files of a postoffice. It takes a name that is gone for a
// file that has gone on to its next state.
type Files struct {
	PO   *postoffice.PostOffice
	FS   durable.FS
	Now  time.Time
	Seen func() // nil, or called for each file that is listed

	suspensions     []*suspension.Suspension // in force, see Suspended
	suspensionsRead bool
}

// File is a name in one of the postoffice's directories.
type File struct {
	Dir  string // top directory: "queue"
	Name string // below it, with hash directories: "A/123-45"
	Info durable.Info
}

func (f File) Path() string { return f.Dir + "/" + f.Name }

// ErrMoved means that a file went on while we looked.
var ErrMoved = errors.New("it has moved on")

func moved(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrMoved
	}
	return err
}

// Stat describes a name; ErrMoved if it is not there.
func (s *Files) Stat(dir, name string) (File, error) {
	info, err := s.FS.Stat(dir + "/" + name)
	if err != nil {
		return File{}, moved(err)
	}
	return File{dir, name, info}, nil
}

// Exists reports whether a path of the postoffice exists.
func (s *Files) Exists(name string) bool {
	_, err := s.FS.Stat(name)
	return err == nil
}

// RouterDirs returns the directories that routers take mail from, router/ first.
func (s *Files) RouterDirs() []string {
	dirs, err := s.PO.Router.Dirs()
	if err != nil {
		return []string{postoffice.Router} // listing it returns the error
	}
	return dirs
}

// List returns every name in a directory, those in hash directories of queue/ and
// transport/ with them, in no order. Hash directories themselves are not listed.
func (s *Files) List(dir string) ([]File, error) {
	var list []File
	err := s.EachFile(dir, func(f File) { list = append(list, f) })
	return list, err
}

// EachFile is List that holds no more than a part of the directory.
func (s *Files) EachFile(dir string, fn func(f File)) error {
	return s.walk(dir, func(r Ref, _ fs.FileMode) error {
		f, err := s.Stat(dir, r.name)
		if err == nil {
			if s.Seen != nil {
				s.Seen()
			}
			fn(f)
		}
		return UnlessMoved(err)
	}, nil)
}

// EachHashDir calls fn for the hash directories of queue/ or transport/. What cannot be
// listed is reported where its files are listed, or it is gone.
func (s *Files) EachHashDir(dir string, fn func(f File)) {
	_ = s.walk(dir, func(Ref, fs.FileMode) error { return nil }, func(sub string) {
		if f, err := s.Stat(dir, sub); err == nil {
			fn(f)
		}
	})
}

// ErrListing is about one directory; the others are listed.
var ErrListing = errors.New("its files are missing here")

// walk calls name with each name in a directory and in its hash directories, and its type, which
// may be unknown; and hash, unless it is nil, with each hash directory. An error of name ends
// it. Directories that cannot be listed are in the error, as ErrListing; the rest is walked.
func (s *Files) walk(dir string, name func(r Ref, kind fs.FileMode) error, hash func(sub string)) error {
	levels := 0
	if isHashed(dir) {
		levels = 2
	}
	return s.walkBelow(dir, "", levels, name, hash)
}

func (s *Files) walkBelow(dir, sub string, levels int, name func(r Ref, kind fs.FileMode) error, hash func(sub string)) error {
	var deeper []string
	inner := error(nil)
	err := durable.ReadDirFunc(s.FS, path.Join(dir, sub), func(part []durable.Entry) error {
		for _, e := range part {
			if levels > 0 && isHashDir(e.Name) && (e.Type.IsDir() || e.Type == fs.ModeIrregular) {
				deeper = append(deeper, path.Join(sub, e.Name))
			} else if inner = name(Ref{dir, path.Join(sub, e.Name), e.Ino}, e.Type); inner != nil {
				return inner
			}
		}
		return nil
	})
	switch {
	case inner != nil:
		return inner
	case err != nil && sub != "" && errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("list %s: %w; %w", path.Join(dir, sub), err, ErrListing)
	}
	var errs []error
	for _, sub := range deeper {
		if hash != nil {
			hash(sub)
		}
		err := s.walkBelow(dir, sub, levels-1, name, hash)
		if err != nil && !errors.Is(err, ErrListing) {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func isHashed(dir string) bool { return dir == postoffice.Queue || dir == postoffice.Transport }

func isHashDir(s string) bool { return len(s) == 1 && s[0] >= 'A' && s[0] <= 'Z' }

// Open opens a file for reading; ErrMoved if it is not there.
func (s *Files) Open(f File) (durable.File, error) {
	if !f.Info.Mode.IsRegular() {
		return nil, fmt.Errorf("open %s: not a regular file", f.Path())
	}
	h, err := s.FS.Open(f.Path(), os.O_RDONLY, 0)
	if err != nil {
		return nil, moved(err)
	}
	return h, nil
}

// maxSpec is the largest work specification that is read, in bytes.
const maxSpec = 64 << 20

// Read reads a whole file of at most maxSpec bytes.
func (s *Files) Read(f File) ([]byte, error) {
	h, err := s.Open(f)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	b, err := io.ReadAll(io.LimitReader(h, maxSpec+1))
	if err == nil && len(b) > maxSpec {
		err = fmt.Errorf("read %s: more than %d bytes", f.Path(), maxSpec)
	}
	return b, err
}
