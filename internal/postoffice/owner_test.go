package postoffice

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// The trap "pid longer than the pid field": such a process has the lowest free number.
func TestLongPidTakesAShorterNumber(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	deadOwner(t, dir, 1)
	var got []int
	for _, pid := range []int{4194303, 4194303, 999999, 1000000} {
		o := assert.Get(p.Owners.takeAny("test", pid, nil))(t)
		got = append(got, o.Number())
	}
	assert.Same(t, got, []int{2, 3, 999999, 4}, "numbers")
}

// M18: a dead owner is dead for all who look at the same time; one that seems to live
// would keep its recipients waiting until the next look, 15 s later.
func TestDeadOwnerIsDeadForAllWhoLookAtOnce(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, os.WriteFile(filepath.Join(dir, Owners, "77"), []byte("77 dead\n"), 0o644))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				if alive, err := p.Owners.Alive(77); err != nil || alive {
					t.Errorf("got alive %v, %v, want a dead owner", alive, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Sec5: the files whose locks keep a daemon from starting, or a dead one alive, are closed
// to other users, also those that an earlier version has left.
func TestSec5LocksOfDaemonsAreClosedToOthers(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	left := filepath.Join(dir, ".pid.scheduler")
	assert.Must(t, os.WriteFile(left, []byte("4711\n"), 0o644))
	release := assert.Get(p.Owners.Exclusive("scheduler"))(t)
	o := assert.Get(p.Owners.Take("test"))(t)
	for _, file := range []string{left, filepath.Join(dir, ownerFile(o.Number()))} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != durable.LockMode {
			t.Errorf("%s: got %v, %v, want mode %v", file, info.Mode(), err, durable.LockMode)
		}
	}
	if alive, err := p.Owners.Alive(o.Number()); err != nil || !alive {
		t.Errorf("got alive %v, %v, want a living owner", alive, err)
	}
	assert.NoError(t, errors.Join(release(), o.Release()))
}

// withoutInodes is a file system on which no file can be made.
type withoutInodes struct{ durable.FS }

func (w withoutInodes) Lock(name string, content []byte) (durable.Lock, error) {
	if _, err := w.Stat(name); err != nil {
		return nil, unix.ENOSPC
	}
	return w.FS.Lock(name, content)
}

// On a file system without a free inode processes start with the spare files, each with a
// number that no other has, as long as there are any; those who have ended leave no spare file.
func TestProcessesStartWithoutAFreeInode(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	assert.Must(t, p.Owners.KeepSpares())
	p.Owners.fs = withoutInodes{p.fs}
	numbers := map[int]bool{}
	for range spares {
		o := assert.Get(p.Owners.Take("test"))(t)
		if alive, err := p.Owners.Alive(o.Number()); err != nil || !alive {
			t.Errorf("owner %d: %v, %v", o.Number(), alive, err)
		}
		numbers[o.Number()] = true
		if o.Number()%2 == 0 {
			assert.Must(t, o.Leave())
		}
	}
	assert.Equal(t, len(numbers), spares)
	if _, err := p.Owners.Take("test"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without a spare file: %v", err)
	}
	for _, name := range assert.Get(p.fs.ReadDir(Owners))(t) {
		if IsSpare(name.Name) {
			t.Errorf("%s is left", name.Name)
		}
	}
}
