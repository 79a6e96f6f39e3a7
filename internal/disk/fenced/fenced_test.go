package fenced_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/fenced"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/lease/leasetest"
)

func write(t *testing.T, disk durable.FS, name string) durable.File {
	t.Helper()
	f := assert.Get(disk.Open(name, os.O_RDWR|os.O_CREATE, 0o600))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestNoClusterIsTheFileSystemItself(t *testing.T) {
	below := assert.Get(durable.NewOS(t.TempDir()))(t)
	defer below.Close()
	if got := fenced.New(below, nil, fenced.Names|fenced.Content); got != durable.FS(below) {
		t.Errorf("got %T, want the file system below", got)
	}
}

// C4: without a lease no name changes, and with the guard of contents no content either; reading goes
// on.
func TestNothingChangesWithoutALease(t *testing.T) {
	dir, node := t.TempDir(), leasetest.New(t)
	below := assert.Get(durable.NewOS(dir))(t)
	defer below.Close()
	page := node.Page()
	disk := fenced.New(below, page, fenced.Names|fenced.Content)
	names := fenced.New(below, page, fenced.Names)
	a, lock := write(t, disk, "a"), assert.Get(disk.Lock("lock", []byte("1\n")))(t)
	write(t, disk, "b")
	changes := map[string]func() error{
		"rename":     func() error { return disk.Rename("a", "c") },
		"rename new": func() error { return disk.RenameNew("a", "c") },
		"exchange":   func() error { return disk.Exchange("a", "b") },
		"link":       func() error { return disk.Link("a", "c") },
		"remove":     func() error { return disk.Remove("b") },
		"remove a directory": func() error {
			return disk.(interface{ RemoveDir(name string) error }).RemoveDir("d")
		},
		"lock": func() error {
			l, err := disk.Lock("lock2", nil)
			if err == nil {
				err = l.Release()
			}
			return err
		},
		"create": func() error {
			f, err := disk.Open("e", os.O_WRONLY|os.O_CREATE, 0o600)
			if err == nil {
				err = f.Close()
			}
			return err
		},
		"write":    func() error { _, err := a.Write([]byte("x")); return err },
		"write at": func() error { _, err := a.WriteAt([]byte("x"), 0); return err },
		"append":   func() error { _, err := a.Append([]byte("x")); return err },
		"chmod":    func() error { return a.Chmod(0o640) },
	}
	list := func() (names []string) {
		for _, e := range assert.Get(os.ReadDir(dir))(t) {
			names = append(names, e.Name())
		}
		return names
	}
	before := list()
	node.Lose()
	for what, change := range changes {
		if err := change(); !errors.Is(err, lease.ErrNoLease) {
			t.Errorf("%s without a lease: got %v, want ErrNoLease", what, err)
		}
	}
	assert.Must(t, lock.Release()) // its file stays, free, as after the death of its holder
	assert.Same(t, list(), before, "names")
	assert.Equal(t, assert.Get(a.Stat())(t).Size, 0, "bytes")
	// The guard of names alone leaves the mark of a delivery, and its result, to the agents.
	f := write(t, names, "a")
	assert.Get(f.Append([]byte("x")))(t)
	if err := names.Rename("a", "c"); !errors.Is(err, lease.ErrNoLease) {
		t.Errorf("rename: got %v, want ErrNoLease", err)
	}
	node.Hold()
	fresh := fenced.New(below, node.Page(), fenced.Names|fenced.Content)
	assert.Must(t, assert.Get(fresh.Lock("lock", nil))(t).Release(), fresh.Rename("a", "c"))
	if got := list(); slices.Contains(got, "lock") || !slices.Contains(got, "c") {
		t.Errorf("under a lease: got %q", got)
	}
}
