package scheduler

import (
	"os"
	"runtime/debug"
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

// trimHeap gives back what a scan has used.
func trimHeap() { debug.FreeOSMemory() }
