package cutfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/durabletest"
	"zmailer/internal/run/assert"
)

// K1: the test disk passes the suite of the real file system.
func TestCutFSPassesTheSuite(t *testing.T) {
	durabletest.Run(t, func(*testing.T) durable.FS { return New() })
}

// K1: and so it does after a restart, and for the second process on a disk.
func TestCutFSPassesTheSuiteAfterRestart(t *testing.T) {
	durabletest.Run(t, func(*testing.T) durable.FS { return New().Restart(LoseUnsynced(0)).Process() })
}

func open(t *testing.T, f durable.FS, name string, flag int) durable.File {
	t.Helper()
	file, err := f.Open(name, flag, 0o600)
	assert.Must(t, err)
	return file
}

func appendText(t *testing.T, file durable.File, text string) {
	t.Helper()
	_, err := io.WriteString(file, text)
	assert.Must(t, err)
}

// createFile makes a file with a content, not synced.
func createFile(t *testing.T, f durable.FS, name, text string) durable.File {
	t.Helper()
	file := open(t, f, name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	appendText(t, file, text)
	return file
}

// show returns a file's content, "-" if it is not there.
func show(t *testing.T, f durable.FS, name string) string {
	t.Helper()
	file, err := f.Open(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	assert.Must(t, err)
	b, err := io.ReadAll(file)
	assert.Must(t, err)
	return string(b)
}

func TestOperationAfterTheCutAndAllLaterOnesFail(t *testing.T) {
	steps := []func(f *FS) error{
		func(f *FS) error { return f.Mkdir("d", 0o700) },
		func(f *FS) error { _, err := f.Open("d/a", os.O_RDWR|os.O_CREATE, 0o600); return err },
		func(f *FS) error { return f.Link("d/a", "d/b") },
		func(f *FS) error { return f.RenameNew("d/b", "d/c") },
		func(f *FS) error { return f.SyncDir("d") },
		func(f *FS) error { return f.Remove("d/c") },
	}
	for n := range len(steps) + 1 {
		f := New()
		f.CutAfter(n)
		for i, step := range steps {
			if err := step(f); errors.Is(err, ErrCut) != (i >= n) {
				t.Errorf("cut after %d, operation %d: got %v", n, i, err)
			}
		}
		if f.Ops() != n || f.Dead() != (n < len(steps)) {
			t.Errorf("cut after %d: got %d operations, dead %v\n%s", n, f.Ops(), f.Dead(), f.Log())
		}
		if _, err := f.Stat("."); errors.Is(err, ErrCut) != f.Dead() {
			t.Errorf("cut after %d: stat: got %v", n, err)
		}
		if _, err := f.ReadDir("."); errors.Is(err, ErrCut) != f.Dead() {
			t.Errorf("cut after %d: readdir: got %v", n, err)
		}
	}
}

func TestOpenFilesOfADeadProcessErr(t *testing.T) {
	f := New()
	file := createFile(t, f, "x", "abc")
	f.Kill()
	_, readErr := file.ReadAt(make([]byte, 1), 0)
	_, writeErr := file.Write([]byte("y"))
	_, statErr := file.Stat()
	_, lockErr := file.TryLock()
	for what, err := range map[string]error{
		"read": readErr, "write": writeErr, "stat": statErr, "flock": lockErr, "wait": file.WaitLock(),
		"sync": file.Sync(), "chmod": file.Chmod(0o700), "utimes": file.SetModTime(time.Unix(1, 0)), "unlock": file.Unlock(), "close": file.Close(),
	} {
		if !errors.Is(err, ErrCut) {
			t.Errorf("%s: got %v, want ErrCut", what, err)
		}
	}
	assert.Equal(t, show(t, f.Restart(KeepAll()), "x"), "abc")
}

func TestFailedOperationsAndReadsAreNotCounted(t *testing.T) {
	f := New()
	createFile(t, f, "x", "abc")
	f.CutAfter(0)
	if err := f.Remove("y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove: got %v", err)
	}
	if err := f.Link("x", "x"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("link: got %v", err)
	}
	if got := show(t, f, "x"); got != "abc" || f.Ops() != 0 || f.Dead() {
		t.Errorf("got %q, %d operations", got, f.Ops())
	}
}

func TestWriteCanBeTorn(t *testing.T) {
	f := New()
	file := createFile(t, f, "x", "abc\n")
	f.CutInside(1)
	appendText(t, file, "def\n")
	if _, err := io.WriteString(file, "0123456789\n"); !errors.Is(err, ErrCut) {
		t.Errorf("got %v, want ErrCut", err)
	}
	assert.Equal(t, show(t, f.Restart(KeepAll()), "x"), "abc\ndef\n01234")
}

func TestLogNamesProcessNumberAndOperation(t *testing.T) {
	f := New()
	file := createFile(t, f, "x", "abc")
	assert.Must(t, file.Sync())
	other := f.Process()
	other.CutAfter(1)
	assert.Must(t, other.RenameNew("x", "y"))
	_ = other.Remove("y")
	want := []string{`1: 1 create x 600`, `1: 2 write x 0+3 "abc"`, `1: 3 fsync x`, `2: 1 rename x y`, `2: cut before: remove y`, "restart: process killed"}
	assert.Equal(t, f.Restart(KeepAll()).Log(), strings.Join(want, "\n"))
}

func TestLocksOfADeadProcessAreFree(t *testing.T) {
	f := New()
	other := f.Process()
	_, err := other.Lock("l", []byte("other"))
	assert.Must(t, err)
	mine := open(t, f, "l", os.O_RDWR)
	if ok, err := mine.TryLock(); ok || err != nil {
		t.Errorf("while it lives: got %v, %v", ok, err)
	}
	waited := make(chan error, 1)
	go func() { waited <- mine.WaitLock() }()
	other.Kill()
	select {
	case err := <-waited:
		assert.Must(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("the lock of the dead process is not free")
	}
	if f.Dead() {
		t.Error("the first process died with the second")
	}
	if _, err := f.Restart(KeepAll()).Lock("l", nil); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestWaitingProcessSeesItsOwnDeath(t *testing.T) {
	f := New()
	holder, waiter := createFile(t, f, "x", ""), open(t, f, "x", os.O_RDWR)
	assert.Must(t, holder.WaitLock())
	waited := make(chan error, 1)
	go func() { waited <- waiter.WaitLock() }()
	f.Kill()
	select {
	case err := <-waited:
		if !errors.Is(err, ErrCut) {
			t.Errorf("got %v, want ErrCut", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for ever")
	}
}

func TestInodesAreUsedAgainAndTimesAreNot(t *testing.T) {
	f := New()
	f.SetClock(func() time.Time { return time.Unix(1000, 0) })
	assert.Must(t, createFile(t, f, "x", "a").Close())
	x, err := f.Stat("x")
	assert.Must(t, err)
	assert.Must(t, f.Remove("x"))
	assert.Must(t, createFile(t, f, "y", "b").Close())
	y, err := f.Stat("y")
	assert.Must(t, err)
	if y.Ino != x.Ino || !y.ModTime.After(x.ModTime) || y.ModTime.Unix() != 1000 {
		t.Errorf("got %+v after %+v", y, x)
	}
	r := f.Restart(KeepAll())
	if again, err := r.Stat("y"); err != nil || again != y {
		t.Errorf("after a restart: got %+v, %v, want %+v", again, err, y)
	}
	assert.Must(t, createFile(t, r, "z", "").Close())
	if z, err := r.Stat("z"); err != nil || z.Ino == y.Ino {
		t.Errorf("got %+v, %v", z, err)
	}
}

func TestOpenFileKeepsItsInodeUntilItsProcessDies(t *testing.T) {
	f := New()
	createFile(t, f, "x", "a") // stays open
	x, err := f.Stat("x")
	assert.Must(t, err)
	assert.Must(t, f.Remove("x"))
	other := f.Process()
	createFile(t, other, "y", "b")
	if y, err := other.Stat("y"); err != nil || y.Ino == x.Ino {
		t.Errorf("while it is open: got %+v, %v", y, err)
	}
	f.Kill()
	createFile(t, other, "z", "c")
	if z, err := other.Stat("z"); err != nil || z.Ino != x.Ino {
		t.Errorf("after the death: got %+v, %v, want inode %d", z, err, x.Ino)
	}
}
