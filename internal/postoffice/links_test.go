package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// onlyLinks is a file system without RENAME_NOREPLACE. The kernel finds a name that is taken
// all the same.
type onlyLinks struct {
	*durable.OS
	// linked is called when a file has got its second name, once.
	linked func()
}

func (f *onlyLinks) RenameNew(from, to string) error {
	for name, want := range map[string]error{from: nil, to: fs.ErrNotExist} {
		if _, err := f.Stat(name); !errors.Is(err, want) {
			return f.OS.RenameNew(from, to)
		}
	}
	return &os.LinkError{Op: "rename", Old: from, New: to, Err: fmt.Errorf("%w: %w", durable.ErrNoRenameNew, unix.EINVAL)}
}

func (f *onlyLinks) Link(from, to string) error {
	err := f.OS.Link(from, to)
	if then := f.linked; err == nil && then != nil {
		f.linked = nil
		then()
	}
	return err
}

// newLinked returns a postoffice without RENAME_NOREPLACE.
func newLinked(t *testing.T, levels int) (*PostOffice, *onlyLinks, string) {
	t.Helper()
	dir := t.TempDir()
	f := &onlyLinks{OS: assert.Get(durable.NewOS(dir))(t)}
	t.Cleanup(func() { f.Close() })
	assert.Must(t, Init(f))
	return assert.Get(Open(Config{FS: f, HashLevels: levels}))(t), f, dir
}

// another opens the postoffice as another process does.
func another(t *testing.T, dir string) *PostOffice {
	t.Helper()
	f := &onlyLinks{OS: assert.Get(durable.NewOS(dir))(t)}
	t.Cleanup(func() { f.Close() })
	return assert.Get(Open(Config{FS: f}))(t)
}

// C7: whatever older name a process was killed before it removed, the router that claims the
// message removes it before it routes. So nothing hands the message in again when it has been
// delivered.
func TestC7ClaimedMessageHasNoOlderName(t *testing.T) {
	id := SpoolID{Ino: 7, MTime: 1}
	for name, older := range map[string]string{
		"handed in":            "public/test.1.2.3",
		"picked up":            "router/.pickup.7.1z",
		"imported":             "imports/tag.1.2.3",
		"recalled":             "deferred/7.users",
		"thawed":               "freezer/7.policy",
		"given back":           "postman/7",
		"restored":             removedName(id, Router),
		"released":             "router/7-77",
		"released in another":  "router2/7-77",
		"requeued":             "queue/7-77",
		"requeued from a hash": "queue/B/C/7-77",
	} {
		t.Run(name, func(t *testing.T) {
			p, _, dir := newLinked(t, 0)
			assert.Must(t, p.Router.EnsureDirs([]string{"router2"}))
			assert.Must(t, os.MkdirAll(filepath.Join(dir, "queue/B/C"), 0o750))
			o := assert.Get(p.Owners.Take("router"))(t)
			a := submit(t, p, "to bond\n\n")
			assert.Must(t, os.Link(filepath.Join(dir, a.Name), filepath.Join(dir, older)))
			// A copy for the postmaster is no older name.
			assert.Must(t, p.copyToPostman(a.Name, Name{Ino: a.ID.Ino}, "loop"))
			c := assert.Get(p.Router.Claim(o, a.Name))(t)
			assert.Equal(t, c.Info.Nlink, uint64(2), "names")
			assert.Equal(t, tree(t, dir), fmt.Sprintf("postman/%d_loop router/%d-%d", a.ID.Ino, a.ID.Ino, o.n))
			// Nothing has the lock that a later move needs.
			assert.Must(t, c.Release())
			assert.Equal(t, tree(t, dir), fmt.Sprintf("postman/%d_loop router/%d", a.ID.Ino, a.ID.Ino))
		})
	}
}

// C7: a name in public/, imports/ or of a copy that a killed process has left is removed when
// the file has got further, and the message is neither taken up again nor put away.
func TestC7RecoveryEndsTheMoveOfAKilledProcess(t *testing.T) {
	for name, c := range map[string]struct {
		older string
		again func(p *PostOffice, name string) error
	}{
		"sweep": {"public/test.1.2.3", func(p *PostOffice, _ string) error {
			_, err := p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()})
			return err
		}},
		"pick-up": {"public/test.1.2.3", func(p *PostOffice, name string) error {
			_, err := p.Submissions.PickUp(name)
			return ignore(err, ErrGone)
		}},
		"report": {"public/report.1.2.3", func(p *PostOffice, name string) error {
			_, err := p.Submissions.SubmitPrepared(filepath.Base(name))
			return ignore(err, ErrGone)
		}},
		"import": {"imports/tag.1.2.3", func(p *PostOffice, name string) error {
			_, err := p.Imports.Submit(filepath.Base(name), "")
			return err
		}},
		"copy": {"router/.pickup.7.1z", func(p *PostOffice, _ string) error {
			_, err := p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()})
			return err
		}},
		"claim": {"router/I-77", func(p *PostOffice, _ string) error {
			_, err := p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now()})
			return err
		}},
		"requeue": {"queue/I-77", func(p *PostOffice, _ string) error {
			_, err := p.Queue.Recover(time.Now())
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, dir := newLinked(t, 0)
			deadOwner(t, dir, 77)
			a := submit(t, p, "to bond\n\n")
			older := strings.ReplaceAll(c.older, "I", inodeName(a.ID.Ino))
			assert.Must(t, os.Link(filepath.Join(dir, a.Name), filepath.Join(dir, older)))
			p = another(t, dir) // a process that has moved nothing yet
			assert.Must(t, c.again(p, older))
			list := assert.Get(p.Submissions.List())(t)
			for _, s := range list {
				_, err := p.Submissions.PickUp(s.Name)
				assert.Must(t, ignore(err, ErrGone))
			}
			waiting := assert.Get(p.Router.List(true, time.Now()))(t)
			assert.Equal(t, len(waiting), 1, "messages")
			o := assert.Get(p.Owners.Take("router"))(t)
			c := assert.Get(p.Router.Claim(o, waiting[0].Name))(t)
			assert.Equal(t, c.ID, a.ID)
			assert.Must(t, c.Discard())
			recoverAll(t, p)
			assert.Equal(t, tree(t, dir), "")
		})
	}
}

func ignore(err, but error) error {
	if errors.Is(err, but) {
		return nil
	}
	return err
}

// C7: a router that is faster than the second step of the process that hands a message in
// does that step for it. Both succeed.
func TestC7ClaimBetweenLinkAndUnlinkOfAcceptance(t *testing.T) {
	p, f, dir := newLinked(t, 0)
	q := another(t, dir)
	o := assert.Get(q.Owners.Take("router"))(t)
	var c *Claim
	f.linked = func() {
		list := assert.Get(q.Router.List(true, time.Now()))(t)
		assert.Equal(t, len(list), 1)
		// A look at public/ leaves alone what has a living writer.
		found := assert.Get(q.Submissions.List())(t)
		for _, s := range found {
			if _, err := q.Submissions.PickUp(s.Name); !errors.Is(err, ErrUnsettled) {
				t.Errorf("pick up: got %v, want ErrUnsettled", err)
			}
		}
		recoverAll(t, q)
		c = assert.Get(q.Router.Claim(o, list[0].Name))(t)
	}
	a := submit(t, p, "to bond\n\n")
	assert.Equal(t, c.ID, a.ID, "claimed")
	assert.Equal(t, tree(t, dir), fmt.Sprintf("router/%d-%d", a.ID.Ino, o.n))
	assert.Must(t, c.Discard())
}

// C7: a message that an operator's command moves at this moment is routed after that, under
// its one name.
func TestC7ClaimBetweenTheStepsOfAnotherMoveWaits(t *testing.T) {
	moves := map[string]struct {
		prepare func(t *testing.T, c *Claim)
		move    func(p *PostOffice, id SpoolID) error
		want    error // of the move
	}{
		"recall": {func(t *testing.T, c *Claim) { assert.Must(t, c.Defer("users")) }, func(p *PostOffice, id SpoolID) error {
			_, err := p.Aside.Recall(Deferred, inodeName(id.Ino)+".users", id)
			return err
		}, nil},
		"thaw": {func(t *testing.T, c *Claim) { assert.Must(t, c.Freeze("policy")) }, func(p *PostOffice, id SpoolID) error {
			_, err := p.Aside.Recall(Freezer, inodeName(id.Ino)+".policy", id)
			return err
		}, nil},
		// The claim takes the old name away, so the message is not frozen.
		"freeze": {func(t *testing.T, c *Claim) { assert.Must(t, c.Release()) }, func(p *PostOffice, id SpoolID) error {
			_, err := p.Aside.Freeze(Router, inodeName(id.Ino), id, "person")
			return err
		}, nil},
	}
	for name, m := range moves {
		t.Run(name, func(t *testing.T) {
			p, f, dir := newLinked(t, 0)
			q := another(t, dir)
			o := assert.Get(p.Owners.Take("router"))(t)
			other := assert.Get(q.Owners.Take("router"))(t)
			a := submit(t, p, "to bond\n\n")
			m.prepare(t, assert.Get(p.Router.Claim(o, a.Name))(t))
			f.linked = func() {
				if _, err := q.Router.Claim(other, inodeName(a.ID.Ino)); !errors.Is(err, ErrUnsettled) {
					t.Errorf("claim: got %v, want ErrUnsettled", err)
				}
			}
			assert.Must(t, ignore(m.move(p, a.ID), m.want))
			if _, err := q.Router.Claim(other, inodeName(a.ID.Ino)); !errors.Is(err, ErrGone) || name != "freeze" {
				assert.Must(t, err)
			}
			names := strings.Fields(tree(t, dir))
			assert.Equal(t, len(names), 1, strings.Join(names, " "))
		})
	}
}

// C7: a second file never replaces one that has the name, whichever way the move goes.
func TestC7MoveByLinksReplacesNothing(t *testing.T) {
	p, _, dir := newLinked(t, 0)
	a := submit(t, p, "to bond\n\n")
	o := assert.Get(p.Owners.Take("router"))(t)
	for name, move := range map[string]func(from, to string) error{"any": p.move, "mine": p.moveMine, "own": p.moveOwn} {
		to := Router + "/" + name
		assert.Must(t, os.WriteFile(filepath.Join(dir, to), []byte("another"), 0o600))
		if err := move(a.Name, to); !errors.Is(err, ErrOccupied) {
			t.Errorf("%s: got %v, want ErrOccupied", name, err)
		}
		assert.Equal(t, string(assert.Get(os.ReadFile(filepath.Join(dir, to)))(t)), "another")
		if err := move("router/none", to); !errors.Is(err, ErrGone) && !errors.Is(err, ErrOccupied) {
			t.Errorf("%s: got %v of a file that is not there", name, err)
		}
	}
	assert.Must(t, assert.Get(p.Router.Claim(o, a.Name))(t).Discard())
}

// C7 C5: processes that submit, claim, release, defer, recall, freeze, thaw and deliver on a
// disk without RENAME_NOREPLACE, each killed at any operation: no message is lost, none is
// with two routers at a time, and none is delivered twice unless its router died in the act.
func TestC7NothingIsRoutedTwiceWhoeverIsKilled(t *testing.T) {
	for seed := range uint64(20) {
		w := &linkWorld{t: t, disk: cutfs.New(), random: rand.New(rand.NewPCG(seed, 7)), held: map[string][]*cutfs.FS{}, got: map[string]int{}, doubt: map[string]int{}, accepted: map[string]bool{}}
		w.disk.OnlyLinks()
		assert.Must(t, Init(w.disk))
		w.run()
		if t.Failed() {
			t.Fatalf("seed %d\n%s", seed, w.disk.Log())
		}
	}
}

type linkWorld struct {
	t      *testing.T
	disk   *cutfs.FS
	random *rand.Rand

	mu       sync.Mutex
	held     map[string][]*cutfs.FS // message -> routers that have it
	got      map[string]int
	doubt    map[string]int // message -> routers that died while they removed it
	accepted map[string]bool
}

func (w *linkWorld) run() {
	var all sync.WaitGroup
	for n := range 3 {
		for _, life := range []func(disk *cutfs.FS, n int, r *rand.Rand){w.submits, w.routes, w.operates} {
			seed := w.random.Uint64()
			all.Add(1)
			go func() {
				defer all.Done()
				r := rand.New(rand.NewPCG(seed, 1))
				for range 3 { // lives
					disk := w.disk.Process()
					disk.CutAfter(r.IntN(60))
					life(disk, n, r)
					disk.Kill()
				}
			}()
		}
	}
	all.Wait()
	// The last routers do all that is left.
	for range 4 {
		disk := w.disk.Process()
		w.routeAll(disk, nil)
		w.operate(disk, nil)
		disk.Kill()
	}
	for subject := range w.accepted {
		if w.got[subject] == 0 {
			w.t.Errorf("lost: %s", subject)
		}
	}
	for subject, n := range w.got {
		if n > 1+w.doubt[subject] {
			w.t.Errorf("%s was delivered %d times", subject, n)
		}
	}
	for _, dir := range []string{Router, Deferred, Freezer, Postman, Quarantine} {
		for _, e := range assert.Get(w.disk.Process().ReadDir(dir))(w.t) {
			if durable.IsProbe(e.Name) {
				continue // of a killed process; the next probe removes it when it is a minute old
			}
			w.t.Errorf("left: %s/%s", dir, e.Name)
		}
	}
}

func (w *linkWorld) open(disk *cutfs.FS) *PostOffice {
	p, err := Open(Config{FS: disk})
	if err != nil && !disk.Dead() {
		w.t.Error(err)
	}
	return p
}

func (w *linkWorld) submits(disk *cutfs.FS, n int, r *rand.Rand) {
	p := w.open(disk)
	for i := 0; !disk.Dead() && i < 6; i++ {
		subject := fmt.Sprintf("%d-%d-%d", n, i, r.Uint32())
		d, err := p.Submissions.NewDraft("test")
		if err != nil {
			continue
		}
		_, _ = io.WriteString(d, "to bond\n\n"+subject)
		if _, err := d.Commit(); err == nil {
			w.mu.Lock()
			w.accepted[subject] = true
			w.mu.Unlock()
		}
	}
}

func (w *linkWorld) routes(disk *cutfs.FS, _ int, r *rand.Rand) {
	for i := 0; !disk.Dead() && i < 8; i++ {
		w.routeAll(disk, r)
	}
}

// routeAll is a router's life from its start; r chooses what becomes of a message, nil: all is
// delivered.
func (w *linkWorld) routeAll(disk *cutfs.FS, r *rand.Rand) {
	p := w.open(disk)
	if p == nil {
		return
	}
	o, err := p.Owners.Take("router")
	if err != nil {
		return
	}
	_, _ = p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now(), Tries: 1000})
	found, _ := p.Submissions.List()
	for _, s := range found {
		_, err := p.Submissions.PickUp(s.Name)
		if disbelief := (*UntrustedError)(nil); errors.As(err, &disbelief) {
			w.t.Errorf("%s: %v", s.Name, err)
		}
	}
	list, _ := p.Router.List(true, time.Now())
	for _, pend := range list {
		c, err := p.Router.Claim(o, pend.Name)
		if disbelief := (*UntrustedError)(nil); errors.As(err, &disbelief) {
			w.t.Errorf("%s: %v", pend.Name, err)
		}
		if err == nil {
			w.route(disk, c, r)
		}
	}
	if !disk.Dead() {
		_ = o.Leave()
	}
}

func (w *linkWorld) route(disk *cutfs.FS, c *Claim, r *rand.Rand) {
	text, err := readFile(c.File)
	if err != nil {
		return
	}
	_, subject, _ := strings.Cut(string(text), "\n\n")
	w.hold(subject, disk)
	runtime.Gosched() // as while it is routed
	w.giveUp(subject, disk)
	if r != nil {
		switch r.IntN(5) {
		case 0:
			_ = c.Release()
			return
		case 1:
			_ = c.Defer("users")
			return
		case 2:
			_ = c.Freeze("policy")
			return
		}
	}
	w.mu.Lock()
	w.got[subject]++
	w.mu.Unlock()
	if c.Discard() != nil {
		w.mu.Lock()
		w.doubt[subject]++
		w.mu.Unlock()
	}
}

func (w *linkWorld) hold(subject string, disk *cutfs.FS) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.held[subject] {
		if !other.Dead() && !disk.Dead() {
			w.t.Errorf("%s is with two routers", subject)
		}
	}
	w.held[subject] = append(w.held[subject], disk)
}

func (w *linkWorld) giveUp(subject string, disk *cutfs.FS) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[subject] = slices.DeleteFunc(w.held[subject], func(d *cutfs.FS) bool { return d == disk })
}

func (w *linkWorld) operates(disk *cutfs.FS, _ int, r *rand.Rand) {
	for i := 0; !disk.Dead() && i < 8; i++ {
		w.operate(disk, r)
	}
}

// operate recalls and thaws what there is, and freezes something.
func (w *linkWorld) operate(disk *cutfs.FS, r *rand.Rand) {
	p := w.open(disk)
	if p == nil {
		return
	}
	for _, dir := range []string{Deferred, Freezer} {
		entries, _ := disk.ReadDir(dir)
		for _, e := range entries {
			if info, err := disk.Stat(dir + "/" + e.Name); err == nil {
				_, _ = p.Aside.Recall(dir, e.Name, IDOf(info))
			}
		}
	}
	if r == nil {
		return
	}
	entries, _ := disk.ReadDir(Router)
	for _, e := range entries {
		n, ok := ParseName(e.Name)
		if info, err := disk.Stat(Router + "/" + e.Name); err == nil && ok && n.Owner == 0 && r.IntN(3) == 0 {
			_, _ = p.Aside.Freeze(Router, e.Name, IDOf(info), "person")
		}
	}
}
