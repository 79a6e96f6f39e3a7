package limits

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// gaugeKeep is how long a measured value is used.
const gaugeKeep = time.Second

// gauge caches a measured value, so that a thousand clients cost one measurement.
type gauge[T any] struct {
	mu    sync.Mutex
	at    time.Time
	value T
	err   error
}

func (g *gauge[T]) read(now time.Time, measure func() (T, error)) (T, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if age := now.Sub(g.at); g.at.IsZero() || age < 0 || age >= gaugeKeep {
		g.at = now
		g.value, g.err = measure()
	}
	return g.value, g.err
}

// Room is what a file system has left.
type Room struct {
	Size  int64 // of all of it
	Free  int64 // bytes
	Files int64 // -1: without limit
}

// reserve is what of a file system only reserved messages may use, beyond MinFree: a
// twentieth, and at most 64 MiB.
func (r Room) reserve() int64 { return min(r.Size/20, 64<<20) }

// Errors of Space.
var (
	ErrSpace = errors.New("limits: not enough free space")
	ErrFiles = errors.New("limits: not enough free files")
)

// Space checks that a file system has room for a message of a size, with MinFree and
// MinFiles left then, and with the reserve for a message that is not reserved: nil, ErrSpace,
// ErrFiles, or an error of the file system.
func (l *Limits) Space(dir string, size int64, reserved bool) error {
	if l.c.MinFree <= 0 && l.c.MinFiles <= 0 {
		return nil
	}
	r, err := l.space.read(l.c.Now(), func() (Room, error) {
		l.wrote.Store(0)
		return l.c.Measure(dir)
	})
	free, least := r.Free-l.wrote.Load(), l.c.MinFree
	if !reserved {
		least += r.reserve()
	}
	switch {
	case err != nil:
		return fmt.Errorf("measure %s: %w", dir, err)
	case l.c.MinFree > 0 && free-max(size, 0) < least:
		return fmt.Errorf("%w: %d bytes, and %d are to be left", ErrSpace, free, least)
	case l.c.MinFiles > 0 && r.Files >= 0 && r.Files < l.c.MinFiles:
		return fmt.Errorf("%w: %d, and %d are to be left", ErrFiles, r.Files, l.c.MinFiles)
	}
	return nil
}

// Wrote counts bytes that were written, or removed if n is negative, for Space until it
// measures again.
func (l *Limits) Wrote(n int64) { l.wrote.Add(n) }

// measure asks the file system, for what others than root may use.
func measure(dir string) (Room, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Room{}, err
	}
	bytes := func(blocks uint64) int64 {
		if size := uint64(s.Bsize); size > 0 && blocks < math.MaxInt64/size {
			return int64(blocks * size)
		}
		return math.MaxInt64
	}
	r := Room{Size: bytes(s.Blocks), Free: bytes(s.Bavail), Files: int64(min(s.Ffree, math.MaxInt64))}
	if s.Files == 0 { // btrfs has no such limit
		r.Files = -1
	}
	return r, nil
}

// Busy reports whether the load is above MaxLoad. One that cannot be measured is not.
func (l *Limits) Busy() (load float64, busy bool) {
	if l.c.MaxLoad <= 0 {
		return 0, false
	}
	load, err := l.load.read(l.c.Now(), l.c.Load)
	return load, err == nil && load > l.c.MaxLoad
}

// readLoad returns the load average of the last minute.
func readLoad() (float64, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(b), " ")
	return strconv.ParseFloat(first, 64)
}
