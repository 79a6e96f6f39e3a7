package cutfs

import (
	"fmt"
	"slices"
	"sync"
)

// Loss says what the next process does not find. The zero value is KeepAll.
type Loss struct {
	// Power is lost, not only the process.
	Power bool
	// Names is how many of the changes of names and modes that no sync covers
	// survive: 0 to Pending, all if negative.
	Names int
	// Data is what survives of the data that was not synced.
	Data Data
}

// Data is what survives a loss of power of the writes since a file's last sync.
type Data int

const (
	// DataNone: the file has the content of its last sync, none if there was none.
	DataNone Data = iota
	// DataTorn: the writes survive in their order up to half of their bytes.
	DataTorn
	// DataAppended: what made the file longer survives, what was written over bytes
	// of the last sync is lost.
	DataAppended
	// DataOverwritten: the other way round.
	DataOverwritten
	// DataAll: the disk has all of it.
	DataAll
)

func (d Data) String() string {
	return [...]string{"no data", "torn data", "appended data", "overwritten data", "all data"}[d]
}

// KeepAll: the process died, the machine goes on.
func KeepAll() Loss { return Loss{} }

// LoseUnsynced: power is lost with all data that was not synced and all but this
// many of the changes of names and modes that no sync covers.
func LoseUnsynced(names int) Loss { return Loss{Power: true, Names: names} }

// MetadataFirst: power is lost when names and modes had reached the disk and data
// had not, as delayed allocation does it.
func MetadataFirst() Loss { return Loss{Power: true, Names: -1} }

func (l Loss) String() string {
	switch {
	case !l.Power:
		return "process killed"
	case l.Names < 0:
		return fmt.Sprintf("power lost, all names, %v kept", l.Data)
	}
	return fmt.Sprintf("power lost, %d names, %v kept", l.Names, l.Data)
}

// Pending is how many changes of names and modes no sync covers.
func (f *FS) Pending() int {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return len(f.disk.pending)
}

// Losses lists every Loss that may lead to another disk now, KeepAll first.
func (f *FS) Losses() []Loss {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	kinds := []Data{DataNone}
	for _, c := range f.disk.files {
		if len(c.undurable) > 0 {
			kinds = []Data{DataNone, DataTorn, DataAppended, DataOverwritten, DataAll}
			break
		}
	}
	list := []Loss{KeepAll()}
	for names := range len(f.disk.pending) + 1 {
		for _, data := range kinds {
			list = append(list, Loss{Power: true, Names: names, Data: data})
		}
	}
	return list
}

// Restart is the disk as the next process finds it. f may go on or be restarted
// again in another way; the two no longer share anything.
func (f *FS) Restart(loss Loss) *FS {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	old := f.disk
	d := &disk{
		files: map[int]*content{}, inodes: map[uint64]bool{}, opens: map[int]int{}, flocks: map[int]*File{},
		nextID: old.nextID, last: old.last, now: old.now, procs: old.procs,
		log: append(slices.Clone(old.log), "restart: "+loss.String()),
	}
	d.freed = sync.NewCond(&d.mu)
	if loss.Power {
		d.loseFrom(old, loss)
	} else {
		d.current, d.stored = old.current.clone(), old.stored.clone()
		d.pending, d.covered = slices.Clone(old.pending), old.covered
		for id, c := range old.files {
			d.files[id] = c.clone()
		}
	}
	// The dead process's open files without a name are gone.
	d.current.dropUnlinked()
	for _, n := range d.current.nodes {
		d.inodes[n.ino] = true
	}
	d.sweep()
	return d.process()
}

// loseFrom fills an empty disk with what survives.
func (d *disk) loseFrom(old *disk, loss Loss) {
	names := len(old.pending)
	if loss.Names >= 0 {
		names = min(names, loss.Names)
	}
	d.stored = old.stored.clone()
	for _, c := range old.pending[:names] {
		d.stored.apply(c)
	}
	d.stored.dropUnlinked()
	d.current = d.stored.clone()
	for id, c := range old.files {
		if d.current.nodes[id] == nil {
			continue
		}
		kept := c.survive(loss.Data, old.covered+names)
		kept.sync()
		d.files[id] = kept
	}
}

// survive is a file's content after a loss of power; changes is how many changes
// of metadata the disk has.
func (c *content) survive(data Data, changes int) *content {
	kept := &content{data: slices.Clone(c.synced), mtime: c.syncedAt}
	base := int64(len(c.synced)) // bytes below it have their blocks
	budget := -1
	if data == DataTorn {
		budget = 0
		for _, e := range c.undurable {
			budget += len(e.b)
		}
		budget /= 2
	}
	for _, e := range c.undurable {
		if e.truncate {
			if e.change >= changes {
				break // what came after went to blocks that the file does not have
			}
			kept.data, kept.mtime, base = nil, e.at, 0
			continue
		}
		b, off := e.b, e.off
		below := min(max(base-off, 0), int64(len(b)))
		switch data {
		case DataNone:
			b = nil
		case DataTorn:
			b = b[:min(budget, len(b))]
			budget -= len(b)
		case DataAppended:
			b, off = b[below:], off+below
		case DataOverwritten:
			b = b[:below]
		}
		if len(b) > 0 {
			kept.data, kept.mtime = put(kept.data, b, off), e.at
		}
	}
	return kept
}
