package durable_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// other is a user that owns nothing here.
const other = 65534

// openToAll returns a directory that every user can search.
func openToAll(t *testing.T) (string, *durable.OS) {
	t.Helper()
	dir := assert.Get(os.MkdirTemp("", "lockfile"))(t)
	t.Cleanup(func() {
		assert.NoError(t, os.RemoveAll(dir))
	})
	assert.Must(t, os.Chmod(dir, 0o755))
	f := assert.Get(durable.NewOS(dir))(t)
	t.Cleanup(func() { f.Close() })
	return dir, f
}

// flockAsOther has another user try to take the flock of a file with flock(1), and keep
// it until the test ends; taken reports whether it has it.
func flockAsOther(t *testing.T, file string) (pid int, taken bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root starts processes of other users")
	}
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("flock(1) is missing")
	}
	cmd := exec.Command("flock", "-n", file, "sh", "-c", "echo taken; exec cat >/dev/null")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	in := assert.Get(cmd.StdinPipe())(t)
	out := assert.Get(cmd.StdoutPipe())(t)
	assert.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil && taken {
			t.Error(err)
		}
	})
	return cmd.Process.Pid, line == "taken\n"
}

// Sec5: another user cannot take the lock of a file that a process has made, has left, or
// that an earlier version has left with mode 0644.
func TestSec5OtherUsersCannotTakeALockFile(t *testing.T) {
	dir, f := openToAll(t)
	file := filepath.Join(dir, "l")
	assert.Must(t, os.WriteFile(file, []byte("an earlier version\n"), 0o644))
	for _, name := range []string{"l", "new"} {
		l, err := f.Lock(name, []byte("who"))
		assert.Must(t, err)
		if info, err := f.Stat(name); err != nil || info.Mode.Perm() != durable.LockMode {
			t.Errorf("%s: got %v, %v, want mode %v", name, info.Mode, err, durable.LockMode)
		}
		assert.NoError(t, l.Abandon())
		if _, taken := flockAsOther(t, filepath.Join(dir, name)); taken {
			t.Errorf("%s: another user has the lock", name)
		}
		if l, err = f.Lock(name, nil); err != nil {
			t.Errorf("%s: the next start: %v", name, err)
			continue
		}
		assert.NoError(t, l.Release())
	}
}

// Sec5: one who has held the lock since before the file was closed to others is named.
func TestSec5ForeignHolderIsNamed(t *testing.T) {
	dir, f := openToAll(t)
	file := filepath.Join(dir, "l")
	assert.Must(t, os.WriteFile(file, nil, 0o644))
	pid, taken := flockAsOther(t, file)
	if !taken {
		t.Fatal("the file is open to all and could not be locked")
	}
	_, err := f.Lock("l", nil)
	if !errors.Is(err, durable.ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(pid)) || !strings.Contains(err.Error(), strconv.Itoa(other)) {
		t.Errorf("got %v, want ErrLocked with pid %d and uid %d", err, pid, other)
	}
}

// Sec5: what is not a regular file of this user is no lock file, and is left alone.
func TestSec5ForeignLockFileIsRefused(t *testing.T) {
	for what, plant := range map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink("target", path) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"fifo":          func(path string) error { return unix.Mkfifo(path, 0o666) },
		"another's file": func(path string) error {
			if os.Geteuid() != 0 {
				return errors.ErrUnsupported
			}
			return os.WriteFile(path, nil, 0o600)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir, f := openToAll(t)
			file := filepath.Join(dir, "l")
			err := errors.Join(os.WriteFile(filepath.Join(dir, "target"), []byte("keep"), 0o600), plant(file))
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip("only root gives files away")
			}
			assert.Must(t, err)
			lock := func() error {
				_, err := f.Lock("l", []byte("who"))
				return err
			}
			if what == "another's file" {
				if err = asOther(dir, lock); err == nil {
					t.Fatal("another user's file was taken")
				}
			} else if err = lock(); err == nil {
				t.Fatal("it was taken for a lock file")
			}
			var untrusted *durable.UntrustedError
			if !errors.As(err, &untrusted) || untrusted.Path != file || untrusted.UID != uint32(os.Getuid()) {
				t.Errorf("got %v, want an UntrustedError with path and owner", err)
			}
			if b, err := os.ReadFile(filepath.Join(dir, "target")); string(b) != "keep" || err != nil {
				t.Errorf("got %q, %v, want the link's target untouched", b, err)
			}
		})
	}
}

// asOther runs f as another user, to whom the directory belongs.
func asOther(dir string, f func() error) error {
	if err := os.Chown(dir, other, other); err != nil {
		return err
	}
	if err := syscall.Seteuid(other); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, syscall.Seteuid(0))
}

// Sec5: a user who has linked a lock file to a name of their own keeps no one from
// starting: a free one is replaced, a held one stays its holder's.
func TestSec5LinkedLockFileIsReplaced(t *testing.T) {
	dir, f := openToAll(t)
	held := assert.Get(f.Lock("l", []byte("first")))(t)
	before := assert.Get(f.Stat("l"))(t)
	assert.Must(t, os.Link(filepath.Join(dir, "l"), filepath.Join(dir, "theirs")))
	if _, err := f.Lock("l", []byte("second")); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("while it is held: got %v, want ErrLocked", err)
	}
	assert.Must(t, held.Abandon())
	next := assert.Get(f.Lock("l", []byte("second")))(t)
	after, err := f.Stat("l")
	if err != nil || after.Nlink != 1 || after.Ino == before.Ino {
		t.Errorf("got %+v, %v, want another file with one link", after, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "theirs")); string(b) != "first" || err != nil {
		t.Errorf("the old file: got %q, %v, want it untouched", b, err)
	}
	assert.NoError(t, next.Release())
	if _, err := f.Stat("l"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the release: got %v, want no file", err)
	}
}

// A lock that is held is in the kernel's list, whatever other programs lock and release while it
// is read: zmctl reload told an operator that no scheduler ran.
func TestHeldLockIsListedWhileOthersComeAndGo(t *testing.T) {
	dir := t.TempDir()
	locked := func(name string) *os.File {
		f := assert.Get(os.Create(filepath.Join(dir, name)))(t)
		t.Cleanup(func() { _ = f.Close() })
		assert.Must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
		return f
	}
	held := map[string]bool{}
	for n := range 200 { // more than a page of lines
		info := assert.Get(locked(fmt.Sprint("held", n)).Stat())(t)
		held[":"+strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)] = true
	}
	var others sync.WaitGroup
	over := make(chan struct{})
	others.Go(func() {
		f := locked("other")
		for {
			select {
			case <-over:
				return
			default:
				_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
				_ = unix.Flock(int(f.Fd()), unix.LOCK_EX)
			}
		}
	})
	defer others.Wait()
	defer close(over)
	for range 100 {
		listed := map[string]bool{}
		for line := range strings.Lines(string(durable.KernelLocks())) {
			if w := strings.Fields(line); len(w) > 5 && strings.Contains(w[5], ":") {
				listed[w[5][strings.LastIndexByte(w[5], ':'):]] = true
			}
		}
		for ino := range held {
			if !listed[ino] {
				t.Fatalf("the lock of inode %s is held and not listed", ino[1:])
			}
		}
	}
}
