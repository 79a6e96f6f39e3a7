// Package durabletest is the suite that every durable.FS must pass: what the
// pipeline relies on, and nothing that only one of them does (K1).
//
// It owns nothing; each case works in the empty FS that it is given.
//
// Diagnostics: failures of testing.T.
package durabletest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// Run runs the suite; fresh makes an empty FS.
func Run(t *testing.T, fresh func(t *testing.T) durable.FS) {
	cases := map[string]func(*testing.T, durable.FS){
		"a file holds what was written":              filesHoldWhatWasWritten,
		"reads end with EOF":                         readsEndWithEOF,
		"O_EXCL makes one file":                      exclusiveCreation,
		"O_APPEND writes at the end":                 appendWritesAtEnd,
		"Append and WriteAt in turn":                 appendsBesideMarks,
		"O_TRUNC empties":                            truncationEmpties,
		"access modes are kept":                      accessModes,
		"missing names":                              missingNames,
		"rename replaces":                            renameReplaces,
		"RenameNew does not replace":                 renameNewKeepsTarget,
		"Exchange swaps two files":                   exchangeSwaps,
		"rename keeps inode and modification time":   renameKeepsIdentity,
		"the time of the last write can be set":      modTimeCanBeSet,
		"a link is a second name":                    linkIsSecondName,
		"a removed file lives while it is open":      removedFileLivesWhileOpen,
		"remove is for files":                        removeIsForFiles,
		"mkdir has exactly the mode":                 mkdirHasExactMode,
		"chmod changes the mode alone":               chmodChangesMode,
		"readdir lists names, inodes and types":      readDirTellsAll,
		"readdir of many names":                      readDirOfMany,
		"stat describes":                             statDescribes,
		"sync of files and directories":              syncWorks,
		"a closed file errs":                         closedFileErrs,
		"flock excludes and ends":                    flockExcludes,
		"flock is shared":                            flockIsShared,
		"a flock is waited for":                      flockIsWaitedFor,
		"a lock excludes and goes":                   lockExcludes,
		"a lock file that was left is taken":         leftLockFileIsTaken,
		"a lock is never held twice under unlinking": lockIsNeverHeldTwice,
		"appending writers do not mix":               appendersDoNotMix,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) { run(t, fresh(t)) })
	}
}

func write(t *testing.T, f durable.FS, name, text string) {
	t.Helper()
	file, err := f.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	assert.Must(t, err)
	_, err = io.WriteString(file, text)
	assert.Must(t, err)
	assert.Must(t, file.Close())
}

func read(t *testing.T, f durable.FS, name string) string {
	t.Helper()
	file, err := f.Open(name, os.O_RDONLY, 0)
	assert.Must(t, err)
	b, err := io.ReadAll(file)
	assert.Must(t, err)
	assert.Must(t, file.Close())
	return string(b)
}

// refused checks an error's kind and that it names the name and the operation.
func refused(t *testing.T, what string, err, want error, name string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
		return
	}
	perr, lerr := (*fs.PathError)(nil), (*os.LinkError)(nil)
	switch {
	case errors.As(err, &perr):
		if perr.Op == "" || !bytes.HasSuffix([]byte(perr.Path), []byte(name)) {
			t.Errorf("%s: got %+v, want operation and %s", what, perr, name)
		}
	case errors.As(err, &lerr):
		if lerr.Op == "" || !bytes.HasSuffix([]byte(lerr.New), []byte(name)) && !bytes.HasSuffix([]byte(lerr.Old), []byte(name)) {
			t.Errorf("%s: got %+v, want operation and %s", what, lerr, name)
		}
	default:
		t.Errorf("%s: got %T, want a path or link error", what, err)
	}
}

func filesHoldWhatWasWritten(t *testing.T, f durable.FS) {
	file, err := f.Open("x", os.O_RDWR|os.O_CREATE, 0o600)
	assert.Must(t, err)
	for _, s := range []string{"one", "", "two", "three"} {
		n, err := io.WriteString(file, s)
		if n != len(s) || err != nil {
			t.Errorf("write %q: got %d, %v", s, n, err)
		}
	}
	n, err := file.WriteAt([]byte("TWO"), 3)
	if n != 3 || err != nil {
		t.Errorf("write at: got %d, %v", n, err)
	}
	// A gap reads as zeros; the position of Write is not moved by WriteAt.
	_, err = file.WriteAt([]byte("end"), 14)
	assert.Must(t, err)
	_, err = io.WriteString(file, "!")
	assert.Must(t, err)
	assert.Must(t, file.Sync())
	assert.Must(t, file.Close())
	assert.Equal(t, read(t, f, "x"), "oneTWOthree!\x00\x00end")
}

func readsEndWithEOF(t *testing.T, f durable.FS) {
	write(t, f, "x", "abcdef")
	file, err := f.Open("x", os.O_RDONLY, 0)
	assert.Must(t, err)
	buf := make([]byte, 4)
	tests := []struct {
		off  int64
		want string
		err  error
	}{{0, "abcd", nil}, {2, "cdef", nil}, {4, "ef", io.EOF}, {6, "", io.EOF}, {99, "", io.EOF}}
	for _, tt := range tests {
		n, err := file.ReadAt(buf, tt.off)
		if string(buf[:n]) != tt.want || err != tt.err {
			t.Errorf("read at %d: got %q, %v, want %q, %v", tt.off, buf[:n], err, tt.want, tt.err)
		}
	}
	for _, want := range []string{"abcd", "ef", ""} {
		n, err := file.Read(buf)
		if string(buf[:n]) != want || (want == "") != (err == io.EOF) {
			t.Errorf("read: got %q, %v, want %q", buf[:n], err, want)
		}
	}
	assert.Must(t, file.Close())
}

func exclusiveCreation(t *testing.T, f durable.FS) {
	file, err := f.Open("x", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	assert.Must(t, err)
	assert.Must(t, file.Close())
	_, err = f.Open("x", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	refused(t, "second creation", err, fs.ErrExist, "x")
}

func appendWritesAtEnd(t *testing.T, f durable.FS) {
	write(t, f, "x", "1\n")
	a, err := f.Open("x", os.O_WRONLY|os.O_APPEND, 0)
	assert.Must(t, err)
	b, err := f.Open("x", os.O_WRONLY|os.O_APPEND, 0)
	assert.Must(t, err)
	for i, file := range []durable.File{a, b, a, b} {
		_, err := fmt.Fprintf(file, "%d\n", i+2)
		assert.Must(t, err)
	}
	assert.Must(t, a.Close())
	assert.Must(t, b.Close())
	assert.Equal(t, read(t, f, "x"), "1\n2\n3\n4\n5\n")
}

func appendsBesideMarks(t *testing.T, f durable.FS) {
	write(t, f, "x", "1\n")
	a, err := f.Open("x", os.O_RDWR, 0)
	assert.Must(t, err)
	b, err := f.Open("x", os.O_RDWR, 0)
	assert.Must(t, err)
	for i, file := range []durable.File{a, b, b, a} {
		_, err := file.Append(fmt.Appendf(nil, "%d\n", i+2))
		assert.Must(t, err)
		_, err = file.WriteAt([]byte{byte('a' + i)}, int64(2*i))
		assert.Must(t, err)
	}
	assert.Must(t, a.Close())
	assert.Must(t, b.Close())
	assert.Equal(t, read(t, f, "x"), "a\nb\nc\nd\n5\n")
}

func truncationEmpties(t *testing.T, f durable.FS) {
	write(t, f, "x", "long")
	before, err := f.Stat("x")
	assert.Must(t, err)
	write(t, f, "x", "s")
	after, err := f.Stat("x")
	assert.Must(t, err)
	if got := read(t, f, "x"); got != "s" || before.Ino != after.Ino {
		t.Errorf("got %q, inodes %d and %d", got, before.Ino, after.Ino)
	}
}

func accessModes(t *testing.T, f durable.FS) {
	write(t, f, "x", "abc")
	file, err := f.Open("x", os.O_RDONLY, 0)
	assert.Must(t, err)
	_, err = file.Write([]byte("y"))
	refused(t, "write to a file opened for reading", err, unix.EBADF, "x")
	assert.Must(t, file.Close())
	file, err = f.Open("x", os.O_WRONLY, 0)
	assert.Must(t, err)
	_, err = file.Read(make([]byte, 1))
	refused(t, "read of a file opened for writing", err, unix.EBADF, "x")
	assert.Must(t, file.Close())
}

func missingNames(t *testing.T, f durable.FS) {
	write(t, f, "file", "")
	_, err := f.Open("x", os.O_RDONLY, 0)
	refused(t, "open", err, fs.ErrNotExist, "x")
	_, err = f.Open("d/x", os.O_WRONLY|os.O_CREATE, 0o600)
	refused(t, "create in a missing directory", err, fs.ErrNotExist, "d/x")
	_, err = f.Open("file/x", os.O_WRONLY|os.O_CREATE, 0o600)
	refused(t, "create below a file", err, unix.ENOTDIR, "file/x")
	_, err = f.Stat("x")
	refused(t, "stat", err, fs.ErrNotExist, "x")
	_, err = f.ReadDir("d")
	refused(t, "readdir", err, fs.ErrNotExist, "d")
	_, err = f.ReadDir("file")
	refused(t, "readdir of a file", err, unix.ENOTDIR, "file")
	refused(t, "remove", f.Remove("x"), fs.ErrNotExist, "x")
	refused(t, "rename", f.Rename("x", "y"), fs.ErrNotExist, "x")
	refused(t, "rename to a missing directory", f.Rename("file", "d/y"), fs.ErrNotExist, "d/y")
	refused(t, "rename without replacing", f.RenameNew("x", "y"), fs.ErrNotExist, "x")
	refused(t, "link", f.Link("x", "y"), fs.ErrNotExist, "x")
	refused(t, "mkdir", f.Mkdir("d/e", 0o700), fs.ErrNotExist, "d/e")
	refused(t, "sync of a directory", f.SyncDir("d"), fs.ErrNotExist, "d")
}

func renameReplaces(t *testing.T, f durable.FS) {
	assert.Must(t, f.Mkdir("d", 0o700))
	write(t, f, "x", "new")
	write(t, f, "d/y", "old")
	assert.Must(t, f.Rename("x", "d/y"))
	assert.Equal(t, read(t, f, "d/y"), "new")
	_, err := f.Stat("x")
	refused(t, "old name", err, fs.ErrNotExist, "x")
}

func renameNewKeepsTarget(t *testing.T, f durable.FS) {
	write(t, f, "x", "new")
	write(t, f, "y", "old")
	refused(t, "rename onto a file", f.RenameNew("x", "y"), fs.ErrExist, "y")
	assert.Equal(t, read(t, f, "x")+read(t, f, "y"), "newold")
	assert.Must(t, f.RenameNew("x", "z"))
	assert.Equal(t, read(t, f, "z"), "new")
}

func exchangeSwaps(t *testing.T, f durable.FS) {
	assert.Must(t, f.Mkdir("d", 0o700))
	write(t, f, "x", "one")
	write(t, f, "d/y", "two")
	before, err := f.Stat("x")
	assert.Must(t, err)
	if err := f.Exchange("x", "d/y"); errors.Is(err, durable.ErrNoExchange) {
		t.Skip(err)
	} else {
		assert.Must(t, err)
	}
	assert.Equal(t, read(t, f, "x")+read(t, f, "d/y"), "twoone")
	after, err := f.Stat("d/y")
	assert.Must(t, err)
	if after.Ino != before.Ino || after.Nlink != 1 {
		t.Errorf("got %+v, want %+v", after, before)
	}
	refused(t, "exchange with a missing file", f.Exchange("x", "z"), fs.ErrNotExist, "z")
	refused(t, "exchange of a missing file", f.Exchange("z", "x"), fs.ErrNotExist, "z")
	assert.Equal(t, read(t, f, "x"), "two")
}

func renameKeepsIdentity(t *testing.T, f durable.FS) {
	write(t, f, "x", "a")
	before, err := f.Stat("x")
	assert.Must(t, err)
	assert.Must(t, f.RenameNew("x", "y"))
	after, err := f.Stat("y")
	assert.Must(t, err)
	if after.Ino != before.Ino || after.Dev != before.Dev || !after.ModTime.Equal(before.ModTime) || after.Nlink != 1 {
		t.Errorf("got %+v, want %+v", after, before)
	}
}

func modTimeCanBeSet(t *testing.T, f durable.FS) {
	file, err := f.Open("x", os.O_RDWR|os.O_CREATE, 0o600)
	assert.Must(t, err)
	_, err = io.WriteString(file, "a")
	assert.Must(t, err)
	want := time.UnixMicro(1795220010123456)
	assert.Must(t, file.SetModTime(want))
	assert.Must(t, file.Chmod(0o700))
	assert.Must(t, file.Sync())
	assert.Must(t, f.RenameNew("x", "y"))
	info, err := f.Stat("y")
	assert.Must(t, err)
	if !info.ModTime.Equal(want) {
		t.Errorf("got %v, want %v", info.ModTime, want)
	}
	assert.Must(t, file.Close())
}

func linkIsSecondName(t *testing.T, f durable.FS) {
	write(t, f, "x", "a")
	assert.Must(t, f.Link("x", "y"))
	refused(t, "link onto a file", f.Link("x", "y"), fs.ErrExist, "y")
	x, err := f.Stat("x")
	assert.Must(t, err)
	y, err := f.Stat("y")
	assert.Must(t, err)
	if x.Ino != y.Ino || x.Nlink != 2 || y.Nlink != 2 {
		t.Errorf("got %+v and %+v, want one file with two names", x, y)
	}
	// Renaming one name of a file onto the other does nothing (POSIX).
	assert.Must(t, f.Rename("x", "y"))
	assert.Must(t, f.Remove("x"))
	assert.Equal(t, read(t, f, "y"), "a")
}

func removedFileLivesWhileOpen(t *testing.T, f durable.FS) {
	file, err := f.Open("x", os.O_RDWR|os.O_CREATE, 0o600)
	assert.Must(t, err)
	assert.Must(t, f.Remove("x"))
	_, err = io.WriteString(file, "abc")
	assert.Must(t, err)
	buf := make([]byte, 3)
	_, err = file.ReadAt(buf, 0)
	assert.Must(t, err)
	assert.Must(t, file.Chmod(0o700))
	assert.Must(t, file.Sync())
	info, err := file.Stat()
	assert.Must(t, err)
	write(t, f, "x", "other")
	other, err := f.Stat("x")
	assert.Must(t, err)
	if string(buf) != "abc" || info.Nlink != 0 || info.Size != 3 || other.Ino == info.Ino {
		t.Errorf("got %q, %+v, other file %+v", buf, info, other)
	}
	assert.Must(t, file.Close())
}

func removeIsForFiles(t *testing.T, f durable.FS) {
	assert.Must(t, f.Mkdir("d", 0o700))
	refused(t, "remove of a directory", f.Remove("d"), unix.EISDIR, "d")
	refused(t, "link of a directory", f.Link("d", "e"), unix.EPERM, "d")
	_, err := f.Open("d", os.O_RDWR, 0)
	refused(t, "open of a directory for writing", err, unix.EISDIR, "d")
	write(t, f, "x", "")
	refused(t, "rename of a file onto a directory", f.Rename("x", "d"), unix.EISDIR, "d")
	file, err := f.Open("d", os.O_RDONLY, 0)
	assert.Must(t, err)
	if info, err := file.Stat(); err != nil || !info.Mode.IsDir() {
		t.Errorf("got %+v, %v, want a directory", info, err)
	}
	_, err = file.Read(make([]byte, 1))
	refused(t, "read of a directory", err, unix.EISDIR, "d")
	assert.Must(t, file.Close())
}

func mkdirHasExactMode(t *testing.T, f durable.FS) {
	for _, mode := range []fs.FileMode{0o700, 0o755, 0o750, 0o777, 0o777 | fs.ModeSticky, 0o730 | fs.ModeSticky} {
		name := fmt.Sprintf("d%o", uint32(mode))
		assert.Must(t, f.Mkdir(name, mode))
		info, err := f.Stat(name)
		assert.Must(t, err)
		assert.Equal(t, info.Mode, mode|fs.ModeDir)
		refused(t, "mkdir again", f.Mkdir(name, 0o700), fs.ErrExist, name)
	}
	write(t, f, "x", "")
	refused(t, "mkdir onto a file", f.Mkdir("x", 0o700), fs.ErrExist, "x")
}

func chmodChangesMode(t *testing.T, f durable.FS) {
	file, err := f.Open("x", os.O_RDWR|os.O_CREATE, 0o600)
	assert.Must(t, err)
	_, err = io.WriteString(file, "abc")
	assert.Must(t, err)
	before, err := file.Stat()
	assert.Must(t, err)
	assert.Must(t, file.Chmod(0o700))
	after, err := f.Stat("x")
	assert.Must(t, err)
	if after.Mode != 0o700 || after.Size != 3 || !after.ModTime.Equal(before.ModTime) || after.CTime.Before(before.CTime) {
		t.Errorf("got %+v after %+v", after, before)
	}
	assert.Must(t, file.Close())
}

func readDirTellsAll(t *testing.T, f durable.FS) {
	assert.Must(t, f.Mkdir("d", 0o700))
	assert.Must(t, f.Mkdir("d/sub", 0o700))
	for _, name := range []string{"1", "..2", ".x", "a b", "ü"} {
		write(t, f, "d/"+name, "")
	}
	got, err := f.ReadDir("d")
	assert.Must(t, err)
	var names []string
	for _, e := range got {
		names = append(names, e.Name)
		info, err := f.Stat("d/" + e.Name)
		assert.Must(t, err)
		assert.Equal(t, e.Ino, info.Ino, "%s: inode", e.Name)
		if e.Type != info.Mode.Type() && e.Type != fs.ModeIrregular {
			t.Errorf("%s: got type %v, want %v", e.Name, e.Type, info.Mode.Type())
		}
	}
	slices.Sort(names)
	assert.Same(t, names, []string{"..2", ".x", "1", "a b", "sub", "ü"})
	top, err := f.ReadDir(".")
	if err != nil || len(top) != 1 || top[0].Name != "d" {
		t.Errorf("root: got %v, %v", top, err)
	}
}

func readDirOfMany(t *testing.T, f durable.FS) {
	const many = 1500
	assert.Must(t, f.Mkdir("d", 0o700))
	for i := range many {
		file, err := f.Open(fmt.Sprintf("d/%d-a-name-of-some-length", i), os.O_WRONLY|os.O_CREATE, 0o600)
		assert.Must(t, err)
		assert.Must(t, file.Close())
	}
	list, err := f.ReadDir("d")
	assert.Must(t, err)
	seen := map[string]bool{}
	for _, e := range list {
		seen[e.Name] = true
	}
	if len(list) != many || len(seen) != many {
		t.Errorf("got %d names, %d different ones, want %d", len(list), len(seen), many)
	}
}

func statDescribes(t *testing.T, f durable.FS) {
	write(t, f, "x", "abc")
	info, err := f.Stat("x")
	assert.Must(t, err)
	if info.Ino == 0 || info.Size != 3 || !info.Mode.IsRegular() || info.UID != uint32(os.Getuid()) || info.Nlink != 1 || info.ModTime.IsZero() || info.CTime.IsZero() {
		t.Errorf("got %+v", info)
	}
	file, err := f.Open("x", os.O_RDONLY, 0)
	assert.Must(t, err)
	opened, err := file.Stat()
	assert.Must(t, err)
	assert.Equal(t, opened, info, "open file")
	assert.Must(t, file.Close())
	write(t, f, "y", "")
	other, err := f.Stat("y")
	assert.Must(t, err)
	if other.Ino == info.Ino || other.Dev != info.Dev {
		t.Errorf("two files: got %+v and %+v", info, other)
	}
}

func syncWorks(t *testing.T, f durable.FS) {
	assert.Must(t, f.Mkdir("d", 0o700))
	write(t, f, "d/x", "abc")
	for _, dir := range []string{"d", "."} {
		assert.Must(t, f.SyncDir(dir))
	}
	refused(t, "SyncDir of a file", f.SyncDir("d/x"), unix.ENOTDIR, "d/x")
	file, err := f.Open("d/x", os.O_RDONLY, 0)
	assert.Must(t, err)
	assert.Must(t, file.Sync())
	assert.Must(t, file.Close())
}

func closedFileErrs(t *testing.T, f durable.FS) {
	file, err := f.Open("x", os.O_RDWR|os.O_CREATE, 0o600)
	assert.Must(t, err)
	assert.Must(t, file.Close())
	refused(t, "second close", file.Close(), fs.ErrClosed, "x")
	if _, err := file.Write([]byte("a")); err == nil {
		t.Error("write to a closed file: got no error")
	}
}
