package cutfs

import (
	"hash/fnv"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// firstInode is the lowest inode number of a file, as on ext4.
const firstInode = 12

// disk is what the processes share.
type disk struct {
	mu      sync.Mutex
	unlock  *sync.Cond // a lock was given back, or a process died
	current *image     // as processes see it
	stored  *image     // as the disk surely has it
	pending []*change  // made to current and not to stored
	model   Model
	order   order            // the last changes of each thing, for those that come after
	early   map[*change]bool // pending, and synced all the same: of a file without a synced name
	block   int              // bytes that reach the disk together
	files   map[int]*content
	inodes  map[uint64]bool // numbers in use
	freed   map[uint64]int  // numbers whose files' removal may be pending -> changes made by then
	made    int             // changes made so far
	lowest  uint64          // no number below is free
	opens   map[int]int     // open files by node
	flocks  map[int]*File
	shares  map[int]map[*File]bool // shared flocks by node
	nextID  int
	last    time.Time
	now     func() time.Time
	procs   int
	// onlyLinks: there is no RenameNew and no Exchange; see OnlyLinks.
	onlyLinks bool
	log       []string
	doing     string // the operation at hand, for the log
}

func (d *disk) process() *FS {
	d.procs++
	return &FS{disk: d, number: d.procs, uid: uint32(os.Getuid()), left: -1, open: map[*File]bool{}}
}

// tick returns a time later than every time before.
func (d *disk) tick() time.Time {
	t := d.now()
	if !t.After(d.last) {
		t = d.last.Add(time.Nanosecond)
	}
	d.last = t
	return t
}

// make applies a change.
func (d *disk) make(c *change) {
	c.at = d.tick()
	c.text, c.seq = d.doing, d.made
	if d.model != Journal {
		c.after, c.above = d.order.before(c, d.model)
	}
	d.current.apply(c)
	d.pending = append(d.pending, c)
	d.made++
}

// cover stores what a sync of a node promises.
func (d *disk) cover(id int) {
	if d.model != Journal {
		d.coverLoose(id)
		return
	}
	n := 0
	for i, c := range d.pending {
		if c.touches(id) {
			n = i + 1
		}
	}
	for _, c := range d.pending[:n] {
		d.stored.apply(c)
	}
	d.pending = slices.Clone(d.pending[n:])
	d.sweep()
}

// sweep forgets what nothing can bring back, when all changes are stored.
func (d *disk) sweep() {
	if len(d.pending) > 0 {
		return
	}
	clear(d.freed)
	d.order = newOrder()
	d.stored.dropUnlinked()
	for id := range d.files {
		if d.current.nodes[id] == nil && d.stored.nodes[id] == nil {
			delete(d.files, id)
		}
	}
}

// closed is one open file of a node less.
func (d *disk) closed(id int) {
	if d.opens[id]--; d.opens[id] == 0 {
		delete(d.opens, id)
	}
	d.unused(id)
}

// unused gives a node's inode back if neither a name nor an open file is left. The
// content stays while the loss of a pending change could bring the file back.
func (d *disk) unused(id int) {
	n := d.current.nodes[id]
	if n == nil || n.nlink > 0 || d.opens[id] > 0 {
		return
	}
	delete(d.current.nodes, id)
	delete(d.inodes, n.ino)
	d.lowest = min(d.lowest, n.ino)
	d.freed[n.ino] = d.made
}

// takeInode returns the lowest number that may be given: like ext4, which gives the
// number of a removed file to the next one.
func (d *disk) takeInode() uint64 {
	ino := max(d.lowest, firstInode)
	d.lowest = 0
	for d.inodes[ino] || d.withheld(ino) {
		if !d.inodes[ino] && d.lowest == 0 {
			d.lowest = ino
		}
		ino++
	}
	d.inodes[ino] = true
	if d.lowest == 0 {
		d.lowest = ino + 1
	}
	return ino
}

// find resolves a name to a node, or to the directory where it would be.
func (d *disk) find(name string) (id, dir int, base string, err error) {
	if !fs.ValidPath(name) {
		return 0, 0, "", unix.EINVAL
	}
	if name == "." {
		return root, root, ".", nil
	}
	parent, base := path.Split(name)
	dir = root
	for _, part := range strings.FieldsFunc(parent, func(r rune) bool { return r == '/' }) {
		n := d.current.nodes[dir]
		if !n.mode.IsDir() {
			return 0, 0, "", unix.ENOTDIR
		}
		next, ok := n.names[part]
		if !ok {
			return 0, 0, "", unix.ENOENT
		}
		dir = next
	}
	n := d.current.nodes[dir]
	if !n.mode.IsDir() {
		return 0, 0, "", unix.ENOTDIR
	}
	id, ok := n.names[base]
	if !ok {
		return 0, dir, base, unix.ENOENT
	}
	return id, dir, base, nil
}

func (d *disk) info(id int) durable.Info {
	n := d.current.nodes[id]
	info := durable.Info{
		Dev: 1, Ino: n.ino, Mode: n.mode, ModTime: n.mtime, CTime: n.ctime,
		UID: n.uid, Nlink: uint64(n.nlink),
	}
	if c := d.files[id]; c != nil {
		info.Size = int64(len(c.data))
		if c.mtime.After(info.ModTime) && c.mtime.After(n.setAt) {
			info.ModTime = c.mtime
		}
		if c.mtime.After(info.CTime) {
			info.CTime = c.mtime
		}
	}
	return info
}

// list returns a directory's names in an order that is the same every time and not
// that of the alphabet.
func (d *disk) list(id int) []durable.Entry {
	var list []durable.Entry
	for name, child := range d.current.nodes[id].names {
		n := d.current.nodes[child]
		list = append(list, durable.Entry{Name: name, Ino: n.ino, Type: n.mode.Type()})
	}
	key := func(name string) uint32 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name)) // a hash cannot fail
		return h.Sum32()
	}
	slices.SortFunc(list, func(a, b durable.Entry) int {
		if ka, kb := key(a.Name), key(b.Name); ka != kb {
			return int(int64(ka) - int64(kb))
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}
