// Package logfile is the file that the log of several processes goes to. They write to a
// pipe, as they would to standard error, and one process copies it into the file; so the
// others need no right to the file, and one signal to one process reopens it when it was
// rotated (M42).
//
// It owns the file, which it makes and only appends to. What survives a crash: whatever
// was written; what is in the pipe when the copying process is killed is gone.
//
// Diagnostics: Open and Reopen give the errors of the file; after a Reopen that fails the
// old file stays in use. A log that cannot be written, say on a full disk, never stops
// those who write to the pipe: lines are dropped, and how many is the first line that is
// written again, log-lost.
package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Mode is the mode of a file that is made.
const Mode = 0o640

// File is an open log.
type File struct {
	path string
	own  bool
	// Lost makes the line with the number of dropped lines.
	lost func(lines int) []byte

	mu      sync.Mutex
	f       *os.File
	dropped int
	torn    bool // the file ends within a line

	in   *os.File // what others write to
	done chan struct{}
}

// Open opens a log, as OpenFile does, and starts to copy. lost makes the line that reports how
// many lines could not be written.
func Open(path string, own bool, lost func(lines int) []byte) (*File, error) {
	f, err := OpenFile(path, own)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy into the log %s: %w", path, err), f.Close())
	}
	l := &File{path: path, own: own, lost: lost, f: f, in: w, done: make(chan struct{})}
	go l.copy(r)
	return l, nil
}

// Linked is the end of the name that a log gets when somebody has given it another name.
const Linked = ".linked"

// modeOfDir is the mode of a directory that is made for a log, as those in /var/log have it.
const modeOfDir = 0o755

// Check reports why a log cannot be opened, as far as that can be seen without making it. Who
// checks may have fewer rights than who opens it.
func Check(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return &fs.PathError{Op: "open the log", Path: path, Err: unix.EISDIR}
	case err == nil || errors.Is(err, fs.ErrPermission):
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// OpenFile makes the last directory.
	above := filepath.Dir(filepath.Dir(path))
	info, err = os.Stat(above)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil
	case err == nil && !info.IsDir():
		return &fs.PathError{Op: "open the log in", Path: above, Err: unix.ENOTDIR}
	}
	return err
}

// OpenFile opens a log for append, made if it is missing, with its directory. With own it is a file that only the
// daemons write: a link, a fifo or the like is refused, and a file that has another name,
// which may be any file of the system, is renamed to PATH.linked and left alone.
func OpenFile(path string, own bool) (*os.File, error) {
	const flag = os.O_WRONLY | os.O_APPEND
	if !own {
		f, err := os.OpenFile(path, flag|os.O_CREATE, Mode)
		if errors.Is(err, fs.ErrNotExist) && os.Mkdir(filepath.Dir(path), modeOfDir) == nil {
			f, err = os.OpenFile(path, flag|os.O_CREATE, Mode)
		}
		if err != nil {
			return nil, fmt.Errorf("open the log: %w", err)
		}
		return f, nil
	}
	const tries = 10
	for range tries {
		f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		made := errors.Is(err, fs.ErrNotExist)
		if made {
			f, err = os.OpenFile(path, flag|unix.O_NOFOLLOW|os.O_CREATE|os.O_EXCL, Mode)
			if errors.Is(err, fs.ErrExist) {
				continue // another process has just made it
			}
		}
		if err != nil {
			return nil, fmt.Errorf("open the log: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return nil, errors.Join(fmt.Errorf("open the log %s: %w", path, err), f.Close())
		}
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFREG:
			return nil, errors.Join(fmt.Errorf("open the log %s: it is no regular file", path), f.Close())
		case st.Nlink == 1:
			return f, nil
		}
		if err := errors.Join(setAside(path), f.Close()); err != nil {
			return nil, fmt.Errorf("open the log: %w", err)
		}
	}
	return nil, fmt.Errorf("open the log %s: somebody gives it another name again and again", path)
}

// setAside renames a log that has another name. One that was set aside before goes: a rename
// to another name of the same file would do nothing.
func setAside(path string) error {
	// Crash: no log, as before the first start.
	if err := os.Remove(path + Linked); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(path, path+Linked); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Path returns the file's name.
func (l *File) Path() string { return l.path }

// In returns what processes write to: each whole lines, at most 4096 bytes at once, so that
// they do not mix.
func (l *File) In() *os.File { return l.in }

// Reopen goes on in the file that has the name now. The old one ends with a whole line.
func (l *File) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, err := OpenFile(l.path, l.own)
	if err != nil {
		return err
	}
	old := l.f
	l.f, l.torn = next, false
	// A background process has the log as its own outputs, for what it says when it crashes.
	for fd := 1; fd <= 2; fd++ {
		if same(old, fd) {
			err = errors.Join(err, unix.Dup3(int(next.Fd()), fd, 0))
		}
	}
	if err = errors.Join(err, old.Close()); err != nil {
		return fmt.Errorf("reopen the log %s: %w", l.path, err)
	}
	return nil
}

// same reports whether a descriptor is this file.
func same(f *os.File, fd int) bool {
	var a, b unix.Stat_t
	return unix.Fstat(int(f.Fd()), &a) == nil && unix.Fstat(fd, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// closing is how long Close waits for others who have the pipe.
const closing = time.Second

// Close copies what is in the pipe, and ends. Processes that have the pipe still may
// lose what they write from now on.
func (l *File) Close() error {
	err := l.in.Close()
	limit := time.NewTimer(closing)
	defer limit.Stop()
	select {
	case <-l.done:
	case <-limit.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(err, l.f.Close())
}

// copy takes the pipe's lines until it has no writer.
func (l *File) copy(r *os.File) {
	defer close(l.done)
	defer r.Close()
	b := make([]byte, 64<<10)
	kept := 0 // bytes of a line that has not ended
	for {
		n, err := r.Read(b[kept:])
		kept += n
		// A line is not parted by Reopen, unless it is longer than any of ours.
		end := bytes.LastIndexByte(b[:kept], '\n') + 1
		if end == 0 && kept == len(b) || err != nil {
			end = kept
		}
		l.write(b[:end])
		kept = copy(b, b[end:kept])
		if err != nil {
			return // io.EOF; a pipe gives no other that could be mended
		}
	}
}

// write appends lines, or counts them as lost.
func (l *File) write(lines []byte) {
	if len(lines) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped > 0 {
		if l.put(l.lost(l.dropped)) != nil {
			l.dropped += count(lines)
			return
		}
		l.dropped = 0
	}
	n, err := l.f.Write(lines)
	if err != nil {
		l.torn = n > 0 && lines[n-1] != '\n'
		l.dropped += count(lines[n:])
	}
}

// put writes a line, behind the end of one that was cut off.
func (l *File) put(line []byte) error {
	if l.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := l.f.Write(line)
	if n > 0 {
		l.torn = line[n-1] != '\n'
	}
	return err
}

// count returns how many lines there are, also of one without an end.
func count(lines []byte) int {
	n := bytes.Count(lines, []byte("\n"))
	if len(lines) > 0 && lines[len(lines)-1] != '\n' {
		n++
	}
	return n
}
