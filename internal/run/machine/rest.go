package machine

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// What a burst has used stays with a process: Go collects when the heap has doubled, from
// 4 MB on, and gives back slowly. Several daemons that have nothing to do would hold some
// megabytes each.
const (
	restAfter = time.Second // without work
	restFrom  = 2 << 20     // bytes allocated since the last time
)

var rest = resting{after: restAfter, from: restFrom, free: debug.FreeOSMemory}

// Worked is called when a piece of work is done. A second after the last the process gives
// back the memory that it does not need, if there was so much work that it may be worth it.
func Worked() { rest.worked() }

// resting waits for the end of work; while there is none, for nothing.
type resting struct {
	after time.Duration
	from  uint64
	free  func()

	mu        sync.Mutex
	waiting   bool   // the timer is set
	busy      bool   // work was done since
	allocated uint64 // when memory was given back last
}

func (r *resting) worked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = true
	if !r.waiting {
		r.waiting = true
		time.AfterFunc(r.after, r.look)
	}
}

// look comes when the timer has run out.
func (r *resting) look() {
	if r.over() {
		r.free()
	}
}

// over sets the timer again, or reports whether it is worth while to give memory back.
func (r *resting) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting = r.busy; r.busy {
		r.busy = false
		time.AfterFunc(r.after, r.look)
		return false
	}
	now := allocated()
	if now-r.allocated < r.from {
		return false
	}
	r.allocated = now
	return true
}

// allocated counts the bytes allocated in the life of the process.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
