package cutfs

import (
	"maps"
	"slices"
)

// Model is what a file system promises of the changes of names and modes.
type Model int

const (
	// Journal: all changes reach the disk in one order, and a sync covers every
	// change before the last that it is asked for. ext4 and xfs.
	Journal Model = iota
	// Loose: only what is done to one inode, or under one name, keeps its order. A
	// sync covers the changes of its file or directory alone; that of a file covers
	// its names. btrfs and f2fs promise no more than this.
	Loose
	// POSIX: as Loose, but the sync of a file covers none of its names: a name is
	// durable when its directory was synced.
	POSIX
)

func (m Model) String() string { return [...]string{"journal", "loose", "posix"}[m] }

// SetModel says which promise the disk keeps; on an empty disk, before the first
// change. The default is Journal.
func (f *FS) SetModel(m Model) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.model = m
}

// SetBlock says how many bytes reach the disk together, 4096 if nothing is said.
// Small blocks tear small files.
func (f *FS) SetBlock(bytes int) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.block = bytes
}

// WriteBackAfter has everything reach the disk after n more operations of this
// process, as it does by itself when nothing happens for half a minute.
func (f *FS) WriteBackAfter(n int) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.settle = n + 1
}

// writeBack makes all changes and all data durable.
func (d *disk) writeBack() {
	for _, c := range d.pending {
		d.stored.apply(c)
	}
	d.pending = nil
	clear(d.early)
	for _, c := range d.files {
		c.sync()
	}
	d.sweep()
	d.log = append(d.log, "everything has reached the disk")
}

// place is a name in a directory.
type place struct {
	dir  int
	name string
}

// order is the last change of each thing, which the next change of it builds on.
type order struct {
	node   map[int]*change   // names of an inode; in model Loose its mode and size too
	inside map[int]*change   // model POSIX: mode and size of an inode
	name   map[place]*change // what is under a name
	made   map[int]*change   // directories
}

func newOrder() order {
	return order{map[int]*change{}, map[int]*change{}, map[place]*change{}, map[int]*change{}}
}

func (o order) clone() order {
	return order{maps.Clone(o.node), maps.Clone(o.inside), maps.Clone(o.name), maps.Clone(o.made)}
}

// before enters a change and returns those that must be on the disk when it is, and which
// of them made the directories that it is in.
func (o order) before(c *change, m Model) (list, above []*change) {
	add := func(b *change) {
		if b != nil && !slices.Contains(list, b) {
			list = append(list, b)
		}
	}
	if !c.ofName() && m == POSIX {
		add(o.inside[c.id])
		o.inside[c.id] = c
		return list, nil
	}
	add(o.node[c.id])
	o.node[c.id] = c
	if !c.ofName() {
		return list, nil
	}
	// A name is never on the disk without the directory that it is in, and under one
	// name there is never more than one file.
	places := []place{{c.dir, c.name}}
	if c.kind == rename {
		places = append(places, place{c.newDir, c.newName})
	}
	for _, at := range places {
		if made := o.made[at.dir]; made != nil {
			add(made)
			above = append(above, made)
		}
		add(o.name[at])
		o.name[at] = c
	}
	if c.kind == rename && c.replaced != root {
		add(o.node[c.replaced])
		o.node[c.replaced] = c
	}
	if c.kind == create && c.mode.IsDir() {
		o.made[c.id] = c
	}
	return list, above
}

// coverLoose stores what a sync promises in a model without one order.
func (d *disk) coverLoose(id int) {
	covered := maps.Clone(d.early)
	n := d.current.nodes[id]
	dir := n != nil && n.mode.IsDir()
	for _, c := range d.pending {
		own := c.id == id && (d.model == Loose || !c.ofName())
		entry := dir && c.ofName() && (c.dir == id || c.kind == rename && c.newDir == id)
		if own || entry {
			if d.model == POSIX {
				withOwn(c, covered)
			} else {
				withAll(c, covered)
			}
		}
	}
	clear(d.early)
	left := d.pending[:0:0]
	waits := map[*change]bool{}
	for _, c := range d.pending {
		ready := covered[c] && !slices.ContainsFunc(c.after, func(b *change) bool { return waits[b] })
		if ready && (c.ofName() || d.stored.nodes[c.id] != nil) {
			d.stored.apply(c)
			continue
		}
		left = append(left, c)
		waits[c] = true
		if covered[c] {
			d.early[c] = true
		}
	}
	d.pending = left
	d.sweep()
}

// withAll adds a change and all that it builds on.
func withAll(c *change, to map[*change]bool) {
	if to[c] {
		return
	}
	to[c] = true
	for _, b := range c.after {
		withAll(b, to)
	}
}

// withOwn adds a change and all that it builds on but the directories that it is in: the
// sync of a directory does not make that directory's own name durable.
func withOwn(c *change, to map[*change]bool) {
	if to[c] {
		return
	}
	to[c] = true
	for _, b := range c.after {
		if !slices.Contains(c.above, b) {
			withOwn(b, to)
		}
	}
}

// withheld reports whether a number whose file is gone may not be given yet. File
// systems that keep no order give a number again only when the file that had it,
// and everything before its end, is gone from the disk: btrfs gives none twice, f2fs
// waits for a checkpoint.
func (d *disk) withheld(ino uint64) bool {
	at, freed := d.freed[ino]
	return d.model != Journal && freed && len(d.pending) > 0 && d.pending[0].seq < at
}
