package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// ordering is a scheduler without agents and an operator who holds b@far, freezes c@far, and
// then has both routed again.
type ordering struct {
	*removing
	said *told
}

// told is what the person was told: it outlives the disk.
type told struct{ held, frozen, rerouted bool }

func openOrdering(t *testing.T, disk *cutfs.FS, w *removed, said *told, boot string) *ordering {
	t.Helper()
	o := &ordering{removing: openRemoving(t, disk, w), said: said}
	o.spool.Ledger = ledger.New(o.po, ledger.Config{Role: "scheduler", Boot: func() string { return boot }})
	return o
}

func (o *ordering) about(address string) operations.Request {
	q := o.request()
	q.Match = func(_ *workspec.Group, r *workspec.Recipient) bool { return r.Address == address }
	return q
}

func (o *ordering) run() error {
	if _, err := o.spool.Ledger.Settle(context.Background(), ledger.Patience{Looks: 1}); err != nil {
		return err
	}
	if _, err := operations.Hold(o.about("b@far"), o.world.name, time.Time{}); err != nil {
		return err
	}
	o.said.held = true
	if err := o.schedule(); err != nil {
		return err
	}
	if _, err := operations.Freeze(o.about("c@far"), o.world.name, workspec.CausePerson); err != nil {
		return err
	}
	o.said.frozen = true
	if err := o.schedule(); err != nil {
		return err
	}
	q := o.request()
	q.Submit = func(file string, n int) (postoffice.Accepted, error) {
		return o.spool.Ledger.SubmitPrepared(o.po, file, n)
	}
	if res, err := operations.Reroute(q, o.world.name); err != nil || len(res.Changed) != 2 {
		return fmt.Errorf("rerouted %q: %w", res.Changed, err)
	}
	o.said.rerouted = true
	return o.schedule()
}

// Hold, freeze and reroute are stopped after each operation on the disk, by a kill and by
// a loss of power. Then what was confirmed holds; no one who is held or frozen is given to
// an agent; each recipient is open in the queue or in one copy in router/, never in both or
// neither; and the ledger balances.
func TestCutWhileHoldingFreezingAndRerouting(t *testing.T) {
	t.Parallel()
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		t.Run(fmt.Sprint(model), func(t *testing.T) {
			t.Parallel()
			cutOrders(t, model)
		})
	}
}

func cutOrders(t *testing.T, model cutfs.Model) {
	whole, w := removalDisk(t, model)
	whole.CutAfter(1 << 30)
	assert.Must(t, openOrdering(t, whole, w, &told{}, "boot-1").run())
	ops, lives := whole.Ops(), 0
	random := rand.New(rand.NewPCG(5, 6))
	for n := range ops {
		for _, tear := range []bool{false, true} {
			disk, w := removalDisk(t, model)
			if tear {
				disk.CutInside(n)
			} else {
				disk.CutAfter(n)
			}
			said := &told{}
			if err := openOrdering(t, disk, w, said, "boot-1").run(); !disk.Dead() {
				t.Fatalf("cut %d: ended before it: %v", n, err)
			}
			all := disk.Losses()
			random.Shuffle(len(all)-1, func(i, j int) { all[i+1], all[j+1] = all[j+1], all[i+1] })
			for _, loss := range all[:min(len(all), 8)] {
				lives++
				boot := "boot-1"
				if loss.Power {
					boot = "boot-2"
				}
				next := disk.Restart(loss)
				kept := *said
				settleOrders(t, fmt.Sprintf("cut %d (torn %v), %v", n, tear, loss), openOrdering(t, next, w.clone(), &kept, boot))
				if t.Failed() {
					t.Fatalf("the disk's operations:\n%s", disk.Log())
				}
			}
		}
	}
	t.Logf("%d operations, %d restarts", ops, lives)
}

func settleOrders(t *testing.T, name string, o *ordering) {
	t.Helper()
	for range 2 {
		if err := o.schedule(); err != nil {
			t.Errorf("%s: the scheduler: %v", name, err)
			return
		}
		if _, err := o.spool.Ledger.Settle(context.Background(), ledger.Patience{Looks: 1}); err != nil {
			t.Error(err)
		}
	}
	waits, tags := o.look(t)
	copied, err := o.copied()
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	for _, to := range []string{"b@far", "c@far"} {
		switch tag, queued := tags[to]; {
		case copied[to] > 1:
			t.Errorf("%s: %s is in %d copies", name, to, copied[to])
		case copied[to] == 1 && queued && tag != workspec.TagOK:
			t.Errorf("%s: %s is in a copy, and has tag %q in the queue", name, to, tag)
		case copied[to] == 0 && (!queued || tag != workspec.TagToDo):
			t.Errorf("%s: %s is in no copy, and queued %v with tag %q", name, to, queued, tag)
		case copied[to] == 0 && o.said.rerouted:
			t.Errorf("%s: the way of %s was confirmed, and it is not on it", name, to)
		case copied[to] == 0 && !waits[to] && (to == "b@far" && o.said.held || to == "c@far" && o.said.frozen):
			t.Errorf("%s: %s was confirmed to wait, and does not", name, to)
		}
	}
	b, err := ledger.Compare(t.Context(), o.po, ledger.Patience{Looks: 1})
	assert.Must(t, err)
	if len(b.Wrong) > 0 || b.Difference != (ledger.Count{}) {
		t.Errorf("%s: the ledger does not balance: %+v", name, b)
	}
}

// look returns who waits by an order and the tags; nothing if the message is done with.
func (o *ordering) look(t *testing.T) (waits map[string]bool, tags map[string]workspec.Tag) {
	t.Helper()
	waits, tags = map[string]bool{}, map[string]workspec.Tag{}
	l, err := o.spool.Load(o.world.name)
	if errors.Is(err, postoffice.ErrGone) {
		return waits, tags
	}
	if err != nil {
		t.Error(err)
		return waits, tags
	}
	f, err := o.po.Queue.Open(l.Name)
	if err != nil {
		t.Error(err)
		return waits, tags
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		t.Error(err)
	}
	s, err := workspec.Parse(raw)
	if err != nil {
		t.Error(err)
		return waits, tags
	}
	for _, r := range s.Groups[0].Recipients {
		waits[r.Address], tags[r.Address] = slices.Contains(l.Aside, r.Offset), r.Tag
	}
	return waits, tags
}

// copied counts the copies in router/, and in public/ those on the way there, by
// recipient.
func (o *ordering) copied() (map[string]int, error) {
	count := map[string]int{}
	pending, err := o.po.Router.List(false, time.Now())
	if err != nil {
		return nil, err
	}
	for _, p := range pending {
		f, err := o.po.FS().Open("router/"+p.Name, 0, 0)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		text := make([]byte, info.Size)
		if _, err := f.ReadAt(text, 0); err != nil {
			return nil, err
		}
		m, err := envelope.Read(strings.NewReader(string(text)))
		if err != nil {
			return nil, err
		}
		if !strings.HasSuffix(string(text), "Subject: x\n\nbody\n") || m.Octets != info.Size {
			return nil, fmt.Errorf("the copy is %q", text)
		}
		for _, r := range m.Recipients {
			count[r.Address]++
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return count, nil
}
