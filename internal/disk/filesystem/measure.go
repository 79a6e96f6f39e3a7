package filesystem

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// Property is something that a postoffice uses of its file system.
type Property struct {
	Name   string `json:"name"`   // one word, for programs
	Tried  string `json:"tried"`  // what was done
	Result string `json:"result"` // "yes", or what happened
	Has    bool   `json:"has"`
	Needed bool   `json:"needed"` // a postoffice cannot be here without it
	// Meaning is what depends on it, and Remedy what to do where it is missing.
	Meaning string `json:"meaning"`
	Remedy  string `json:"remedy,omitempty"`
}

// IsMissing reports whether a postoffice cannot be on the file system because of this.
func (p Property) IsMissing() bool { return p.Needed && !p.Has }

// syncs is how many times the time of fsync is measured.
const syncs = 9

// elsewhere is the remedy for what no setting mends.
const elsewhere = "use a file system that has it (docs/durability.md)"

// Measure tries what a postoffice needs of its file system, in a directory of its own in the
// first of some directories below dir in which it can make one, and removes that.
func Measure(dir string, within ...string) ([]Property, error) {
	var errs []error
	for _, sub := range within {
		top := filepath.Join(dir, sub)
		sweep(top)
		var b [16]byte
		_, _ = rand.Read(b[:]) // it never fails
		own := filepath.Join(top, ".probe."+hex.EncodeToString(b[:]))
		// Crash: an empty directory, which the next measurement removes.
		if err := os.Mkdir(own, 0o700); err != nil {
			errs = append(errs, err)
			continue
		}
		f, err := durable.NewOS(own)
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(own))
		}
		list := (&lab{fs: f}).all()
		return list, errors.Join(f.Close(), os.RemoveAll(own))
	}
	return nil, errors.Join(errs...)
}

// sweep removes the directories that killed processes have left.
func sweep(top string) {
	list, err := os.ReadDir(top)
	if err != nil {
		return
	}
	for _, e := range list {
		info, err := e.Info()
		if e.IsDir() && durable.IsProbe(e.Name()) && err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.RemoveAll(filepath.Join(top, e.Name()))
		}
	}
}

// lab is the directory of a measurement.
type lab struct {
	fs    *durable.OS
	delay time.Duration // of fsync, the median
}

// all tries everything. Nothing is synced before it is used: a crash leaves files that sweep
// removes.
func (l *lab) all() []Property {
	list := []Property{
		{Name: "exclusive", Tried: "create a file with O_EXCL twice", Needed: true, Meaning: "two processes cannot make one file"},
		{Name: "rename", Tried: "rename to another directory, and onto a file", Needed: true, Meaning: "each step of a message is one rename"},
		{Name: "rename-new", Tried: "rename with RENAME_NOREPLACE", Meaning: "without it messages are moved by link and unlink (docs/spool.md)"},
		{Name: "link", Tried: "link a file, and onto a file", Meaning: "it replaces RENAME_NOREPLACE; copies for the postmaster"},
		{Name: "exchange", Tried: "rename with RENAME_EXCHANGE", Meaning: "without it the history of a specification is not shortened"},
		{Name: "inodes", Tried: "compare inode numbers after open, rename and link", Needed: true, Meaning: "a message's name is its inode number"},
		{Name: "directory-inodes", Tried: "compare inode numbers of readdir and stat", Needed: true, Meaning: "recovery finds the names of a file by them"},
		{Name: "times", Tried: "compare the time of the last write after fsync, close and rename", Needed: true, Meaning: "a spool ID has it"},
		{Name: "modes", Tried: "set execute and sticky bit", Needed: true, Meaning: "they mark a complete message"},
		{Name: "append", Tried: "append through two descriptors in turn", Needed: true, Meaning: "histories and the ledger grow by it"},
		{Name: "flock", Tried: "lock a file through two descriptors", Needed: true, Meaning: "it shows which processes live"},
		{Name: "fsync", Tried: fmt.Sprintf("fsync a file %d times", syncs), Needed: true, Meaning: "accepted mail survives a loss of power"},
		{Name: "fsync-directory", Tried: "fsync a directory", Needed: true, Meaning: "SYNC=strict, reports, operators' commands"},
		{Name: "open-unlinked", Tried: "read a file that was removed while it was open", Needed: true, Meaning: "an inode number is not used again too early"},
		{Name: "tmpfile", Tried: "open with O_TMPFILE", Meaning: "used for mailboxes only; without it a name is used"},
	}
	tries := map[string]func() error{
		"exclusive": l.exclusive, "rename": l.rename, "rename-new": l.renameNew, "link": l.link, "exchange": l.exchange, "inodes": l.inodes,
		"directory-inodes": l.directoryInodes, "times": l.times, "modes": l.modes, "append": l.appends, "flock": l.flock,
		"fsync": l.fsync, "fsync-directory": func() error { return l.fs.SyncDir(".") }, "open-unlinked": l.openUnlinked, "tmpfile": l.tmpfile,
	}
	renames := false
	for i := range list {
		p := &list[i]
		err := tries[p.Name]()
		p.Has, p.Result = err == nil, "yes"
		if err != nil {
			p.Result = reason(err)
		}
		switch p.Name {
		case "rename-new":
			renames = p.Has
		case "link":
			p.Needed = !renames
		case "fsync":
			if p.Has {
				p.Result = fmt.Sprintf("yes, %.1f ms", float64(l.delay.Microseconds())/1000)
			}
		}
		if p.IsMissing() {
			p.Remedy = elsewhere
		}
	}
	// What a disk reports that fails can only be seen on one that does.
	return append(list, Property{Name: "fsync-errors", Tried: "not tried: it needs a disk that fails", Result: "unknown", Has: true,
		Meaning: "an error of the disk must reach fsync (docs/durability.md)"})
}

// reason shortens an error: its names are those of files that exist no more.
func reason(err error) string {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return unix.ErrnoName(errno) + ": " + errno.Error()
	}
	return err.Error()
}

// file makes an empty file.
func (l *lab) file(name string) (durable.File, error) {
	// Crash: see all.
	return l.fs.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// files makes empty files and closes them.
func (l *lab) files(names ...string) error {
	for _, name := range names {
		f, err := l.file(name)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// want returns an error that says what was got, unless that is as wanted.
func want(err, wanted error, what string) error {
	if errors.Is(err, wanted) {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %v", what, err, wanted)
}

func (l *lab) exclusive() error {
	if err := l.files("exclusive"); err != nil {
		return err
	}
	f, err := l.file("exclusive")
	if err == nil {
		err = f.Close()
	}
	return want(err, fs.ErrExist, "the second O_EXCL")
}

func (l *lab) rename() error {
	if err := errors.Join(l.fs.Mkdir("from", 0o700), l.fs.Mkdir("to", 0o700), l.files("from/a", "from/b")); err != nil {
		return err
	}
	a, err := l.fs.Stat("from/a")
	if err != nil {
		return err
	}
	// Crash: see all.
	if err := errors.Join(l.fs.Rename("from/a", "to/a"), l.fs.Rename("to/a", "from/b")); err != nil {
		return err
	}
	b, err := l.fs.Stat("from/b")
	if err == nil && (a.Ino != b.Ino || b.Nlink != 1) {
		err = errors.New("the new name is another file's")
	}
	_, gone := l.fs.Stat("to/a")
	return errors.Join(err, want(gone, fs.ErrNotExist, "the old name"))
}

func (l *lab) renameNew() error {
	if err := l.files("new1", "new2"); err != nil {
		return err
	}
	taken := want(l.fs.RenameNew("new1", "new2"), fs.ErrExist, "rename onto a file")
	return errors.Join(l.fs.RenameNew("new1", "new3"), taken)
}

func (l *lab) link() error {
	return durable.ProbeLink(l.fs, ".")
}

func (l *lab) exchange() error {
	if err := l.files("swap1", "swap2"); err != nil {
		return err
	}
	return l.fs.Exchange("swap1", "swap2")
}

// inodes has a file opened, renamed and linked, beside another file.
func (l *lab) inodes() error {
	if err := l.files("ino1", "ino2"); err != nil {
		return err
	}
	first, err := l.fs.Stat("ino1")
	if err != nil {
		return err
	}
	other, err := l.fs.Stat("ino2")
	if err == nil && other.Ino == first.Ino {
		err = errors.New("two files have one inode number")
	}
	if err != nil {
		return err
	}
	if err := l.fs.Rename("ino1", "ino3"); err != nil {
		return err
	}
	if err := l.fs.Link("ino3", "ino4"); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EPERM) {
		return err
	}
	for _, name := range []string{"ino3", "ino4", "ino3"} {
		f, err := l.fs.Open(name, os.O_RDONLY, 0)
		if errors.Is(err, fs.ErrNotExist) && name == "ino4" {
			continue // there is no link
		}
		if err != nil {
			return err
		}
		opened, err := f.Stat()
		named, nerr := l.fs.Stat(name)
		if err = errors.Join(err, nerr, f.Close()); err != nil {
			return err
		}
		if opened.Ino != first.Ino || named.Ino != first.Ino || opened.Dev != first.Dev {
			return fmt.Errorf("it was %d, then %d by name and %d when open", first.Ino, named.Ino, opened.Ino)
		}
	}
	return nil
}

func (l *lab) directoryInodes() error {
	if err := errors.Join(l.fs.Mkdir("list", 0o700), l.files("list/a", "list/b", "list/c")); err != nil {
		return err
	}
	entries, err := l.fs.ReadDir("list")
	if err == nil && len(entries) != 3 {
		err = fmt.Errorf("%d of 3 names are listed", len(entries))
	}
	for _, e := range entries {
		info, serr := l.fs.Stat("list/" + e.Name)
		if serr == nil && info.Ino != e.Ino {
			serr = fmt.Errorf("readdir has %d, stat has %d", e.Ino, info.Ino)
		}
		if err == nil {
			err = serr
		}
	}
	return err
}

func (l *lab) times() error {
	f, err := l.file("time")
	if err != nil {
		return err
	}
	_, err = f.Write([]byte("text"))
	err = errors.Join(err, f.Chmod(0o700), f.Sync())
	before, serr := f.Stat()
	if err = errors.Join(err, serr, f.Close(), l.fs.Rename("time", "time2")); err != nil {
		return err
	}
	after, err := l.fs.Stat("time2")
	if err == nil && (!after.ModTime.Equal(before.ModTime) || after.Size != 4) {
		err = fmt.Errorf("%v became %v", before.ModTime, after.ModTime)
	}
	return err
}

func (l *lab) modes() error {
	f, err := l.file("mode")
	if err != nil {
		return err
	}
	const message = 0o700 | fs.ModeSticky
	if err := errors.Join(f.Chmod(message), f.Close(), l.fs.Mkdir("public", 0o733|fs.ModeSticky)); err != nil {
		return err
	}
	for name, mode := range map[string]fs.FileMode{"mode": message, "public": 0o733 | fs.ModeSticky | fs.ModeDir} {
		info, err := l.fs.Stat(name)
		if err != nil {
			return err
		}
		if info.Mode != mode {
			return fmt.Errorf("%v became %v", mode, info.Mode)
		}
	}
	return nil
}

func (l *lab) appends() error {
	a, err := l.file("append")
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := l.fs.Open("append", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	for _, f := range []durable.File{a, b, a, b} {
		if _, err := f.Append([]byte("line\n")); err != nil {
			return err
		}
	}
	text := make([]byte, 40)
	n, _ := a.ReadAt(text, 0) // it ends before
	if !bytes.Equal(text[:n], bytes.Repeat([]byte("line\n"), 4)) {
		return fmt.Errorf("the file has %q", text[:n])
	}
	return nil
}

func (l *lab) flock() error {
	a, err := l.file("flock")
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := l.fs.Open("flock", os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	var got []bool
	for _, try := range []func() (bool, error){a.TryLock, b.TryLock, b.TryShare, a.TryShare, b.TryShare, b.TryLock} {
		ok, err := try()
		if err != nil {
			return err
		}
		got = append(got, ok)
	}
	if !slices.Equal(got, []bool{true, false, false, true, true, false}) {
		return fmt.Errorf("exclusive and shared locks were given as %v", got)
	}
	if err := a.Unlock(); err != nil {
		return err
	}
	if ok, err := b.TryLock(); err != nil || !ok {
		return fmt.Errorf("a lock was not given when it was free: %v", err)
	}
	return nil
}

func (l *lab) fsync() error {
	f, err := l.file("fsync")
	if err != nil {
		return err
	}
	defer f.Close()
	var took []time.Duration
	for range syncs {
		began := time.Now()
		_, err := f.Append([]byte(strings.Repeat("x", 4096)))
		if err = errors.Join(err, f.Sync()); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	l.delay = took[len(took)/2]
	return nil
}

func (l *lab) openUnlinked() error {
	f, err := l.file("unlinked")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write([]byte("text")); err != nil {
		return err
	}
	// Crash: see all.
	if err := l.fs.Remove("unlinked"); err != nil {
		return err
	}
	text := make([]byte, 4)
	_, err = f.ReadAt(text, 0)
	return err
}

func (l *lab) tmpfile() error {
	fd, err := unix.Open(l.fs.Dir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
