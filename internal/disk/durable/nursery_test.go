package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// searching is a file system on which new files begin in the nursery.
func searching(t *testing.T) *OS {
	t.Helper()
	o, err := NewOS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	o.storage = func() storage { return storage{searches: true} }
	o.Nurse()
	return o
}

// A user's mailbox has a directory more otherwise.
func TestFilesAreNursedWhereThatIsWanted(t *testing.T) {
	o := searching(t)
	o.nursery.wanted = false
	if err := made(o, "a"); err != nil || len(o.begun(t)) > 0 {
		t.Errorf("got %v, and %q", err, o.begun(t))
	}
}

const create = os.O_RDWR | os.O_CREATE | os.O_EXCL

// made creates a file and gives its error.
func made(o *OS, name string) error {
	f, err := o.Open(name, create, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(name))
	return errors.Join(err, f.Close())
}

func (o *OS) begun(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(o.dir, Nursery, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestFileFromTheNurseryIsLikeAnother(t *testing.T) {
	o := searching(t)
	if err := made(o, "a"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(o.dir, "a")); err != nil || string(b) != "a" {
		t.Errorf("got %q, %v", b, err)
	}
	if info, err := o.Stat("a"); err != nil || info.Mode != 0o640 || info.Nlink != 1 {
		t.Errorf("got %v, %d names, %v", info.Mode, info.Nlink, err)
	}
	if len(o.begun(t)) != 1 {
		t.Errorf("it did not begin in the nursery: %q", o.begun(t))
	}
	if err := made(o, "a"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that is taken: got %v", err)
	}
	if err := made(o, "none/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: got %v", err)
	}
}

func TestNurseryIsMadeAnew(t *testing.T) {
	o := searching(t)
	if err := os.MkdirAll(filepath.Join(o.dir, Nursery, "1.left"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A process was killed between the two calls.
	if err := os.WriteFile(filepath.Join(o.dir, Nursery, "1.left", "77"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := ""
	for i := range 4 {
		if err := made(o, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		list := o.begun(t)
		switch i {
		case 0:
			if len(list) != 1 || filepath.Base(list[0]) == "1.left" {
				t.Fatalf("at first: %q", list)
			}
			first = list[0]
			o.nursery.left = 0 // the block group is full
		case 1:
			if len(list) != 1 || list[0] == first {
				t.Fatalf("then: %q, before %s", list, first)
			}
			if err := os.Remove(list[0]); err != nil { // another process tidies up
				t.Fatal(err)
			}
		case 2:
			if err := os.RemoveAll(filepath.Join(o.dir, Nursery)); err != nil {
				t.Fatal(err)
			}
			o.nursery.left = 0
		}
	}
	if len(o.begun(t)) != 1 {
		t.Errorf("it was not made again: %q", o.begun(t))
	}
}

// Where it cannot be, files begin as they always did.
func TestFilesBeginWithoutANursery(t *testing.T) {
	o := searching(t)
	if err := os.WriteFile(filepath.Join(o.dir, Nursery), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := made(o, name); err != nil {
			t.Error(err)
		}
	}
}

func TestManyBeginAtOnce(t *testing.T) {
	o := searching(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 50 {
				if k%20 == 19 {
					o.nursery.mu.Lock()
					o.nursery.left = 0
					o.nursery.mu.Unlock()
				}
				if err := made(o, fmt.Sprintf("%d.%d", i, k)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if list, err := filepath.Glob(filepath.Join(o.dir, "[0-9].*")); err != nil || len(list) != 8*50 {
		t.Errorf("got %d files, %v", len(list), err)
	}
}
