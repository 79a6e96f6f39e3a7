package crash

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/workspec"
)

// removing is a scheduler without agents and an operator at the keyboard, on one disk.
type removing struct {
	po    *postoffice.PostOffice
	spool *store.Store
	world *removed
}

// removed is what outlives the disk: what the person was told, and who got the message.
type removed struct {
	id      postoffice.SpoolID
	name    string
	out     bool // zmctl remove has said done
	back    bool // zmctl undo was begun
	arrived map[string]int
}

func (w *removed) clone() *removed {
	c := *w
	c.arrived = map[string]int{}
	for k, v := range w.arrived {
		c.arrived[k] = v
	}
	return &c
}

func openRemoving(t *testing.T, disk *cutfs.FS, w *removed) *removing {
	t.Helper()
	po := assert.Get(postoffice.Open(postoffice.Config{FS: disk, HashLevels: 1}))(t)
	c := assert.Get(conf.Parse("scheduler.conf", []byte("smtp/*\n\tcommand=\"ta $channel\"\n"), func(string) (string, bool) { return "", false }))(t)
	return &removing{po: po, world: w, spool: store.New(&store.Env{PostOffice: po, Conf: c, Hostname: "mta.example",
		Postmaster: "postmaster@mta.example", Now: time.Now, Log: slog.New(slog.DiscardHandler)})}
}

// queueOne queues a message for three recipients, of whom the first has it.
func queueOne(t *testing.T, disk *cutfs.FS) *removed {
	t.Helper()
	w := &removed{arrived: map[string]int{"a@far": 1}}
	r := openRemoving(t, disk, w)
	name, id, err := r.queue()
	assert.Must(t, err)
	w.name, w.id = name, id
	assert.Must(t, r.mark("a@far", workspec.TagOK))
	for _, dir := range []string{".", "queue", "transport", dirOf("queue/" + name), dirOf("transport/" + name), "router", "removed"} {
		assert.Must(t, disk.SyncDir(dir))
	}
	return w
}

func dirOf(name string) string { return name[:strings.LastIndexByte(name, '/')] }

func (r *removing) queue() (string, postoffice.SpoolID, error) {
	none := postoffice.SpoolID{}
	d, err := r.po.Submissions.NewDraft("submit")
	if err != nil {
		return "", none, err
	}
	if _, err := io.WriteString(d, "from <s@mta.example>\nto <a@far>\nenv-end\nSubject: x\n\nbody\n"); err != nil {
		return "", none, err
	}
	a, err := d.Commit()
	if err != nil {
		return "", none, err
	}
	owner, err := r.po.Owners.Take("router")
	if err != nil {
		return "", none, err
	}
	claim, err := r.po.Router.Claim(owner, strings.TrimPrefix(a.Name, "router/"))
	if err != nil {
		return "", none, err
	}
	w, err := claim.CreateWork()
	if err != nil {
		return "", none, err
	}
	spec := workspec.NewWriter(w)
	spec.Preamble(&workspec.Spec{Message: claim.Name(), BodyOffset: 4})
	list := make([]workspec.Recipient, 3)
	for i, to := range []string{"a@far", "b@far", "c@far"} {
		list[i] = workspec.Recipient{Channel: "smtp", Host: "far", Address: to, Privilege: "1"}
	}
	spec.Group(workspec.Sender{Channel: "local", Host: "s", Address: "s@mta.example", Privilege: "1"}, list, []byte("Subject: x\n"))
	if err := errors.Join(spec.Close(), w.Sync(), w.Close()); err != nil {
		return "", none, err
	}
	name, err := claim.HandOver()
	return name, a.ID, errors.Join(err, owner.Release())
}

// mark sets and syncs a recipient's tag, as an agent does that delivers to it.
func (r *removing) mark(address string, tag workspec.Tag) error {
	f, err := r.po.Queue.Open(r.world.name)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		return err
	}
	s, err := workspec.Parse(raw)
	if err != nil {
		return err
	}
	for i := range s.Groups[0].Recipients {
		if rcpt := &s.Groups[0].Recipients[i]; rcpt.Address == address {
			return errors.Join(f.SetTag(workspec.TagBytes(s.Format, tag), workspec.TagOffset(rcpt.Offset)), f.Sync())
		}
	}
	return fmt.Errorf("no recipient %s", address)
}

func (r *removing) request() operations.Request {
	return operations.Request{PostOffice: r.po, ID: r.world.id, Now: time.Now(), Who: "test"}
}

// remove is zmctl remove and what the scheduler does then.
func (r *removing) remove() error {
	res, err := operations.Remove(r.request(), r.world.name)
	if err != nil {
		return err
	}
	if len(res.Changed) != 2 {
		return fmt.Errorf("removed %q, want two", res.Changed)
	}
	r.world.out = true
	return r.schedule()
}

// schedule is the scheduler's look at the message.
func (r *removing) schedule() error {
	if err := r.spool.Recover(); err != nil {
		return err
	}
	l, err := r.spool.Load(r.world.name)
	if errors.Is(err, postoffice.ErrGone) {
		return nil
	}
	if err != nil || l.Gone || len(l.Open) > 0 {
		return err
	}
	_, err = r.spool.Settle(l.Name, nil)
	return err
}

// undo is zmctl undo and the deliveries that follow.
func (r *removing) undo() error {
	r.world.back = true
	if _, err := operations.UndoShelved(r.request()); err != nil {
		return err
	}
	return r.deliver()
}

// deliver delivers what is open, each recipient durably marked at once.
func (r *removing) deliver() error {
	if err := r.spool.Recover(); err != nil {
		return err
	}
	l, err := r.spool.Load(r.world.name)
	if err != nil {
		return err
	}
	for _, w := range l.Open {
		if err := r.mark(w.Address, workspec.TagOK); err != nil {
			return err
		}
		r.world.arrived[w.Address]++
	}
	return nil
}

// A15: remove and undo are stopped after each operation on the disk, by a kill and by a
// loss of power. Then the message is queued with all that was open, or wholly in
// removed/; a removal that was confirmed holds; and after an undo everybody has the
// message once.
func TestCutWhileRemovingAndUndoing(t *testing.T) {
	t.Parallel()
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		t.Run(fmt.Sprint(model), func(t *testing.T) {
			t.Parallel()
			cutRemoval(t, model)
		})
	}
}

func cutRemoval(t *testing.T, model cutfs.Model) {
	run := func(r *removing) error {
		if err := r.remove(); err != nil {
			return err
		}
		return r.undo()
	}
	whole, w := removalDisk(t, model)
	whole.CutAfter(1 << 30)
	assert.Must(t, run(openRemoving(t, whole, w)))
	ops, lives := whole.Ops(), 0
	random := rand.New(rand.NewPCG(3, 4))
	for n := range ops {
		for _, tear := range []bool{false, true} {
			disk, w := removalDisk(t, model)
			if tear {
				disk.CutInside(n)
			} else {
				disk.CutAfter(n)
			}
			if err := run(openRemoving(t, disk, w)); !disk.Dead() {
				t.Fatalf("cut %d: ended before it: %v", n, err)
			}
			all := disk.Losses()
			random.Shuffle(len(all)-1, func(i, j int) { all[i+1], all[j+1] = all[j+1], all[i+1] })
			for _, loss := range all[:min(len(all), 12)] {
				lives++
				next := disk.Restart(loss)
				settleRemoval(t, fmt.Sprintf("cut %d (torn %v), %v", n, tear, loss), openRemoving(t, next, w.clone()))
				if t.Failed() {
					t.Fatalf("the disk's operations:\n%s", disk.Log())
				}
			}
		}
	}
	t.Logf("%d operations, %d restarts", ops, lives)
}

func removalDisk(t *testing.T, model cutfs.Model) (*cutfs.FS, *removed) {
	t.Helper()
	disk := cutfs.New()
	disk.SetModel(model)
	assert.Must(t, postoffice.Init(disk))
	return disk, queueOne(t, disk)
}

// settleRemoval brings a removal or undo that was cut off to its end.
func settleRemoval(t *testing.T, name string, r *removing) {
	t.Helper()
	w := r.world
	if err := r.schedule(); err != nil {
		t.Errorf("%s: the scheduler: %v", name, err)
		return
	}
	away, err := r.po.Removed.List()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	queued := 0
	if err := r.po.Queue.List(func(string) error { queued++; return nil }); err != nil {
		t.Error(err)
	}
	if err := r.po.Queue.ListMessages(func(string) error { queued++; return nil }); err != nil {
		t.Error(err)
	}
	pending, err := r.po.Router.List(false, time.Now())
	if err != nil {
		t.Error(err)
	}
	switch {
	case len(pending) > 0:
		t.Errorf("%s: it went back to the router", name)
	case len(away) == 1 && away[0].Spec != "" && queued == 0:
		if _, err := operations.UndoShelved(r.request()); err != nil {
			t.Errorf("%s: undo: %v", name, err)
		}
	case len(away) == 0 && queued == 2:
		if w.out && !w.back {
			t.Errorf("%s: the removal was confirmed, and the message is queued", name)
		}
	case len(away) == 0 && queued == 0 && w.arrived["b@far"]+w.arrived["c@far"] > 0:
		return // the last mark was made, and the message is done
	default:
		t.Errorf("%s: %d names in queue/ and transport/, removed/ holds %+v", name, queued, away)
		return
	}
	if err := r.deliver(); err != nil {
		t.Errorf("%s: deliver: %v", name, err)
	}
	for _, to := range []string{"a@far", "b@far", "c@far"} {
		// The cut may have come between mark and arrival: the mark is what counts.
		if n := w.arrived[to]; n > 1 || n == 0 && !marked(t, r, to) {
			t.Errorf("%s: %s got it %d times", name, to, n)
		}
	}
}

func marked(t *testing.T, r *removing, to string) bool {
	t.Helper()
	f, err := r.po.Queue.Open(r.world.name)
	if err != nil {
		t.Error(err)
		return false
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		t.Error(err)
		return false
	}
	s, err := workspec.Parse(raw)
	if err != nil {
		t.Error(err)
		return false
	}
	for _, rcpt := range s.Groups[0].Recipients {
		if rcpt.Address == to {
			return rcpt.Tag == workspec.TagOK
		}
	}
	return false
}
