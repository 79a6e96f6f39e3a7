package smtpserver

import (
	"errors"
	"sync"

	"zmailer/internal/stage/smtpserver/policy/limits"
)

// spaceEvery is how much of a message is written between two looks at the free space. Bytes.
const spaceEvery = 64 << 10

// holders are the unfinished messages of public clients that take more than spaceEvery of the
// disk. When there is too little space for public clients the largest of them has to go: a
// client that sends slowly, or nothing, would keep it from all others.
type holders struct {
	mu     sync.Mutex
	bytes  map[*transaction]int64
	ending *transaction // whose connection is being ended
}

// set notes what a message takes.
func (h *holders) set(t *transaction, n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bytes == nil {
		h.bytes = map[*transaction]int64{}
	}
	h.bytes[t] = n
}

// forget ends that.
func (h *holders) forget(t *transaction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.bytes, t)
	if h.ending == t {
		h.ending = nil
	}
}

// end ends the connection of the largest message, unless that is own, whose client is refused
// anyway, or the last one that was to end has not gone yet.
func (h *holders) end(own *transaction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending != nil {
		return
	}
	var largest *transaction
	for t, n := range h.bytes {
		if largest == nil || n > h.bytes[largest] {
			largest = t
		}
	}
	if largest == nil || largest == own {
		return
	}
	h.ending = largest
	largest.conn.Evict()
	own.flood.Warn("evicted", "client", largest.conn.RemoteAddr().String(), "bytes", h.bytes[largest], "reason", "the disk is almost full")
}

// reserved reports whether the client may use what is reserved of memory (SMTPMEMORY) and disk
// (MINFREE).
func (t *transaction) reserved() bool {
	return t.client.User != "" || t.limits.Exempt(t.client.Addr.Addr())
}

// space checks whether the disk has space for size bytes more.
func (t *transaction) space(size int64) error {
	reserved := t.reserved()
	err := t.limits.Space(t.PostOffice, size, reserved)
	if !reserved && errors.Is(err, limits.ErrSpace) {
		t.holders.end(t)
	}
	return err
}

// wrote counts bytes of the message that go to the disk, and measures the space now and then.
func (t *transaction) wrote(n int) error {
	t.limits.Wrote(int64(n))
	t.onDisk += int64(n)
	if t.unchecked += n; t.unchecked < spaceEvery || t.PostOffice == "" {
		return nil
	}
	t.unchecked = 0
	if !t.reserved() {
		t.holders.set(t, t.onDisk)
	}
	// What cannot be measured is found by the write.
	if err := t.space(0); errors.Is(err, limits.ErrSpace) {
		t.storageTrouble(err) // the client may not end its message soon
		return err
	}
	return nil
}

// kept ends the count of a message that stays on the disk.
func (t *transaction) kept() {
	if t.onDisk >= spaceEvery {
		t.holders.forget(t)
	}
	t.onDisk, t.unchecked = 0, 0
}

// removed ends the count of a message whose file is removed.
func (t *transaction) removed() {
	t.limits.Wrote(-t.onDisk)
	t.kept()
}
