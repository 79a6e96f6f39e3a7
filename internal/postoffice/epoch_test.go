package postoffice

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

func overtaken(err error) bool {
	var o *OvertakenError
	return errors.As(err, &o)
}

// C5: the highest epoch counts, a claim may be repeated, and a lower one, or one of another
// node, changes nothing.
func TestC5HighestEpochCounts(t *testing.T) {
	p := newOn(t, cutfs.New(), false)
	assert.Equal(t, assert.Get(p.Epochs.Read())(t), Epoch{}, "a postoffice of one machine")
	first, second := Epoch{17, "alpha"}, Epoch{170, "beta.example"}
	for _, e := range []Epoch{first, first, second, second} {
		assert.Must(t, p.Epochs.Claim(e))
		assert.Equal(t, assert.Get(p.Epochs.Read())(t), e)
	}
	for _, e := range []Epoch{first, {169, "gamma"}, {170, "gamma"}} {
		if err := p.Epochs.Claim(e); !overtaken(err) {
			t.Errorf("%v: got %v, want overtaken", e, err)
		}
	}
	list := assert.Get(p.fs.ReadDir(Epochs))(t)
	assert.Equal(t, len(list), 1, "names")
	for _, e := range []Epoch{{}, {1, ""}, {1, "a/b"}, {1, ".hidden"}, {1, strings.Repeat("a", maxNode+1)}} {
		if p.Epochs.Claim(e) == nil {
			t.Errorf("%v was claimed", e)
		}
	}
}

// C5: a write of a node that was stopped arrives after a higher epoch was stored, and a higher
// one is stored between a claim's look and its write.
func TestC5LateEpochIsOvertaken(t *testing.T) {
	disk := cutfs.New()
	newOn(t, disk, false)
	p := assert.Get(Open(Config{FS: disk.Process()}))(t)
	other := assert.Get(Open(Config{FS: disk.Process()}))(t)
	assert.Must(t, p.Epochs.Claim(Epoch{5, "alpha"}))
	late := &between{FS: disk, before: func() { assert.Must(t, other.Epochs.Claim(Epoch{9, "beta"})) }}
	stale := assert.Get(Open(Config{FS: late}))(t)
	if err := stale.Epochs.Claim(Epoch{7, "alpha"}); !overtaken(err) {
		t.Errorf("got %v, want overtaken", err)
	}
	assert.Equal(t, assert.Get(p.Epochs.Read())(t), Epoch{9, "beta"})
}

// between calls something before it makes a file.
type between struct {
	durable.FS
	before func()
}

func (b *between) Open(name string, flag int, perm os.FileMode) (durable.File, error) {
	if strings.HasPrefix(name, Epochs+"/") && flag&os.O_CREATE != 0 {
		b.before()
	}
	return b.FS.Open(name, flag, perm)
}

// C5: wherever a claim is cut, the epoch before or the new one counts, and the new one if the
// claim was reported; the same claim can be made again.
func TestC5EveryCutKeepsAnEpoch(t *testing.T) {
	before, after := Epoch{5, "alpha"}, Epoch{12, "beta"}
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		for _, had := range []Epoch{{}, before} {
			claimed := false
			everyCut(t, 4, func() (*cutfs.FS, func()) {
				disk := cutfs.New()
				disk.SetModel(model)
				p := newOn(t, disk, false)
				if had.Number != 0 {
					assert.Must(t, p.Epochs.Claim(had))
				}
				claimed = false
				return disk, func() { claimed = p.Epochs.Claim(after) == nil }
			}, func(what string, _ cutfs.Loss, disk *cutfs.FS) {
				p := assert.Get(Open(Config{FS: disk}))(t)
				got, err := p.Epochs.Read()
				if err != nil || got != after && (claimed || got != had) {
					t.Errorf("%v, %s: got %v, %v; claimed %v", model, what, got, err, claimed)
				}
				if err := p.Epochs.Claim(after); err != nil {
					t.Errorf("%v, %s: claimed again: %v", model, what, err)
				}
			})
		}
	}
}

// C5: a name that is no epoch, or a second node with one number, is an error that names it, and
// nothing is claimed.
func TestC5DamagedEpochIsNoEpoch(t *testing.T) {
	for _, name := range []string{"x", "7", "7.", "07.alpha", "-7.alpha", "7.a b", "99999999999999999999.alpha", "8.beta", ".8.alpha"} {
		disk := cutfs.New()
		p := newOn(t, disk, false)
		assert.Must(t, p.Epochs.Claim(Epoch{8, "alpha"}))
		assert.Must(t, assert.Get(disk.Open(Epochs+"/"+name, os.O_WRONLY|os.O_CREATE, 0o600))(t).Close())
		_, err := p.Epochs.Read()
		if !errors.Is(err, ErrEpochDamaged) || !strings.Contains(err.Error(), Epochs+"/") {
			t.Errorf("%q: got %v", name, err)
		}
		if err := p.Epochs.Claim(Epoch{99, "alpha"}); !errors.Is(err, ErrEpochDamaged) {
			t.Errorf("%q: claimed: %v", name, err)
		}
	}
}

// C5: the claim of a router of an older epoch is released although the file system still has
// its lock; that of a router of this epoch is left. Without an epoch the lock decides.
func TestC5OwnersOfOlderEpochsAreDead(t *testing.T) {
	for _, c := range []struct {
		was, now uint64
		released bool
	}{{5, 9, true}, {9, 9, false}, {0, 0, false}, {0, 9, false}, {5, 0, false}} {
		t.Run(fmt.Sprintf("%d then %d", c.was, c.now), func(t *testing.T) {
			disk := cutfs.New()
			newOn(t, disk, false)
			frozen := assert.Get(Open(Config{FS: disk.Process(), Epoch: c.was}))(t)
			o := assert.Get(frozen.Owners.Take("router"))(t)
			a := submit(t, frozen, "to bond\n\n")
			assert.Get(frozen.Router.Claim(o, a.Name))(t)
			// Its process is stopped, and has all its locks.
			p := assert.Get(Open(Config{FS: disk.Process(), Epoch: c.now}))(t)
			alive := assert.Get(p.Owners.Alive(o.Number()))(t)
			assert.Equal(t, alive, !c.released, "alive")
			done := assert.Get(p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()}))(t)
			assert.Equal(t, len(done) == 1 && done[0].Action == Unclaimed, c.released, fmt.Sprint(done))
			// The number is not taken again while its file is there.
			mine := assert.Get(p.Owners.Take("router"))(t)
			if mine.Number() == o.Number() {
				t.Error("the number was taken again")
			}
		})
	}
}
