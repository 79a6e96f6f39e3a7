package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// filePeriod is how often a file is looked at again, at most.
	filePeriod = time.Second
	// fileSettle is how old a file's last change must be before it is read again, so
	// that one which an editor has truncated and is writing is not taken for empty.
	fileSettle = 100 * time.Millisecond
	// maxFile bounds a file that is kept in memory. Bytes.
	maxFile = 64 << 20
)

// FileOptions say how a File is read.
type FileOptions struct {
	Required bool // it must be there; else one that is not there is empty
	Secret   bool // it holds passwords: others than its owner and group must not read it
	// Directory has the file and others that need not be there; may be nil.
	Directory *Directory
	Keeper    Keeper
	Now       func() time.Time
	Log       *slog.Logger
}

// File is a file of a postmaster's beside zmailer.conf, parsed. It is read again when it
// has changed; one that turns bad is refused, once, and what was read before stays. One that
// is bad when it is opened has the content that a Keeper saved. It may be used by many
// goroutines.
type File[T any] struct {
	path  string
	parse func(name string, text []byte) (T, error)
	o     FileOptions
	stat  stat

	mu      sync.Mutex
	next    time.Time // when it is looked at again
	seen    fs.FileInfo
	absent  bool     // it was not there at the last look
	without dirState // of the directory, when it had no such name
	value   T
	failed  string // why the last look failed
}

// OpenFile reads a file for the first time. Its errors are parse's, which are to be
// *Error, or *Error for a file that cannot be read. With an error the File is there all the
// same, for who can go on with T's zero value until the file is mended.
func OpenFile[T any](path string, parse func(name string, text []byte) (T, error), o FileOptions) (*File[T], error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Required || !o.Directory.holds(path) {
		o.Directory = nil
	}
	f := &File[T]{path: path, parse: parse, o: o, next: o.Now().Add(filePeriod)}
	f.stat = func(path string) (fs.FileInfo, error) { return StatSecret(f.secrets(), path) }
	text, info, err := f.read()
	if errors.Is(err, fs.ErrNotExist) && !o.Required {
		text, info, err = nil, nil, nil
	}
	if err != nil {
		err = f.bad(err)
	} else if err = f.use(text, info); err == nil {
		f.absent = info == nil
		return f, nil
	}
	f.failed = err.Error()
	if f.useKept(err) {
		return f, nil
	}
	return f, err
}

// use takes a content if it can be used.
func (f *File[T]) use(text []byte, info fs.FileInfo) error {
	v, err := f.parse(f.path, text)
	err, warnings := Sort(err)
	if err != nil {
		return err
	}
	f.value, f.seen = v, info
	LogWarnings(f.o.Log, f.path, warnings)
	switch {
	case f.o.Keeper == nil:
	case info == nil:
		f.o.Keeper.Good(f.path, nil, 0, warnings)
	default:
		f.o.Keeper.Good(f.path, text, ownerOf(info), warnings)
	}
	return nil
}

// useKept takes the content that was saved when the file could be used last.
func (f *File[T]) useKept(reason error) bool {
	if f.o.Keeper == nil {
		return false
	}
	k := f.o.Keeper.Last(f.path)
	if k == nil {
		f.o.Keeper.Bad(f.path, reason, false)
		return false
	}
	v, err := f.parse(f.path, k.Text)
	err, _ = Sort(err)
	f.o.Keeper.Bad(f.path, reason, err == nil)
	if err != nil {
		return false
	}
	f.value = v
	f.o.Log.Error("table-refused", "file", f.path, "reason", reason, "kept", "the copy of "+k.Time.UTC().Format(time.RFC3339))
	return true
}

// Path returns the file's.
func (f *File[T]) Path() string { return f.path }

// Current returns the content of the file now.
func (f *File[T]) Current() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.o.Now()
	if left := f.next.Sub(now); left > 0 && left <= filePeriod {
		return f.value
	}
	f.next = now.Add(filePeriod)
	dir := f.o.Directory.state(now)
	if f.absent && f.seen == nil && dir == f.without && dir != (dirState{}) {
		return f.value // no name was added since
	}
	info, err := f.stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !f.o.Required:
		if f.without = (dirState{}); dir != f.without && isAbsent(f.path) {
			f.without = dir
		}
		// It may be about to be replaced: believed at the second look.
		if !f.absent {
			f.absent = true
		} else if f.seen != nil {
			f.take(nil, nil)
		}
		return f.value
	case err != nil:
		f.refuse(f.bad(err))
		return f.value
	}
	f.absent = false
	if f.failed == "" && unchanged(f.seen, info) {
		return f.value
	}
	if age := now.Sub(info.ModTime()); age >= 0 && age < fileSettle {
		f.next = now.Add(fileSettle)
		return f.value
	}
	text, info, err := f.read()
	if err != nil {
		f.refuse(f.bad(err))
		return f.value
	}
	f.take(text, info)
	return f.value
}

// take parses the file's text.
func (f *File[T]) take(text []byte, info fs.FileInfo) {
	if err := f.use(text, info); err != nil {
		f.refuse(err)
		return
	}
	f.failed = ""
	f.o.Log.Info("table-read", "file", f.path)
}

func (f *File[T]) refuse(err error) {
	if err.Error() == f.failed {
		return
	}
	f.failed = err.Error()
	if f.o.Keeper != nil {
		f.o.Keeper.Bad(f.path, err, true)
	}
	f.o.Log.Error("table-refused", "file", f.path, "reason", err, "kept", "the table as it was read before")
}

// secrets returns what opens a file with secrets; nil for others, which this process has to be
// able to read.
func (f *File[T]) secrets() Keeper {
	if f.o.Secret {
		return f.o.Keeper
	}
	return nil
}

// read never waits for a pipe's other end.
func (f *File[T]) read() ([]byte, fs.FileInfo, error) {
	r, err := OpenSecret(f.secrets(), f.path)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	info, err := r.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case info.IsDir():
		return nil, nil, fmt.Errorf("it is a directory where the file %s is expected; rename the directory", filepath.Base(f.path))
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("it is not a regular file")
	case f.o.Secret && info.Mode().Perm()&0o007 != 0:
		return nil, nil, fmt.Errorf("it holds secrets and everybody may read it: chmod o= %s", f.path)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	return text, info, err
}

// bad makes an *Error; the path is in front of it already.
func (f *File[T]) bad(err error) error {
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		err = perr.Err
	}
	return &Error{File: f.path, Reason: "cannot be read", Err: err}
}

func unchanged(a, b fs.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}
