package scheduler

import (
	"os"
	"runtime/debug"
	"time"
)

// The garbage collector lets the heap grow by GOGC percent of what lives, 100 unless
// somebody says otherwise: a gigabyte of queue would take two. From so many messages on
// less is left to it, which costs processor time for each collection, of which there are
// few: a delivery leaves some kilobytes (docs/notes/scale.md).
const (
	manyMessages = 100_000
	manyPercent  = 40
)

// tuneHeap follows the number of messages.
func (e *engine) tuneHeap() {
	many := e.messages.len() >= manyMessages
	if many == e.manyMessages || os.Getenv("GOGC") != "" {
		return
	}
	e.manyMessages = many
	if many {
		debug.SetGCPercent(manyPercent)
		return
	}
	debug.SetGCPercent(100)
}

// When many messages have come, and no more for trimAfter, what reading them has used is
// given back.
const (
	trimAfter = time.Second
	trimFrom  = 4096 // more messages than after the last time, or a quarter more
)

// grown takes note of a message that has come.
func (e *engine) grown() {
	e.trimmed = min(e.trimmed, e.messages.len())
	if e.messages.len()-e.trimmed >= max(trimFrom, e.trimmed/4) {
		e.trimAt = e.now.Add(trimAfter)
	}
}

// trimSoon trims the heap when it is time.
func (e *engine) trimSoon() {
	if e.trimAt.IsZero() || e.now.Before(e.trimAt) {
		return
	}
	e.trimAt, e.trimmed = time.Time{}, e.messages.len()
	go trimHeap()
}

// trimHeap gives back what a scan has used.
func trimHeap() { debug.FreeOSMemory() }
