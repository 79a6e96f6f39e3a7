package durable_test

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/durabletest"
	"zmailer/internal/run/assert"
)

func newOS(t *testing.T) (*durable.OS, string) {
	t.Helper()
	dir := t.TempDir()
	f := assert.Get(durable.NewOS(dir))(t)
	t.Cleanup(func() {
		assert.NoError(t, f.Close())
	})
	return f, dir
}

// K1: the real file system passes the suite, under an umask that would take bits
// from what it makes.
func TestOSPassesTheSuite(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	durabletest.Run(t, func(t *testing.T) durable.FS {
		f, _ := newOS(t)
		return f
	})
}

func TestSymbolicLinksAreNotFollowed(t *testing.T) {
	f, dir := newOS(t)
	assert.Must(t, os.WriteFile(filepath.Join(dir, "x"), []byte("a"), 0o600))
	assert.Must(t, os.Symlink("x", filepath.Join(dir, "s")))
	if _, err := f.Open("s", os.O_RDONLY, 0); !errors.Is(err, unix.ELOOP) {
		t.Errorf("open: got %v, want ELOOP", err)
	}
	if info, err := f.Stat("s"); err != nil || info.Mode.Type() != fs.ModeSymlink {
		t.Errorf("stat: got %+v, %v, want a symbolic link", info, err)
	}
	if _, err := f.Lock("s", nil); !errors.Is(err, unix.ELOOP) {
		t.Errorf("lock: got %v, want ELOOP", err)
	}
}

func TestSpecialFilesAreToldApart(t *testing.T) {
	f, dir := newOS(t)
	assert.Must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	assert.Must(t, os.Symlink("x", filepath.Join(dir, "link")))
	want := map[string]fs.FileMode{"fifo": fs.ModeNamedPipe, "link": fs.ModeSymlink}
	list, err := f.ReadDir(".")
	if err != nil || len(list) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	for _, e := range list {
		assert.Equal(t, e.Type, want[e.Name], e.Name)
	}
}

func TestPathsStayBelowTheDirectoryWhenItIsRenamed(t *testing.T) {
	f, dir := newOS(t)
	assert.Must(t, os.Rename(dir, dir+".moved"))
	file := assert.Get(f.Open("x", os.O_WRONLY|os.O_CREATE, 0o600))(t)
	assert.Must(t, file.Close())
	if _, err := os.Stat(dir + ".moved/x"); err != nil {
		t.Error(err)
	}
	assert.Must(t, os.Rename(dir+".moved", dir))
}

func TestMissingRootIsNamed(t *testing.T) {
	_, err := durable.NewOS("/nonexistent/postoffice")
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "open /nonexistent/postoffice: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

// A lock lives as long as its process: a second process is refused while the first
// lives, and gets it when that one was killed, though the file is still there.
func TestLockEndsWithItsProcess(t *testing.T) {
	if dir := os.Getenv("DURABLE_TEST_LOCK"); dir != "" {
		holdLock(dir)
	}
	f, dir := newOS(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLockEndsWithItsProcess$")
	cmd.Env = append(os.Environ(), "DURABLE_TEST_LOCK="+dir)
	out := assert.Get(cmd.StdoutPipe())(t)
	assert.Get(cmd.StdinPipe())(t)
	assert.Must(t, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("got %q, %v from the other process", line, err)
	}
	if _, err := f.Lock("l", []byte("mine")); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("while it lives: got %v, want ErrLocked", err)
	}
	assert.Must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("the other process was not killed")
	}
	if _, err := f.Stat("l"); err != nil {
		t.Errorf("the lock file: %v", err)
	}
	l, err := f.Lock("l", []byte("mine"))
	if err != nil {
		t.Fatalf("after its death: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "l")); string(got) != "mine" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	assert.NoError(t, l.Release())
}

// holdLock is the other process: it ends when it is killed or its test ends.
func holdLock(dir string) {
	f, err := durable.NewOS(dir)
	if err == nil {
		_, err = f.Lock("l", []byte("theirs"))
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("locked\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the pipe ends
	os.Exit(0)
}

// K12: on a full disk a lock can still be had, without what its file says: who makes
// room there must be able to start. Where not even the file can be made nothing of it
// is left.
func TestFullDiskHasLocks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=10"); err != nil {
		t.Skipf("a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	defer f.Close()
	err = os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: got %v, want ENOSPC", err)
	}
	l, err := f.Lock("x", []byte("who"))
	if err != nil {
		t.Fatalf("lock on a full disk: %v", err)
	}
	if _, err := f.Lock("x", nil); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("lock again: got %v, want ErrLocked", err)
	}
	if info, err := f.Stat("x"); err != nil || info.Size != 0 {
		t.Errorf("the lock file: got %+v, %v, want it empty", info, err)
	}
	assert.NoError(t, l.Release())
	if _, err := f.Stat("x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the release: got %v, want no file", err)
	}
}

// M39: a directory is listed in parts, and each name once.
func TestDirectoryIsListedInParts(t *testing.T) {
	dir := t.TempDir()
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	defer f.Close()
	const count = 5000
	for i := range count {
		assert.Must(t, os.WriteFile(filepath.Join(dir, "a-name-that-takes-room-"+strconv.Itoa(i)), nil, 0o600))
	}
	parts, seen := 0, map[string]int{}
	err = durable.ReadDirFunc(f, ".", func(part []durable.Entry) error {
		parts++
		for _, e := range part {
			seen[e.Name]++
		}
		return nil
	})
	if err != nil || parts < 2 || len(seen) != count {
		t.Errorf("got %d names in %d parts, %v", len(seen), parts, err)
	}
	enough := errors.New("enough")
	if err := durable.ReadDirFunc(f, ".", func([]durable.Entry) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v, want the caller's error", err)
	}
}
