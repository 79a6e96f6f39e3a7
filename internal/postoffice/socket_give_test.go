package postoffice

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// Sec1: between bind(2) and the change of its mode and owner the owner of the directory puts
// something of root's under the socket's name: nothing of that changes.
func TestSec1ReplacedSocketIsNotGivenAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives away")
	}
	out := t.TempDir()
	file, socket := filepath.Join(out, "file"), filepath.Join(out, "socket")
	putFile(t, file, 0o600)
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
	l := assert.Get(ListenSocket(name, 0o660))(t)
	defer l.Close()
	if uid, gid, mode := owner(t, name); uid != giveTo || gid != giveTo || mode.Perm() != 0o660 {
		t.Errorf("the socket: got uid %d, gid %d, mode %v", uid, gid, mode)
	}
}
