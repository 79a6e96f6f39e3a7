package durable_test

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/durable"
	"zmailer/internal/durable/durabletest"
)

func newOS(t *testing.T) (*durable.OS, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := durable.NewOS(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
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
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("x", filepath.Join(dir, "s")); err != nil {
		t.Fatal(err)
	}
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
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("x", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{"fifo": fs.ModeNamedPipe, "link": fs.ModeSymlink}
	list, err := f.ReadDir(".")
	if err != nil || len(list) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	for _, e := range list {
		if e.Type != want[e.Name] {
			t.Errorf("%s: got %v, want %v", e.Name, e.Type, want[e.Name])
		}
	}
}

func TestPathsStayBelowTheDirectoryWhenItIsRenamed(t *testing.T) {
	f, dir := newOS(t)
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	file, err := f.Open("x", os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + ".moved/x"); err != nil {
		t.Error(err)
	}
	if err := os.Rename(dir+".moved", dir); err != nil {
		t.Fatal(err)
	}
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
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("got %q, %v from the other process", line, err)
	}
	if _, err := f.Lock("l", []byte("mine")); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("while it lives: got %v, want ErrLocked", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
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
	if err := l.Release(); err != nil {
		t.Error(err)
	}
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
