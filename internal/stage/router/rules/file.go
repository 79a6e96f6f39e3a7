package rules

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"zmailer/internal/run/config"
)

// settle is how old the last change of a file must be before it is read again, so
// that one which an editor has truncated and is writing is not taken for empty.
const settle = 100 * time.Millisecond

var errNotRegular = errors.New("not a regular file")

type source struct {
	name   string // for errors
	text   string
	rights rights // of the values in it
	exists bool   // the file is there
}

func (s *source) bad(line int, reason string, err error) error {
	return &config.Error{File: s.name, Line: line, Reason: reason, Err: err}
}

// state is what a look at a file came to.
type state uint8

const (
	same      state = iota // as it was read before
	fresh                  // changed, and read
	unsettled              // changing: look again soon
)

// signature identifies a state of a file; the zero value: it is not there.
type signature struct {
	exists         bool
	dev, ino       uint64
	size           int64
	mtime          syscall.Timespec
	mode, uid, gid uint32
	rights         rights // also of the directories above
}

// watched is a file that is read again when it has changed. One goroutine at a time
// may use it.
type watched struct {
	path     string
	required bool // it must be there
	seen     signature
	gone     bool   // it was not there at the last look
	failed   string // why the last look failed
}

// read returns the file's content if it has changed since the last call, and at the
// first. A file that is not there is empty, but one that was there is believed gone
// only at the second look: it may be about to be replaced. An error is a
// *config.Error; while it lasts, further calls try again and say "same".
func (w *watched) read(now time.Time, first bool) (source, state, error) {
	s, state, err := w.look(now, first)
	if err == nil {
		w.failed = ""
		return s, state, nil
	}
	// The path is in front already.
	if perr := (*os.PathError)(nil); errors.As(err, &perr) {
		err = perr.Err
	}
	w.seen, w.gone = signature{}, false
	if !first && err.Error() == w.failed {
		return source{}, same, nil
	}
	w.failed = err.Error()
	return source{}, same, &config.Error{File: w.path, Reason: "cannot be read", Err: err}
}

func (w *watched) look(now time.Time, first bool) (source, state, error) {
	may, info, err := guarded(w.path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return source{}, same, err
	}
	sig := sign(info)
	sig.rights = may
	known := !first && w.failed == ""
	switch {
	case known && sig == w.seen:
		w.gone = false
		return source{}, same, nil
	case known && missing && !w.gone:
		w.gone = true
		return source{}, same, nil
	case missing && w.required:
		return source{}, same, err
	case missing:
		w.seen, w.gone = sig, false
		return source{name: w.path, rights: rights{uid: Nobody}}, fresh, nil
	}
	w.gone = false
	if age := now.Sub(info.ModTime()); known && age >= 0 && age < settle {
		return source{}, unsettled, nil
	}
	text, after, err := readRegular(w.path, reach{})
	if err != nil {
		return source{}, same, err
	}
	// Another file may have been put there since the owners were looked at.
	after.rights = may
	if after != sig && known {
		return source{}, unsettled, nil
	}
	if after.uid != sig.uid || after.mode != sig.mode {
		after.rights = rights{uid: Nobody, why: w.path + " was replaced while it was read"}
	}
	w.seen = after
	return source{name: w.path, text: text, rights: after.rights, exists: true}, fresh, nil
}

// readRegular reads a file; the signature is that of what was read.
func readRegular(path string, r reach) (string, signature, error) {
	f, err := r.open(path)
	if err != nil {
		return "", signature{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", signature{}, err
	}
	if !info.Mode().IsRegular() {
		return "", signature{}, errNotRegular
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return "", signature{}, err
	}
	if info, err = f.Stat(); err != nil {
		return "", signature{}, err
	}
	return string(b), sign(info), nil
}

func sign(info fs.FileInfo) signature {
	if info == nil {
		return signature{}
	}
	st := info.Sys().(*syscall.Stat_t)
	return signature{
		exists: true, dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim,
		mode: st.Mode, uid: st.Uid, gid: st.Gid,
	}
}
