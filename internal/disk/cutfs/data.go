package cutfs

import (
	"math/rand/v2"
	"slices"
)

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
	// DataZeroed: the file has its length, and zeros where it grew. Not in model
	// Journal: ext4 in data=ordered writes the bytes before the length.
	DataZeroed
	// DataBlocks: of each block any version since the last sync survives, chosen by
	// the seed; the file ends behind any block that it reached. Not in model Journal.
	DataBlocks
	// DataMixed: each file has one of the kinds above, chosen by the seed.
	DataMixed
)

var dataNames = [...]string{"none", "torn", "appended", "overwritten", "all", "zeroed", "blocks", "mixed"}

func (d Data) String() string { return dataNames[d] }

// kinds returns the kinds of a model that DataMixed chooses from.
func kinds(m Model) []Data {
	list := []Data{DataNone, DataTorn, DataAppended, DataOverwritten, DataAll, DataZeroed, DataBlocks}
	if m == Journal {
		list = list[:DataZeroed]
	}
	return list
}

// dataLoss is what happens to one file.
type dataLoss struct {
	Data
	random *rand.Rand
}

// of returns what a loss does to the data of a node.
func (l Loss) of(id int, m Model) dataLoss {
	d := dataLoss{l.Data, rand.New(rand.NewPCG(l.Seed, uint64(id)))}
	if l.Data == DataMixed {
		list := kinds(m)
		d.Data = list[d.random.IntN(len(list))]
	}
	return d
}

// survive returns a file's content after a loss of power; lost are the changes of
// metadata that the disk does not have.
func (c *content) survive(loss dataLoss, lost map[*change]bool, block int) *content {
	kept := &content{data: slices.Clone(c.synced), mtime: c.syncedAt}
	edits := c.undurable
	for i, e := range edits {
		if e.truncate == nil {
			continue
		}
		if lost[e.truncate] {
			edits = edits[:i] // what came after went to blocks that the file does not have
			break
		}
	}
	for len(edits) > 0 && slices.ContainsFunc(edits, func(e edit) bool { return e.truncate != nil }) {
		// The last truncation that survives leaves nothing of what was before it.
		if e := edits[0]; e.truncate != nil {
			kept.data, kept.mtime = nil, e.at
		}
		edits = edits[1:]
	}
	if loss.Data == DataBlocks {
		kept.blocks(edits, loss.random, block)
		return kept
	}
	kept.bytes(edits, loss.Data)
	return kept
}

// bytes has writes survive by kind. What c has is the content of the last sync.
func (c *content) bytes(edits []edit, data Data) {
	base := int64(len(c.data)) // bytes below it have their blocks
	budget := 0
	for _, e := range edits {
		budget += len(e.b)
	}
	budget /= 2
	for _, e := range edits {
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
		case DataZeroed:
			b, off = make([]byte, int64(len(b))-below), off+below
		}
		if len(b) > 0 {
			c.data, c.mtime = put(c.data, b, off), e.at
		}
	}
}

// blocks has of each block one of its versions survive.
func (c *content) blocks(edits []edit, random *rand.Rand, block int) {
	versions := [][]byte{c.data}
	for _, e := range edits {
		versions = append(versions, put(slices.Clone(versions[len(versions)-1]), e.b, e.off))
		c.mtime = e.at
	}
	base, size := len(c.data), len(versions[len(versions)-1])
	if end := (base + random.IntN(size-base+1)) / block * block; random.IntN(2) == 0 && end < size {
		size = max(end, base)
	}
	data := make([]byte, size)
	for at := 0; at < size; at += block {
		v := versions[random.IntN(len(versions))]
		if at < len(v) {
			copy(data[at:min(at+block, size)], v[at:])
		}
	}
	c.data = data
}
