package engine

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// While the queue grows through hundreds of thousands of messages, the scheduler's heap is
// never more than 1.3 times as large as what the queue takes in the end. It is counted in
// bytes that the heap has in use, whether they live or not.
func TestDel8HeapIsBoundedWhileTheQueueGrows(t *testing.T) {
	if os.Getenv("GOGC") != "" || testing.Short() {
		t.Skip("GOGC is set, or -short")
	}
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	inUse := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	trimHeap()
	base, peak := inUse(), uint64(0)
	const messages = 250_000
	e := grow(t, messages, func(i int) {
		if i%1000 == 0 {
			peak = max(peak, inUse())
		}
	})
	e.now = e.now.Add(trimAfter)
	e.heap.trimAt, e.heap.grownTo = time.Time{}, 0 // trimSoon would trim in the background
	e.heap.tuneHeap()
	trimHeap()
	steady := inUse()
	if e.heap.gcPercent != manyPercent {
		t.Errorf("the collector's share is %d percent after the queue has grown, want %d", e.heap.gcPercent, manyPercent)
	}
	if n := e.messages.len(); n != messages || (view{e}).Status().Messages != messages {
		t.Errorf("%d messages, want %d", n, messages)
	}
	ratio := float64(peak-base) / float64(steady-base)
	t.Logf("at most %.1f MB, %.1f MB in the end: %.2f", float64(peak-base)/1e6, float64(steady-base)/1e6, ratio)
	if ratio > 1.3 {
		t.Errorf("the heap was %.2f times as large as in the end, want at most 1.3", ratio)
	}
	runtime.KeepAlive(e)
}

// A queue that does not grow while messages come and go is not taken for one that does.
func TestDel8QueueThatOnlyWorksIsNoGrowingOne(t *testing.T) {
	e := &engine{now: time.Unix(2e9, 0)}
	e.heap = heap{engine: e, gcPercent: growingPercent}
	for i := range uint64(2 * trimFrom) {
		e.messages.put(&thread.Message{Number: i + 1})
		e.heap.grown()
	}
	for i := range uint64(100) {
		e.messages.remove(e.messages.get(i + 1))
		e.now = e.now.Add(trimAfter / 10)
		e.messages.put(&thread.Message{Number: 2*trimFrom + i + 1})
		e.heap.grown()
	}
	if !e.heap.trimAt.Before(e.now) {
		t.Error("the heap is never trimmed while messages come and go")
	}
}

// What reading many messages has used is given back once they have stopped coming, and not
// for a few more.
func TestHeapIsTrimmedWhenManyMessagesHaveCome(t *testing.T) {
	e := &engine{now: time.Unix(2e9, 0)}
	e.heap.engine = e
	next := uint64(1)
	come := func(n int) {
		for range n {
			e.messages.put(&thread.Message{Number: next})
			e.heap.grown()
			next++
		}
	}
	leave := func(n int) {
		for range n {
			next--
			e.messages.remove(e.messages.get(next))
		}
	}
	wait := func(d time.Duration) {
		e.now = e.now.Add(d)
		e.heap.trimSoon()
	}
	for _, step := range []struct {
		name string
		do   func()
		due  bool
	}{
		{"a few", func() { come(trimFrom - 1) }, false},
		{"many", func() { come(1) }, true},
		{"more within the second", func() { wait(trimAfter / 2); come(1); wait(trimAfter / 2) }, true},
		{"a second of silence", func() { wait(trimAfter / 2) }, false},
		{"a few more", func() { come(trimFrom - 1) }, false},
		{"many are gone", func() { leave(2*trimFrom - 10) }, false},
		{"and many come again", func() { come(trimFrom + 1) }, true},
	} {
		step.do()
		if due := !e.heap.trimAt.IsZero(); due != step.due {
			t.Errorf("%s: due %v, want %v (%d messages, %d at the last time)", step.name, due, step.due, e.messages.len(), e.heap.trimmed)
		}
	}
}
