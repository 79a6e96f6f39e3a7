package crash

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// before is how many attempts a message has behind it whose history is summarised.
const before = 60

// waited is what the scheduler of one life has acted on, so that it must be durable.
type waited struct {
	attempts  map[string]int // by recipient
	held      bool           // c@far
	delivered bool           // b@far
}

// summing is a scheduler that records an attempt, summarises, and goes on.
type summing struct {
	*removing
	acted *waited
}

// longDisk has a message for three recipients, of whom the first has it and the others have
// been deferred very often, in lines as they were written before there were ranges.
func longDisk(t *testing.T, model cutfs.Model) (*cutfs.FS, *removed, []byte) {
	t.Helper()
	disk, w := removalDisk(t, model)
	po := assert.Get(postoffice.Open(postoffice.Config{FS: disk, HashLevels: 1}))(t)
	f := assert.Get(po.Queue.Open(w.name))(t)
	defer f.Close()
	raw := assert.Get(f.Read())(t)
	spec := assert.Get(workspec.Parse(raw))(t)
	var lines []byte
	for n := 1; n <= before; n++ {
		for _, r := range spec.Groups[0].Recipients[1:] {
			e := workspec.DeferredEvent(time.UnixMilli(1795220000000+int64(n)), r.Offset, n, time.UnixMilli(1795220000000), status.MailboxFull, "452 "+strings.Repeat("x", 300)+movedAs(r.Address))
			lines = workspec.AppendEvent(lines, &e)
		}
	}
	assert.Must(t, errors.Join(f.Append(lines), f.Sync()))
	return disk, w, raw
}

// movedAs ends the replies to a recipient: a rule gives c@far another source each time.
func movedAs(address string) string {
	if address == "c@far" {
		return workspec.OtherSource
	}
	return ""
}

func (s *summing) defers(n int, addresses ...string) error {
	offsets, err := s.offsets()
	if err != nil {
		return err
	}
	var list []store.Outcome
	for _, a := range addresses {
		list = append(list, store.Outcome{Offset: offsets[a], Address: a, Result: thread.Deferred, Attempt: n, Next: time.UnixMilli(1795220000000), Text: "452 later" + movedAs(a)})
	}
	if _, err := s.spool.Record(s.world.name, list); err != nil {
		return err
	}
	for _, a := range addresses {
		s.acted.attempts[a] = n
	}
	return nil
}

func (s *summing) offsets() (map[string]int64, error) {
	f, err := s.po.Queue.Open(s.world.name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		return nil, err
	}
	spec, err := workspec.Parse(raw)
	if err != nil {
		return nil, err
	}
	m := map[string]int64{}
	for _, r := range spec.Groups[0].Recipients {
		m[r.Address] = r.Offset
	}
	return m, nil
}

func (s *summing) run() error {
	if err := s.defers(before+1, "b@far", "c@far"); err != nil {
		return err
	}
	if err := s.spool.Summarise(s.world.name); err != nil {
		return err
	}
	if err := s.defers(before+2, "b@far", "c@far"); err != nil {
		return err
	}
	q := s.request()
	q.Match = func(_ *workspec.Group, r *workspec.Recipient) bool { return r.Address == "c@far" }
	if _, err := operations.Hold(q, s.world.name, time.Time{}); err != nil {
		return err
	}
	s.acted.held = true
	if err := s.mark("b@far", workspec.TagOK); err != nil {
		return err
	}
	f, err := s.po.Queue.Open(s.world.name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	s.acted.delivered = true
	return nil
}

// A5 K4 Del2: a scheduler that replaces a specification by one with a shorter history is
// stopped after each operation on the disk, by a kill and by a loss of power. Every attempt
// that it has acted on is known after that with the source of the next one (Op5), and so is a hold and a delivery that were
// durable; what the router wrote is there byte for byte, and nothing else is left.
func TestCutWhileSummarising(t *testing.T) {
	t.Parallel()
	for _, model := range []cutfs.Model{cutfs.Journal, cutfs.Loose, cutfs.POSIX} {
		t.Run(fmt.Sprint(model), func(t *testing.T) {
			t.Parallel()
			whole, w, _ := longDisk(t, model)
			whole.CutAfter(1 << 30)
			s := &summing{openRemoving(t, whole, w), &waited{attempts: map[string]int{}}}
			assert.Must(t, s.run())
			ops, lives := whole.Ops(), 0
			if !strings.Contains(whole.Log(), "exchange") {
				t.Fatal("nothing was summarised")
			}
			random := rand.New(rand.NewPCG(7, 8))
			for n := range ops {
				for _, tear := range []bool{false, true} {
					disk, w, head := longDisk(t, model)
					if tear {
						disk.CutInside(n)
					} else {
						disk.CutAfter(n)
					}
					s := &summing{openRemoving(t, disk, w), &waited{attempts: map[string]int{"b@far": before, "c@far": before}}}
					if err := s.run(); !disk.Dead() {
						t.Fatalf("cut %d: ended before it: %v", n, err)
					}
					all := disk.Losses()
					random.Shuffle(len(all)-1, func(i, j int) { all[i+1], all[j+1] = all[j+1], all[i+1] })
					for _, loss := range all[:min(len(all), 12)] {
						lives++
						name := fmt.Sprintf("cut %d (torn %v), %v", n, tear, loss)
						summed(t, name, disk.Restart(loss), w.clone(), s.acted, head)
						if t.Failed() {
							t.Fatalf("the disk's operations:\n%s", disk.Log())
						}
					}
				}
			}
			t.Logf("%d operations, %d restarts", ops, lives)
		})
	}
}

// summed checks what the next life finds.
func summed(t *testing.T, name string, disk *cutfs.FS, w *removed, acted *waited, head []byte) {
	t.Helper()
	s := &summing{openRemoving(t, disk, w), acted}
	var copies []string
	err := s.po.Queue.ListWithNotes(func(string) error { return nil }, func(found string) error {
		if of, ok := postoffice.ParseCopy(found); ok {
			copies = append(copies, of)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	s.spool.SweepCopies(copies)
	if set, err := disk.ReadDir(postoffice.Quarantine); err == nil && len(set) > 0 {
		t.Errorf("%s: in quarantine/: %+v", name, set)
	}
	l, err := s.spool.LoadNew(w.name)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	for _, o := range l.Open {
		if o.Attempts < acted.attempts[o.Address] || o.Attempts > acted.attempts[o.Address]+2 {
			t.Errorf("%s: %s has %d attempts behind it, want %d", name, o.Address, o.Attempts, acted.attempts[o.Address])
		}
		if want := map[string]int{"c@far": o.Attempts}[o.Address]; o.Moves != want {
			t.Errorf("%s: %s was given another source %d times, want %d", name, o.Address, o.Moves, want)
		}
		if acted.delivered && o.Address == "b@far" || acted.held && o.Address == "c@far" || o.Address == "a@far" {
			t.Errorf("%s: %s is given to an agent", name, o.Address)
		}
	}
	f, err := s.po.Queue.Open(l.Name)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	was, err := workspec.Parse(head)
	assert.Must(t, err)
	n := int(was.ZOffset)
	if len(raw) < n || !bytes.Equal(untagged(raw[:n]), untagged(head[:n])) {
		t.Errorf("%s: what the router wrote has changed:\n%s", name, raw[:min(len(raw), n)])
	}
	entries, err := disk.ReadDir(dirOf(postoffice.Transport + "/" + l.Name))
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	for _, e := range entries {
		if _, left := postoffice.ParseCopy(e.Name); left {
			t.Errorf("%s: left: %s", name, e.Name)
		}
	}
}

// untagged returns a part of a specification without the tags and locks of its recipients.
func untagged(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		if i > 0 && out[i-1] == '\n' && out[i] == 'r' {
			copy(out[i+1:min(i+8, len(out))], "       ")
		}
	}
	return out
}
