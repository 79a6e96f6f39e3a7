package postoffice

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// lockLines reads what these tests write as a lock.
func lockLines(spec []byte) []int {
	var list []int
	for line := range strings.Lines(string(spec)) {
		var n int
		if k, _ := fmt.Sscanf(line, "lock %d", &n); k == 1 {
			list = append(list, n)
		}
	}
	return list
}

// sweepOwners is two looks, some minutes apart.
func sweepOwners(p *PostOffice) ([]Recovered, error) {
	before, early, err := p.Owners.Sweep(lockLines, nil)
	if err != nil || len(early) > 0 {
		return early, err
	}
	_, done, err := p.Owners.Sweep(lockLines, before)
	return done, err
}

// K4 K9: a dead process's number is given back when nothing bears it, and not before;
// a living one's never. The trap "pid reused": until then no process takes the number.
func TestNumbersOfTheDeadAreSweptWhenNothingBearsThem(t *testing.T) {
	tests := map[string]struct {
		name, text string // a file that bears 55
		stays      bool
	}{
		"nothing bears it":               {"", "", false},
		"a claim":                        {"router/100-55", "", true},
		"a work file":                    {"router/..100-55", "", true},
		"a claim in another directory":   {"router2/100-55", "", true},
		"a lock":                         {"transport/100-7", "lock 55\n", true},
		"a lock, hashed":                 {"transport/B/Y/100-7", "lock 55\n", true},
		"another's claim":                {"router/100-5", "", false},
		"another's lock":                 {"transport/100-7", "lock 5\nlock 555\n", false},
		"the router that routed it once": {"transport/100-55", "lock 7\n", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, dir := newPostOffice(t, 2)
			deadOwner(t, dir, 55)
			live := assert.Get(p.Owners.Take("test"))(t)
			for _, other := range []string{"x", "055", "1234567"} {
				assert.Must(t, os.WriteFile(filepath.Join(dir, Owners, other), nil, 0o644))
			}
			if tt.name != "" {
				assert.Must(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, tt.name)), 0o755),
					os.WriteFile(filepath.Join(dir, tt.name), []byte(tt.text), 0o600)))
			}
			if _, done, err := p.Owners.Sweep(lockLines, nil); err != nil || len(done) != 0 {
				t.Errorf("first look: got %+v, %v, want nothing swept", done, err)
			}
			done := assert.Get(sweepOwners(p))(t)
			if swept := len(done) == 1 && done[0].Action == Swept && done[0].Name == "owners/55"; swept == tt.stays || len(done) > 1 {
				t.Errorf("swept: got %+v, want %v", done, !tt.stays)
			}
			if ok, err := p.exists("owners/55"); err != nil || ok != tt.stays {
				t.Errorf("owners/55: got %v, %v, want %v", ok, err, tt.stays)
			}
			if alive, err := p.Owners.Alive(live.Number()); err != nil || !alive {
				t.Errorf("the living one: got %v, %v", alive, err)
			}
			if list, err := p.fs.ReadDir(Owners); err != nil || len(list) < 4 {
				t.Errorf("owners/: got %v, %v, want our own and the three odd names", list, err)
			}
		})
	}
}

// A specification that cannot be read may name any owner.
func TestNumbersStayWhileASpecificationCannotBeRead(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	deadOwner(t, dir, 55)
	bad := filepath.Join(dir, Transport, "100-7")
	assert.Must(t, os.WriteFile(bad, nil, 0o000))
	if os.Getuid() == 0 {
		t.Skip("root reads every file")
	}
	if done, err := sweepOwners(p); err == nil || len(done) != 0 {
		t.Errorf("got %+v, %v, want an error and nothing swept", done, err)
	}
}

// K9: a process that takes a number while others are swept has it, or takes another; it
// never holds a lock on a file without a name.
func TestSweepNeverTakesANumberFromItsNewOwner(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	stop, swept := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for {
			select {
			case <-stop:
				swept <- err
				return
			default:
				_, serr := sweepOwners(p)
				err = errors.Join(err, serr)
			}
		}
	}()
	for range 300 {
		a := assert.Get(p.Owners.Take("a"))(t)
		b := assert.Get(p.Owners.Take("b"))(t)
		if a.Number() == b.Number() {
			t.Fatalf("two processes have number %d", a.Number())
		}
		for _, o := range []*Owner{a, b} {
			if ok, err := p.exists(ownerFile(o.Number())); err != nil || !ok {
				t.Fatalf("owner %d lives and its file is gone: %v", o.Number(), err)
			}
		}
		die(t, a)
		assert.Must(t, b.Release())
	}
	close(stop)
	assert.NoError(t, <-swept)
	if _, err := sweepOwners(p); err != nil {
		t.Error(err)
	}
	if list, err := os.ReadDir(filepath.Join(dir, Owners)); err != nil || len(list) != 0 {
		t.Errorf("owners/: got %v, %v, want nothing", list, err)
	}
}

// K7: the sweep is cut off before each operation; a claim in the number is found stale
// by the next process whatever is left.
func TestSweepOfOwnersCutAnywhereForgetsNoClaim(t *testing.T) {
	var a Accepted
	start := func() (*cutfs.FS, func()) {
		disk := cutfs.New()
		p := newOn(t, disk, false)
		owner := assert.Get(p.Owners.Take("router"))(t)
		a = submit(t, p, "to bond\n\n")
		assert.Get(p.Router.Claim(owner, a.Name))(t)
		assert.Must(t, disk.SyncDir(Public), disk.SyncDir(Router))
		next := disk.Restart(cutfs.KeepAll())
		return next, func() {
			if p, err := Open(Config{FS: next}); err == nil {
				_, _ = sweepOwners(p)
				_, _ = p.Router.Recover(RouterRecovery{Complete: complete})
				_, _ = sweepOwners(p)
			}
		}
	}
	everyCut(t, 2, start, func(what string, _ cutfs.Loss, last *cutfs.FS) {
		p := assert.Get(Open(Config{FS: last}))(t)
		assert.Get(sweepOwners(p))(t)
		assert.Get(p.Router.Recover(RouterRecovery{Complete: complete}))(t)
		if ok, err := p.exists(a.Name); err != nil || !ok {
			t.Fatalf("%s: %s is not in router/: %v\n%s", what, a.Name, err, last.Log())
		}
	})
}

// K10: a specification that was removed by hand has its message routed again, also
// while the router lives that routed it; what a router hands over just now is left.
func TestMessageWithoutSpecificationIsRoutedAgainThoughItsRouterLives(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	owner := assert.Get(p.Owners.Take("router"))(t)
	a, b := submit(t, p, "to bond\n\n"), submit(t, p, "to bond\n\n")
	var claims []*Claim
	for _, m := range []Accepted{a, b} {
		c := assert.Get(p.Router.Claim(owner, filepath.Base(m.Name)))(t)
		work(t, c, "z\n")
		claims = append(claims, c)
	}
	handOver(t, claims[0])
	assert.Must(t, os.Remove(filepath.Join(dir, Transport, claims[0].Name())))
	toQueue(t, p, claims[1]) // between its two renames
	before := tree(t, dir)
	assert.Get(p.Queue.Recover(time.Now()))(t)
	assert.Equal(t, tree(t, dir), before, "at once")
	// A day before and after: the clock was set meanwhile.
	for _, at := range []time.Duration{2 * foreignGrace, -24 * time.Hour, 24 * time.Hour} {
		assert.Get(p.Queue.Recover(time.Now().Add(at)))(t)
		assert.Equal(t, tree(t, dir), fmt.Sprintf("queue/%s router/..%s router/%d", claims[1].Name(), claims[1].Name(), a.ID.Ino), "%v later", at)
		assert.Must(t, p.move(a.Name, Queue+"/"+claims[0].Name()))
	}
}

// A number that cannot be looked at is reported, and does not keep the others.
func TestUnreadableNumberDoesNotKeepTheOthers(t *testing.T) {
	_, dir := newPostOffice(t, 0)
	deadOwner(t, dir, 55)
	deadOwner(t, dir, 56)
	below := assert.Get(durable.NewOS(dir))(t)
	defer below.Close()
	disk := faultfs.New(below)
	disk.Fail(faultfs.Open, "owners/55", os.ErrPermission, faultfs.Always)
	p := assert.Get(Open(Config{FS: disk}))(t)
	before, told, err := p.Owners.Sweep(lockLines, nil)
	if err != nil || len(told) != 1 || told[0].Action != Unreadable || told[0].Name != "owners/55" {
		t.Errorf("first look: got %+v, %v, want owners/55 reported", told, err)
	}
	_, done, err := p.Owners.Sweep(lockLines, before)
	if err != nil || len(done) != 2 || done[1].Action != Swept || done[1].Name != "owners/56" {
		t.Errorf("second look: got %+v, %v, want owners/56 swept", done, err)
	}
}
