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

// room is what a file system has left for us.
type room struct{ free, files int64 }

// Errors of Space.
var (
	ErrSpace = errors.New("limits: not enough free space")
	ErrFiles = errors.New("limits: not enough free files")
)

// Space checks that a file system has room for a message of a size, with MinFree and
// MinFiles left then: nil, ErrSpace, ErrFiles, or an error of the file system.
func (l *Limits) Space(dir string, size int64) error {
	if l.c.MinFree <= 0 && l.c.MinFiles <= 0 {
		return nil
	}
	r, err := l.space.read(l.c.Now(), func() (room, error) {
		free, files, err := l.c.Measure(dir)
		return room{free, files}, err
	})
	switch {
	case err != nil:
		return fmt.Errorf("measure %s: %w", dir, err)
	case l.c.MinFree > 0 && r.free-max(size, 0) < l.c.MinFree:
		return fmt.Errorf("%w: %d bytes, and %d are to be left", ErrSpace, r.free, l.c.MinFree)
	case l.c.MinFiles > 0 && r.files >= 0 && r.files < l.c.MinFiles:
		return fmt.Errorf("%w: %d, and %d are to be left", ErrFiles, r.files, l.c.MinFiles)
	}
	return nil
}

// measure asks the file system, for what others than root may use.
func measure(dir string) (free, files int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	free = math.MaxInt64
	if size := uint64(s.Bsize); size > 0 && s.Bavail < math.MaxInt64/size {
		free = int64(s.Bavail * size)
	}
	files = int64(min(s.Ffree, math.MaxInt64))
	if s.Files == 0 { // btrfs has no such limit
		files = -1
	}
	return free, files, nil
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
