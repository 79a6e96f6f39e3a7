package cutfs

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Losses lists every Loss that may lead to another disk now, KeepAll first. In
// models without one order there may be too many: then it lists those that take
// everything from, or leave everything to, one file or one directory, and RandomLoss
// gives the others.
func (f *FS) Losses() []Loss {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	d := f.disk
	data := []Data{DataNone}
	for _, c := range d.files {
		if len(c.undurable) > 0 {
			data = kinds(d.model)
			break
		}
	}
	list := []Loss{KeepAll()}
	for _, l := range d.names() {
		for _, kind := range data {
			l.Data = kind
			list = append(list, l)
		}
	}
	return list
}

// exhaustive is up to how many sets of surviving changes Losses lists them all.
const exhaustive = 64

// names returns the choices of what changes survive.
func (d *disk) names() []Loss {
	var list []Loss
	if d.model == Journal {
		for names := range len(d.pending) + 1 {
			list = append(list, Loss{Power: true, Names: names})
		}
		return list
	}
	sets, all := d.subsets(exhaustive)
	if !all {
		sets = d.oneSided()
	}
	for _, keep := range sets {
		list = append(list, Loss{Power: true, Keep: keep})
	}
	return list
}

// Subsets lists every set of changes that may survive, for Loss.Keep; false if there
// are more than the limit.
func (f *FS) Subsets(limit int) ([]string, bool) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.subsets(limit)
}

func (d *disk) subsets(limit int) (sets []string, all bool) {
	kept := map[*change]bool{}
	var set []int
	var walk func(i int) bool
	walk = func(i int) bool {
		for i < len(d.pending) && d.early[d.pending[i]] {
			i++
		}
		if i == len(d.pending) {
			sets = append(sets, keepOf(set))
			return len(sets) <= limit
		}
		if !walk(i + 1) {
			return false
		}
		c := d.pending[i]
		if !d.ready(c, kept) {
			return true
		}
		kept[c], set = true, append(set, i)
		ok := walk(i + 1)
		delete(kept, c)
		set = set[:len(set)-1]
		return ok
	}
	if !walk(0) {
		return nil, false
	}
	return sets, true
}

// ready reports whether all that a change builds on is kept or durable.
func (d *disk) ready(c *change, kept map[*change]bool) bool {
	return !slices.ContainsFunc(c.after, func(b *change) bool {
		return !kept[b] && !d.early[b] && slices.Contains(d.pending, b)
	})
}

// choose returns the changes that survive if each that may is asked for.
func (d *disk) choose(ask func(i int, c *change) bool) string {
	kept := map[*change]bool{}
	var set []int
	for i, c := range d.pending {
		if !d.early[c] && ask(i, c) && d.ready(c, kept) {
			kept[c] = true
			set = append(set, i)
		}
	}
	return keepOf(set)
}

func keepOf(set []int) string {
	words := make([]string, len(set))
	for i, n := range set {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}

// oneSided returns the sets that favour or rob one file or one directory, and the empty
// and the full one.
func (d *disk) oneSided() []string {
	sets := []string{""}
	add := func(keep string) {
		if !slices.Contains(sets, keep) {
			sets = append(sets, keep)
		}
	}
	add(d.choose(func(int, *change) bool { return true }))
	var nodes, dirs []int
	note := func(list *[]int, id int) {
		if !slices.Contains(*list, id) {
			*list = append(*list, id)
		}
	}
	for _, c := range d.pending {
		note(&nodes, c.id)
		note(&dirs, c.dir)
		note(&dirs, c.newDir)
	}
	for _, id := range nodes {
		add(d.choose(func(_ int, c *change) bool { return c.id != id }))
		add(d.favour(func(c *change) bool { return c.id == id }))
	}
	for _, id := range dirs {
		in := func(c *change) bool { return c.ofName() && (c.dir == id || c.kind == rename && c.newDir == id) }
		add(d.choose(func(_ int, c *change) bool { return !in(c) }))
		add(d.favour(in))
	}
	return sets
}

// favour keeps some changes and what they build on, nothing else.
func (d *disk) favour(these func(c *change) bool) string {
	kept := map[*change]bool{}
	for _, c := range d.pending {
		if these(c) {
			withAll(c, kept)
		}
	}
	return d.choose(func(_ int, c *change) bool { return kept[c] })
}

// RandomLoss returns a loss of power in which anything that may happen happens: any set
// of changes, each file's data in its own way.
func (f *FS) RandomLoss(random *rand.Rand) Loss {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	d := f.disk
	l := Loss{Power: true, Data: DataMixed, Seed: random.Uint64() >> 16}
	if random.IntN(3) == 0 {
		list := kinds(d.model)
		l.Data = list[random.IntN(len(list))]
	}
	if d.model == Journal {
		l.Names = random.IntN(len(d.pending) + 1)
		return l
	}
	switch likely := random.IntN(10); random.IntN(3) {
	case 0: // each change for itself
		l.Keep = d.choose(func(int, *change) bool { return random.IntN(10) <= likely })
	case 1: // each file up to some change
		ends := map[int]bool{}
		l.Keep = d.choose(func(_ int, c *change) bool {
			ends[c.id] = ends[c.id] || random.IntN(4) == 0
			return !ends[c.id]
		})
	default: // each directory up to some change
		ends := map[int]bool{}
		l.Keep = d.choose(func(_ int, c *change) bool {
			for _, dir := range []int{c.dir, c.newDir} {
				ends[dir] = ends[dir] || random.IntN(6) == 0
			}
			return !ends[c.dir] && !ends[c.newDir]
		})
	}
	return l
}
