package postoffice

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
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

// K7: wherever the power goes while a process starts with a spare file, that file is a spare one or a
// dead process's number. A number that was taken is known to be dead, whatever bears it, no one
// takes it while it is there, and the scheduler removes it and makes the spare file again.
func TestEveryCutOfATakenSpareFileLeavesASpareOrADeadNumber(t *testing.T) {
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		t.Run(model.String(), func(t *testing.T) { cutTakenSpare(t, model) })
	}
}

func cutTakenSpare(t *testing.T, model cutfs.Model) {
	taken := 0
	start := func() (*cutfs.FS, func()) {
		base := cutfs.New()
		base.SetModel(model)
		assert.Must(t, Init(base))
		p := assert.Get(Open(Config{FS: base}))(t)
		assert.Must(t, p.Owners.KeepSpares(), p.fs.SyncDir(Owners))
		disk := base.Restart(cutfs.KeepAll())
		p = assert.Get(Open(Config{FS: disk}))(t)
		p.Owners.fs = withoutInodes{disk}
		taken = 0
		return disk, func() {
			o, err := p.Owners.Take("agent")
			if err == nil {
				taken = o.Number()
			} else if !disk.Dead() {
				t.Fatalf("uncut: %v", err)
			}
		}
	}
	everyCut(t, 3, start, func(what string, _ cutfs.Loss, after *cutfs.FS) {
		p := assert.Get(Open(Config{FS: after}))(t)
		spare, numbers := 0, map[int]bool{}
		for _, e := range assert.Get(after.ReadDir(Owners))(t) {
			number, is := decimal(e.Name)
			switch n := int(number); {
			case IsSpare(e.Name):
				spare++
			case is:
				numbers[n] = true
				if alive, err := p.Owners.Alive(n); err != nil || alive {
					t.Errorf("%s: owner %d: alive %v, %v", what, n, alive, err)
				}
			default:
				t.Errorf("%s: owners/%s", what, e.Name)
			}
		}
		if spare+len(numbers) != spares || taken != 0 && !numbers[taken] {
			t.Errorf("%s: %d spare files, numbers %v; number %d was taken", what, spare, numbers, taken)
		}
		other := assert.Get(p.Owners.Take("agent"))(t)
		if numbers[other.Number()] {
			t.Errorf("%s: number %d has two owners", what, other.Number())
		}
		dead, _, err := p.Owners.Sweep(func([]byte) []int { return nil }, nil)
		assert.Must(t, err)
		_, removed, err := p.Owners.Sweep(func([]byte) []int { return nil }, dead)
		assert.Must(t, err, p.Owners.KeepSpares())
		if len(removed) != len(numbers) {
			t.Errorf("%s: %d of %d dead numbers are removed", what, len(removed), len(numbers))
		}
		for n := range spares {
			if _, err := after.Stat(spareFile(n + 1)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
