// Package watch tells that something may have changed in directories: fsnotify is
// the hint, a periodic look is the truth. A hint may be lost, late or for a file
// that is gone again; whoever gets one looks at the directory itself.
//
// It owns nothing on disk and nothing survives a crash: the first hint of a new
// Watcher means "look at everything".
//
// Diagnostics: New never fails. Where the kernel refuses a watch (limits of
// inotify) that is logged once, as "watch-refused", and hints come by period alone.
// Add errs when the directory is not there.
package watch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// waiting is how many hints may wait to be taken: as many as the kernel keeps by itself.
const waiting = 16384

// Hint is a reason to look. Name is the base name that appeared in Dir; an empty
// Name means: look at everything (start, period over, hints lost).
type Hint struct {
	Dir, Name string
	Lost      bool // hints were lost: something has changed
}

// Watcher watches directories. Its methods may be used by many goroutines.
type Watcher struct {
	c      chan Hint
	accept func(name string) bool
	log    *slog.Logger
	open   func() (*fsnotify.Watcher, error)
	ended  chan struct{}

	mu   sync.Mutex
	dirs map[string]place  // wanted directories
	fsw  *fsnotify.Watcher // nil where inotify is refused
	told bool              // the refusal was logged
	over bool              // ctx is done

	// Used by run's goroutine alone.
	all     bool // an empty Hint is to be sent when there is room
	lost    bool // it stands for others
	lastAll bool // the last one sent was empty
}

// place is what a directory's path led to when its watch was armed; the zero value: no
// watch is.
type place struct {
	armed    bool
	dev, ino uint64
}

// New watches dirs (absolute paths); accept picks the base names worth a hint;
// every interval an empty Hint comes whether or not something changed; without an
// interval (0) none does. It works, by period alone, where the kernel refuses a
// watch, and says so in log once. A directory that is missing, or is removed and
// made again, or replaced by another one or a mount, is watched from the next period on. Everything ends with ctx.
func New(ctx context.Context, dirs []string, interval time.Duration, accept func(name string) bool, log *slog.Logger) *Watcher {
	return start(ctx, dirs, interval, accept, log, func() (*fsnotify.Watcher, error) {
		return fsnotify.NewBufferedWatcher(waiting)
	})
}

func start(ctx context.Context, dirs []string, interval time.Duration, accept func(string) bool, log *slog.Logger,
	open func() (*fsnotify.Watcher, error)) *Watcher {
	w := &Watcher{
		c: make(chan Hint, waiting), accept: accept, log: log, open: open,
		ended: make(chan struct{}), dirs: map[string]place{}, all: true,
	}
	for _, dir := range dirs {
		w.dirs[filepath.Clean(dir)] = place{}
	}
	w.arm()
	go w.run(ctx, interval)
	return w
}

// Add watches one more directory. An error means that it is not there; it is tried
// again every period.
func (w *Watcher) Add(dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	dir = filepath.Clean(dir)
	if !w.dirs[dir].armed {
		w.dirs[dir] = place{}
	}
	return w.armOne(dir)
}

// C gives the hints. At most cap(C) wait; more are folded into one empty Hint. It
// is never closed: a reader also waits for the context.
func (w *Watcher) C() <-chan Hint { return w.c }

// Wait returns when the context is done and everything has ended.
func (w *Watcher) Wait() { <-w.ended }

func (w *Watcher) run(ctx context.Context, interval time.Duration) {
	defer close(w.ended)
	defer w.close()
	var period <-chan time.Time
	if interval > 0 {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		period = ticker.C
	}
	for {
		var events <-chan fsnotify.Event
		var failures <-chan error
		if fsw := w.source(); fsw != nil {
			events, failures = fsw.Events, fsw.Errors
		}
		var out chan<- Hint
		if w.all {
			out = w.c
		}
		select {
		case <-ctx.Done():
			return
		case out <- Hint{Lost: w.lost}:
			w.all, w.lost, w.lastAll = false, false, true
		case <-period:
			// Armed before the look, so that nothing falls between.
			w.arm()
			w.lookAtAll()
		case ev, ok := <-events:
			if !ok {
				w.disarm()
				continue
			}
			w.event(ev)
		case err, ok := <-failures:
			if !ok {
				w.disarm()
				continue
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.log.Warn("watch-error", "reason", err)
			}
			w.all, w.lost = true, true
		}
	}
}

// lookAtAll asks for an empty Hint unless one waits as the last of the channel.
func (w *Watcher) lookAtAll() {
	if !w.lastAll || len(w.c) == 0 {
		w.all = true
	}
}

// event passes a name on. While an empty Hint is due it covers every name.
func (w *Watcher) event(ev fsnotify.Event) {
	if !ev.Has(fsnotify.Create) {
		return
	}
	slash := strings.LastIndexByte(ev.Name, '/')
	if slash < 0 || !w.accept(ev.Name[slash+1:]) {
		return
	}
	if w.all {
		w.lost = true
		return
	}
	select {
	case w.c <- Hint{Dir: ev.Name[:slash], Name: ev.Name[slash+1:]}:
		w.lastAll = false
	default:
		w.all, w.lost = true, true
	}
}

// source is the notifier in use, nil if there is none.
func (w *Watcher) source() *fsnotify.Watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fsw
}

// arm opens the notifier if need be and watches what is not watched (any more).
func (w *Watcher) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fsw == nil {
		fsw, err := w.open()
		if err != nil {
			w.refused("", err)
			return
		}
		w.fsw = fsw
	}
	// The notifier forgets a directory that was removed or moved away.
	watched := map[string]bool{}
	for _, dir := range w.fsw.WatchList() {
		watched[dir] = true
	}
	for dir, was := range w.dirs {
		if was.armed && watched[dir] && was == look(dir) {
			continue
		}
		if watched[dir] {
			// It goes on for a directory that is no longer at this path, by a mount or a
			// rename above it. An error means that it has just been forgotten.
			_ = w.fsw.Remove(dir)
		}
		w.dirs[dir] = place{}
		// A directory that is not there is tried again next time.
		_ = w.armOne(dir)
	}
}

// armOne watches one directory; w.mu is held.
func (w *Watcher) armOne(dir string) error {
	if w.over {
		return &fs.PathError{Op: "watch", Path: dir, Err: context.Canceled}
	}
	if w.fsw == nil || w.dirs[dir].armed {
		return nil
	}
	// Looked at first: if it is replaced now, the next period finds it another one.
	found := look(dir)
	err := w.fsw.Add(dir)
	switch {
	case err == nil:
		w.dirs[dir] = found
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return &fs.PathError{Op: "watch", Path: dir, Err: err}
	}
	w.refused(dir, err)
	return nil
}

// look is what a path leads to now.
func look(dir string) place {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return place{armed: true}
	}
	return place{true, uint64(st.Dev), st.Ino}
}

// Refused tells whether the kernel has refused a watch, so that some hints come by period
// alone.
func (w *Watcher) Refused() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

// refused says once that hints come by period alone.
func (w *Watcher) refused(dir string, err error) {
	if !w.told {
		w.told = true
		w.log.Warn("watch-refused", "dir", dir, "reason", err)
	}
}

// disarm drops a notifier that has ended; the next period opens another one.
func (w *Watcher) disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fsw = nil
	for dir := range w.dirs {
		w.dirs[dir] = place{}
	}
}

func (w *Watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.fsw != nil {
		// It only gives an inotify descriptor back.
		_ = w.fsw.Close()
		w.fsw = nil
	}
}
