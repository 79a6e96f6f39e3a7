package cutfs

import (
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"
)

// root is the node of the root directory.
const root = 0

// node is an inode's metadata.
type node struct {
	ino   uint64
	uid   uint32
	mode  fs.FileMode
	mtime time.Time
	ctime time.Time
	setAt time.Time // when mtime was set by hand; zero: never
	nlink int
	names map[string]int // of a directory
}

// image is the metadata of a disk at one time.
type image struct{ nodes map[int]*node }

func newImage() *image {
	return &image{map[int]*node{root: {ino: 2, uid: uint32(os.Getuid()), mode: fs.ModeDir | 0o755, nlink: 1, names: map[string]int{}}}}
}

func (im *image) clone() *image {
	c := &image{make(map[int]*node, len(im.nodes))}
	for id, n := range im.nodes {
		copied := *n
		copied.names = maps.Clone(n.names)
		c.nodes[id] = &copied
	}
	return c
}

// changeKind is what a change does.
type changeKind int

const (
	create changeKind = iota
	link
	unlink
	rename
	chmod
	settime
	truncate
)

// change is one change of metadata. It is applied to the current image when it is
// made and to the stored one when a sync covers it.
type change struct {
	kind          changeKind
	at            time.Time
	id            int // the node
	ino           uint64
	uid           uint32      // create
	mode          fs.FileMode // create, chmod
	mtime         time.Time   // settime
	dir, newDir   int
	name, newName string
	replaced      int  // rename: node that stood at newName; root: none
	swaps         bool // rename: that one gets the old name

	seq   int       // number among all changes
	text  string    // as in the log
	after []*change // what must be on the disk before it; not in model Journal
	above []*change // of those, the changes that made the directories that it is in
}

// touches reports whether a sync of that node covers the change.
func (c *change) touches(id int) bool {
	if c.id == id {
		return true
	}
	switch c.kind {
	case create, link, unlink:
		return c.dir == id
	case rename:
		return c.dir == id || c.newDir == id || (c.replaced != root && c.replaced == id)
	}
	return false
}

// ofName reports whether the change is one of names, not of what the inode holds.
func (c *change) ofName() bool { return c.kind < chmod }

// apply makes the change. The nodes are there, because a change comes after those
// that it builds on; only what is done to an open file without a name, or to one
// whose name was lost, finds nothing.
func (im *image) apply(c *change) {
	if c.kind != create && im.nodes[c.id] == nil {
		return
	}
	switch c.kind {
	case create:
		n := &node{ino: c.ino, uid: c.uid, mode: c.mode, mtime: c.at, nlink: 1}
		if c.mode.IsDir() {
			n.names = map[string]int{}
		}
		im.nodes[c.id] = n
		im.enter(c.dir, c.name, c.id, c.at)
	case link:
		im.enter(c.dir, c.name, c.id, c.at)
		im.nodes[c.id].nlink++
	case unlink:
		im.leave(c.dir, c.name, c.at)
		im.nodes[c.id].nlink--
	case rename:
		if c.swaps {
			im.enter(c.dir, c.name, c.replaced, c.at)
			im.enter(c.newDir, c.newName, c.id, c.at)
			break
		}
		if c.replaced != root {
			im.nodes[c.replaced].nlink--
		}
		im.leave(c.dir, c.name, c.at)
		im.enter(c.newDir, c.newName, c.id, c.at)
	case chmod:
		n := im.nodes[c.id]
		n.mode = n.mode.Type() | c.mode
	case settime:
		n := im.nodes[c.id]
		n.mtime, n.setAt = c.mtime, c.at
	case truncate:
		im.nodes[c.id].mtime = latest(im.nodes[c.id].mtime, c.at)
	}
	n := im.nodes[c.id]
	n.ctime = latest(n.ctime, c.at)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (im *image) enter(dir int, name string, id int, at time.Time) {
	d := im.nodes[dir]
	d.names[name] = id
	d.mtime, d.ctime = latest(d.mtime, at), latest(d.ctime, at)
}

func (im *image) leave(dir int, name string, at time.Time) {
	d := im.nodes[dir]
	delete(d.names, name)
	d.mtime, d.ctime = latest(d.mtime, at), latest(d.ctime, at)
}

// dropUnlinked forgets nodes without a name.
func (im *image) dropUnlinked() {
	maps.DeleteFunc(im.nodes, func(_ int, n *node) bool { return n.nlink == 0 })
}

// content is a file's data: as it is, as it was at the last sync, and what was done
// in between.
type content struct {
	data      []byte
	mtime     time.Time
	synced    []byte
	syncedAt  time.Time // mtime at the last sync
	undurable []edit
}

// edit is one write or truncation since the last sync.
type edit struct {
	at       time.Time
	off      int64
	b        []byte
	truncate *change // a truncation; nil: a write
}

func (c *content) clone() *content {
	copied := *c
	copied.data = slices.Clone(c.data)
	copied.undurable = slices.Clone(c.undurable)
	return &copied
}

// write puts bytes at an offset; a gap before it is zero.
func (c *content) write(b []byte, off int64, at time.Time) {
	c.data = put(c.data, b, off)
	c.mtime = at
	c.undurable = append(c.undurable, edit{at: at, off: off, b: slices.Clone(b)})
}

func (c *content) truncate(at time.Time, change *change) {
	c.data = nil
	c.mtime = at
	c.undurable = append(c.undurable, edit{at: at, truncate: change})
}

func (c *content) sync() {
	c.synced, c.syncedAt, c.undurable = slices.Clone(c.data), c.mtime, nil
}

func put(data, b []byte, off int64) []byte {
	if end := off + int64(len(b)); end > int64(len(data)) {
		data = append(data, make([]byte, end-int64(len(data)))...)
	}
	copy(data[off:], b)
	return data
}
