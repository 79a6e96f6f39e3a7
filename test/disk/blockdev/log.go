package blockdev

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"time"
)

// recordSize is that of a record in the index file: five words of 64 bits.
const recordSize = 40

// Record is one operation of the log.
type Record struct {
	Op       Op
	Off, Len int64 // of a write
	Time     time.Time
	data     int64 // where its data are in the data file
}

// Log is what a disk was given.
type Log struct {
	Records []Record
	Size    int64 // of the disk
	data    *os.File
	// from and to stand for each other in data that were written behind replaced.
	from, to []byte
	replaced int
}

func openLog(opt Options) (*Log, error) {
	text, err := os.ReadFile(opt.index())
	if err != nil {
		return nil, err
	}
	l := &Log{Size: opt.Size}
	for ; len(text) >= recordSize; text = text[recordSize:] {
		word := func(i int) int64 { return int64(binary.LittleEndian.Uint64(text[8*i:])) }
		l.Records = append(l.Records, Record{Op(word(0)), word(1), word(2), time.Unix(0, word(3)), word(4)})
	}
	l.data, err = os.Open(opt.data())
	return l, err
}

// Close closes the log's files.
func (l *Log) Close() error { return l.data.Close() }

// Data returns those of a write.
func (l *Log) Data(i int) ([]byte, error) {
	r := l.Records[i]
	b := make([]byte, r.Len)
	_, err := l.data.ReadAt(b, r.data)
	if len(l.from) > 0 && i >= l.replaced {
		b = bytes.ReplaceAll(b, l.from, l.to)
	}
	return b, err
}

// Replaced returns the same log of a disk that mixed data up: what was written behind a
// position has one text in the place of another of the same length.
func (l *Log) Replaced(position int, from, to []byte) *Log {
	replaced := *l
	replaced.from, replaced.to, replaced.replaced = from, to, position
	return &replaced
}

// Position returns the number of operations that had been logged at a time. An operation is
// logged before it is answered: what a program knew then is older than the position.
func (l *Log) Position(t time.Time) int {
	return sort.Search(len(l.Records), func(i int) bool { return l.Records[i].Time.After(t) })
}

// Flushes lists the positions of the flushes from one position to another.
func (l *Log) Flushes(from, to int) []int {
	var list []int
	for i := from; i < min(to, len(l.Records)); i++ {
		if l.Records[i].Op == Flush {
			list = append(list, i)
		}
	}
	return list
}

// WithoutFlushes returns the same log of a disk that was never asked to flush after a
// position: a drive that answers a flush and does nothing.
func (l *Log) WithoutFlushes(from int) *Log {
	without := *l
	without.Records = slices.Clone(l.Records)
	for _, i := range l.Flushes(from, len(l.Records)) {
		without.Records[i] = Record{Op: Write, Time: l.Records[i].Time} // of no data, so that positions stay
	}
	return &without
}

// Way is how a disk loses what it was not asked to flush.
type Way string

// Ways.
const (
	None   Way = "none"   // nothing that was not flushed is there
	All    Way = "all"    // everything is there
	Prefix Way = "prefix" // what came first is there; the last write is torn
	Subset Way = "subset" // any of the writes are there, and any of them are torn
)

// Cut is a loss of power.
type Cut struct {
	At   int // the operations before this position have happened
	Way  Way
	Seed uint64 // of what is random in it
}

func (c Cut) String() string { return fmt.Sprintf("%d:%s:%d", c.At, c.Way, c.Seed) }

// page is the unit in which a builder keeps a disk, bytes.
const page = 4096

// Builder rebuilds the disk at one moment after another, without reading the log from
// its beginning each time.
type Builder struct {
	log  *Log
	done int // the operations before it are in pages
	// pages that are not zero, by number.
	pages map[int64][]byte
}

// NewBuilder returns a builder that has read nothing yet.
func NewBuilder(l *Log) *Builder { return &Builder{log: l, pages: map[int64][]byte{}} }

// Build writes the disk as the cut leaves it into a new file. The cuts of a builder must
// come in the order of the flushes before them: sort them by At.
func (b *Builder) Build(path string, c Cut) (err error) {
	durable := 0 // what happened before it was flushed
	for i := c.At - 1; i >= 0 && durable == 0; i-- {
		if b.log.Records[i].Op == Flush {
			durable = i
		}
	}
	if durable < b.done {
		return fmt.Errorf("the cut %v is older than the one before it", c)
	}
	for ; b.done < durable; b.done++ {
		data, err := b.log.Data(b.done)
		if err != nil {
			return err
		}
		put(b.pages, nil, b.log.Records[b.done].Off, data)
	}
	over, err := b.lost(durable, c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(b.log.Size); err != nil {
		return err
	}
	for n, p := range b.pages {
		if over[n] != nil {
			continue
		}
		if _, err := f.WriteAt(p, n*page); err != nil {
			return err
		}
	}
	for n, p := range over {
		if _, err := f.WriteAt(p, n*page); err != nil {
			return err
		}
	}
	return nil
}

// lost returns what the disk has of the writes after a flush, as pages above the builder's.
func (b *Builder) lost(from int, c Cut) (map[int64][]byte, error) {
	over := map[int64][]byte{}
	random := rand.New(rand.NewPCG(c.Seed, uint64(c.At)))
	var writes []int
	for i := from; i < c.At; i++ {
		if b.log.Records[i].Op == Write {
			writes = append(writes, i)
		}
	}
	likely := random.Float64() // how much of a subset is there
	switch c.Way {
	case None:
		writes = nil
	case Prefix:
		writes = writes[:random.IntN(len(writes)+1)]
	case Subset:
		writes = slices.DeleteFunc(writes, func(int) bool { return random.Float64() > likely })
	}
	for n, i := range writes {
		data, err := b.log.Data(i)
		if err != nil {
			return nil, err
		}
		off := b.log.Records[i].Off
		torn := c.Way == Prefix && n == len(writes)-1 || c.Way == Subset && random.IntN(8) == 0
		if !torn {
			put(over, b.pages, off, data)
			continue
		}
		for part := range slices.Chunk(data, sector) {
			if random.IntN(2) == 0 {
				put(over, b.pages, off, part)
			}
			off += int64(len(part))
		}
	}
	return over, nil
}

// put writes data into pages; what a page has beside it comes from below.
func put(pages, below map[int64][]byte, off int64, data []byte) {
	for len(data) > 0 {
		n, begin := off/page, off%page
		p := pages[n]
		part := data[:min(int64(len(data)), page-begin)]
		if p == nil && below[n] == nil && zero(part) {
			off, data = off+int64(len(part)), data[len(part):]
			continue
		}
		if p == nil {
			p = make([]byte, page)
			copy(p, below[n])
			pages[n] = p
		}
		copy(p[begin:], part)
		off, data = off+int64(len(part)), data[len(part):]
	}
}

func zero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}
