package engine

import (
	"os"
	"runtime/debug"
	"time"
)

// The garbage collector lets the heap grow by GOGC percent of what lives, 100 unless
// GOGC is set: a gigabyte of queue would take two. From so many messages on
// less is left to it, which costs processor time for each collection, of which there are
// few: a delivery leaves some kilobytes (docs/notes/scale.md). While the queue grows still
// less is left: what lives and what is garbage both grow then, and the parts that tables
// have grown out of are garbage, too.
const (
	manyMessages   = 100_000
	manyPercent    = 40
	growingPercent = 22
)

// heap bounds the memory of a long queue.
type heap struct {
	*base
	gcPercent int       // 0: as it was
	trimAt    time.Time // when the heap is trimmed, see grown
	trimmed   int       // messages that there were then
	grownTo   int       // most messages since
}

// tuneHeap follows the number of messages.
func (e *heap) tuneHeap() {
	percent := 100
	switch {
	case e.messages.len() < manyMessages:
	case e.trimAt.IsZero():
		percent = manyPercent
	default:
		percent = growingPercent
	}
	if percent == e.gcPercent || os.Getenv("GOGC") != "" {
		return
	}
	if e.gcPercent == 0 && percent == 100 {
		return // as it is
	}
	e.gcPercent = percent
	debug.SetGCPercent(percent)
}

// When many messages have come, and no more for trimAfter, what reading them has used is
// given back.
const (
	trimAfter = time.Second
	trimFrom  = 4096 // more messages than after the last time, or a quarter more; of many, a sixteenth
)

// grown takes note of a message that has come.
func (e *heap) grown() {
	n := e.messages.len()
	e.trimmed = min(e.trimmed, n)
	share := 4
	if n >= manyMessages {
		share = 16
	}
	// Where as many go as come the queue does not grow.
	if n-e.trimmed < max(trimFrom, e.trimmed/share) || n <= e.grownTo {
		return
	}
	e.grownTo = n
	e.trimAt = e.now.Add(trimAfter)
	if n >= manyMessages && e.gcPercent != growingPercent {
		e.tuneHeap()
	}
}

// trimSoon trims the heap when it is time.
func (e *heap) trimSoon() {
	if e.trimAt.IsZero() || e.now.Before(e.trimAt) {
		return
	}
	e.trimAt, e.trimmed, e.grownTo = time.Time{}, e.messages.len(), 0
	e.tuneHeap()
	go trimHeap()
}

// trimHeap gives back what a scan has used.
func trimHeap() { debug.FreeOSMemory() }
