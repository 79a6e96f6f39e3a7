package socket

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// A socket is made in place of one that a dead process has left, and at any depth of
// directories; nothing else is replaced.
func TestSocketTakesThePlaceOfADeadOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	assert.Must(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, ".mailq")
	if _, err := Dial(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
	dead := assert.Get(Listen(path, 0o660))(t)
	assert.Must(t, dead.Close())
	if _, err := Dial(t.Context(), path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("with a dead one: %v", err)
	}
	l := assert.Get(Listen(path, 0o640))(t)
	defer func() { _ = l.Close() }()
	conn := assert.Get(Dial(t.Context(), path))(t)
	_ = conn.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o640 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	file := filepath.Join(dir, "file")
	assert.Must(t, os.WriteFile(file, []byte("x"), 0o600))
	if _, err := Listen(file, 0o660); err == nil {
		t.Error("a file was replaced")
	}
}

const giveTo = 4711

// owner returns the owner and the mode of a file.
func owner(t *testing.T, name string) (uid, gid int, mode os.FileMode) {
	t.Helper()
	info := assert.Get(os.Lstat(name))(t)
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid), info.Mode()
}

// Sec1: between bind(2) and the change of its mode and owner the owner of the directory puts
// something of root's under the socket's name: nothing of that changes.
func TestSec1ReplacedSocketIsNotGivenAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives away")
	}
	out := t.TempDir()
	file, socket := filepath.Join(out, "file"), filepath.Join(out, "socket")
	assert.Must(t, os.WriteFile(file, nil, 0o600))
	assert.Must(t, errors.Join(unix.Mknod(socket, unix.S_IFSOCK|0o600, 0), os.Chmod(socket, 0o600)))
	for what, plant := range map[string]func(name string) error{
		"a file":          func(name string) error { return os.Link(file, name) },
		"another socket":  func(name string) error { return os.Link(socket, name) },
		"a symbolic link": func(name string) error { return os.Symlink(file, name) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			assert.Must(t, os.Chown(dir, giveTo, giveTo))
			name := filepath.Join(dir, ".run.new")
			assert.Must(t, plant(name))
			if err := chownSocket(name, dir, 0o666); err == nil {
				t.Error("it is taken for the socket that was made")
			}
			for _, path := range []string{file, socket} {
				if uid, gid, mode := owner(t, path); uid != 0 || gid != 0 || mode.Perm() != 0o600 {
					t.Errorf("%s: got uid %d, gid %d, mode %v", path, uid, gid, mode)
				}
			}
		})
	}
	// One that was just made is given, with its mode.
	dir := t.TempDir()
	assert.Must(t, os.Chown(dir, giveTo, giveTo))
	name := filepath.Join(dir, ".run")
	l := assert.Get(Listen(name, 0o660))(t)
	defer l.Close()
	if uid, gid, mode := owner(t, name); uid != giveTo || gid != giveTo || mode.Perm() != 0o660 {
		t.Errorf("the socket: got uid %d, gid %d, mode %v", uid, gid, mode)
	}
}
