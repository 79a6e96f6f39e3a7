package lease

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// State is what a node is, as far as its programs are concerned.
type State uint64

// States. A page full of zeros has none of them.
const (
	None State = iota + 1 // the node has no lease
	Held                  // it has one until the deadline
)

// The page is an array of 64-bit words in the byte order of the machine. Of two records one is in
// use; the word inUse says which.
const (
	magic   = 0x317361656c6d7a // "zmleas1": the last byte is the version
	maxNode = 64               // bytes

	wordMagic = 0
	wordNode  = 1 // 8 words, padded with zeros
	wordBoot  = 9 // 2 words
	wordInUse = 11
	wordFirst = 16 // a record
	wordNext  = 24 // the other record

	headWords = wordInUse
	words     = 512
	size      = 8 * words
)

// record is what zmcluster publishes.
type record struct {
	number   uint64 // of the lease
	deadline time.Duration
	state    State
}

// memory is a mapped page.
type memory [words]uint64

// head returns the words before the records, which never change.
func head(node string, boot [16]byte) (h [headWords]uint64) {
	h[wordMagic] = magic
	var name [maxNode]byte
	copy(name[:], node)
	for i := range maxNode / 8 {
		h[wordNode+i] = binary.NativeEndian.Uint64(name[8*i:])
	}
	h[wordBoot] = binary.NativeEndian.Uint64(boot[:])
	h[wordBoot+1] = binary.NativeEndian.Uint64(boot[8:])
	return h
}

// sum is the checksum of a record and of what is before the records: FNV-1a over whole words. It
// is for damage; attackers are kept off by the file's owner and mode.
func sum(h *[headWords]uint64, r *record) uint64 {
	s := uint64(0xcbf29ce484222325)
	add := func(w uint64) { s = (s ^ w) * 0x100000001b3 }
	for _, w := range h {
		add(w)
	}
	add(r.number)
	add(uint64(r.deadline))
	add(uint64(r.state))
	return s
}

// slot returns the first word of a record by the value of the word inUse; 0: there is no such.
func slot(inUse uint64) int {
	switch inUse {
	case 1:
		return wordFirst
	case 2:
		return wordNext
	}
	return 0
}

// current returns the record in use.
func (m *memory) current(node string, boot [16]byte) (record, error) {
	var h [headWords]uint64
	for i := range h {
		h[i] = atomic.LoadUint64(&m[i])
	}
	if want := head(node, boot); h != want {
		return record{}, misnamed(&h, &want)
	}
	// The record is written while it is not in use. Two renewals within this loop are not expected,
	// and a third look would find the third.
	for range 3 {
		at := slot(atomic.LoadUint64(&m[wordInUse]))
		if at == 0 {
			break
		}
		r := record{atomic.LoadUint64(&m[at]), time.Duration(atomic.LoadUint64(&m[at+1])), State(atomic.LoadUint64(&m[at+2]))}
		if atomic.LoadUint64(&m[at+3]) == sum(&h, &r) {
			return r, nil
		}
	}
	return record{}, errors.New("the page is damaged: wrong checksum")
}

// misnamed says what is wrong with the words before the records.
func misnamed(h, want *[headWords]uint64) error {
	switch {
	case h[wordMagic] == 0:
		return errors.New("the page is empty")
	case h[wordMagic]&^(0xff<<48) == magic&^(0xff<<48) && h[wordMagic] != magic:
		return fmt.Errorf("the page is of version %q, which this program does not read", rune(h[wordMagic]>>48&0xff))
	case h[wordMagic] != magic:
		return errors.New("the file is no lease page")
	case [8]uint64(h[wordNode:]) != [8]uint64(want[wordNode:]):
		return errors.New("the page is of another node")
	}
	return errors.New("the page is from before the last start of this machine")
}

// write makes a record the one in use. Crash: the record before is in use until the last store.
func (m *memory) write(h *[headWords]uint64, r record) {
	next := uint64(1)
	if atomic.LoadUint64(&m[wordInUse]) == 1 {
		next = 2
	}
	at := slot(next)
	atomic.StoreUint64(&m[at], r.number)
	atomic.StoreUint64(&m[at+1], uint64(r.deadline))
	atomic.StoreUint64(&m[at+2], uint64(r.state))
	atomic.StoreUint64(&m[at+3], sum(h, &r))
	atomic.StoreUint64(&m[wordInUse], next)
}

// bootID identifies the time since the machine was started: CLOCK_BOOTTIME begins with it.
func bootID() (id [16]byte, err error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, err
	}
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("/proc/sys/kernel/random/boot_id is %q", text)
	}
	return [16]byte(b), nil
}
