package cutfs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Loss says what the next process does not find. The zero value is KeepAll.
type Loss struct {
	// Power is lost, not only the process.
	Power bool
	// Names is how many of the first changes of names and modes that no sync covers
	// survive: 0 to Pending, all if negative.
	Names int
	// Keep lists by number, with commas, more changes that survive, each with all it
	// builds on. Not in model Journal.
	Keep string
	// Data is what survives of the data that was not synced.
	Data Data
	// Seed chooses what DataBlocks and DataMixed leave open.
	Seed uint64
}

// KeepAll: the process died, the machine goes on.
func KeepAll() Loss { return Loss{} }

// LoseUnsynced: power is lost with all data that was not synced and all but this
// many of the changes of names and modes that no sync covers.
func LoseUnsynced(names int) Loss { return Loss{Power: true, Names: names} }

// MetadataFirst: power is lost when names and modes had reached the disk and data
// had not, as delayed allocation does it.
func MetadataFirst() Loss { return Loss{Power: true, Names: -1} }

// killed is how KeepAll prints.
const killed = "process killed"

// String returns what ParseLoss reads.
func (l Loss) String() string {
	if !l.Power {
		return killed
	}
	names := strconv.Itoa(l.Names)
	if l.Names < 0 {
		names = "all"
	}
	s := "power lost, names=" + names
	if l.Keep != "" {
		s += " keep=" + l.Keep
	}
	s += " data=" + l.Data.String()
	if l.Seed != 0 {
		s += fmt.Sprintf(" seed=%d", l.Seed)
	}
	return s
}

// ParseLoss reads what String gave, so that a loss can be had again.
func ParseLoss(s string) (Loss, error) {
	if s == killed {
		return KeepAll(), nil
	}
	rest, ok := strings.CutPrefix(s, "power lost, ")
	if !ok {
		return Loss{}, fmt.Errorf("loss %q: want %q or %q and what is kept", s, killed, "power lost, ")
	}
	l := Loss{Power: true}
	for field := range strings.FieldsSeq(rest) {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "names":
			if l.Names = -1; value != "all" {
				l.Names, err = strconv.Atoi(value)
			}
		case "keep":
			l.Keep = value
			_, err = positions(value)
		case "data":
			if l.Data = Data(slices.Index(dataNames[:], value)); l.Data < 0 {
				err = errors.New("no such kind")
			}
		case "seed":
			l.Seed, err = strconv.ParseUint(value, 10, 64)
		default:
			err = errors.New("no such field")
		}
		if err != nil {
			return Loss{}, fmt.Errorf("loss %q: %s: %w", s, field, err)
		}
	}
	return l, nil
}

// positions reads Loss.Keep.
func positions(s string) ([]int, error) {
	var list []int
	for word := range strings.SplitSeq(s, ",") {
		if word == "" {
			continue
		}
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// Pending returns how many changes of names and modes no sync covers.
func (f *FS) Pending() int {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return len(f.disk.pending)
}

// Changes reports of each change that no sync covers, with its number, whether it
// survives a loss.
func (f *FS) Changes(loss Loss) string {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	kept := f.disk.kept(loss)
	var b strings.Builder
	for i, c := range f.disk.pending {
		word := "lost"
		if kept[c] {
			word = "kept"
		}
		fmt.Fprintf(&b, "%s %d: %s\n", word, i, c.text)
	}
	return b.String()
}

// Restart returns the disk as the next process finds it. f may go on or be restarted
// again in another way; the two no longer share anything.
func (f *FS) Restart(loss Loss) *FS {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	old := f.disk
	d := &disk{
		files: map[int]*content{}, inodes: map[uint64]bool{}, opens: map[int]int{}, flocks: map[int]*File{},
		model: old.model, block: old.block, onlyLinks: old.onlyLinks, order: newOrder(), early: map[*change]bool{}, freed: map[uint64]int{}, made: old.made,
		nextID: old.nextID, last: old.last, now: old.now, procs: old.procs,
		log: append(slices.Clone(old.log), "restart: "+loss.String()),
	}
	d.unlock = sync.NewCond(&d.mu)
	if loss.Power {
		d.loseFrom(old, loss)
	} else {
		d.current, d.stored = old.current.clone(), old.stored.clone()
		d.pending, d.order, d.early = slices.Clone(old.pending), old.order.clone(), maps.Clone(old.early)
		d.freed = maps.Clone(old.freed)
		for id, c := range old.files {
			d.files[id] = c.clone()
		}
	}
	// The dead process's open files without a name are gone.
	for _, n := range d.current.nodes {
		if n.nlink == 0 {
			d.freed[n.ino] = d.made
		}
	}
	d.current.dropUnlinked()
	for _, n := range d.current.nodes {
		d.inodes[n.ino] = true
	}
	d.sweep()
	return d.process()
}

// kept returns the pending changes that survive a loss of power.
func (d *disk) kept(loss Loss) map[*change]bool {
	kept := maps.Clone(d.early)
	for i, c := range d.pending {
		if loss.Names < 0 || i < loss.Names {
			kept[c] = true
		}
	}
	// What ParseLoss would not read keeps nothing.
	list, _ := positions(loss.Keep)
	for _, i := range list {
		if i >= 0 && i < len(d.pending) {
			withAll(d.pending[i], kept)
		}
	}
	// What was synced in a directory whose own name is lost is lost with it.
	waits := map[*change]bool{}
	for _, c := range d.pending {
		if !kept[c] || slices.ContainsFunc(c.after, func(b *change) bool { return waits[b] }) {
			delete(kept, c)
			waits[c] = true
		}
	}
	return kept
}

// loseFrom fills an empty disk with what survives.
func (d *disk) loseFrom(old *disk, loss Loss) {
	kept := old.kept(loss)
	lost := map[*change]bool{}
	d.stored = old.stored.clone()
	for _, c := range old.pending {
		if kept[c] {
			d.stored.apply(c)
		} else {
			lost[c] = true
		}
	}
	d.stored.dropUnlinked()
	d.current = d.stored.clone()
	for id, c := range old.files {
		if d.current.nodes[id] == nil {
			continue
		}
		kept := c.survive(loss.of(id, d.model), lost, d.block)
		kept.sync()
		d.files[id] = kept
	}
}
