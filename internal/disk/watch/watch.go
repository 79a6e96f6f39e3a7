// Package watch reports that something may have changed in directories: inotify(7) is
// the hint, a periodic look is the truth. A hint may be lost, late or for a file
// that is gone again; whoever gets one looks at the directory itself.
//
//	w := watch.New(ctx, []string{dir}, time.Minute, isMessage, log)
//	for hint := range w.C() { … } // the zero Hint: look at everything
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
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

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

// Watcher watches directories. Its methods may be used by many goroutines, but for
// Await, which one at a time may call.
type Watcher struct {
	c        chan Hint // nil: the hints are taken by Await
	accept   func(name string) bool
	log      *slog.Logger
	interval atomic.Int64 // a time.Duration
	open     func() (*notifier, error)
	ended    chan struct{}

	stopped atomic.Bool   // Await is to return
	changed atomic.Bool   // interval has changed
	kick    chan struct{} // holds one token after Interrupt

	mu   sync.Mutex
	dirs map[string]place // wanted directories
	from *notifier        // nil where inotify is refused
	told bool             // the refusal was logged
	over bool             // it was closed

	// Used by Await's caller alone.
	out     []Hint
	all     bool      // an empty Hint is due
	lost    bool      // it replaces others
	period  time.Time // when the next one is; zero: never
	lastAll bool      // the last one sent was empty
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
	return start(ctx, dirs, interval, accept, log, openNotifier)
}

func start(ctx context.Context, dirs []string, interval time.Duration, accept func(string) bool, log *slog.Logger,
	open func() (*notifier, error)) *Watcher {
	w := prepare(dirs, interval, accept, log, open)
	w.c = make(chan Hint, waiting)
	go w.run(ctx)
	return w
}

// Open is New for somebody who takes the hints by Await, in a goroutine of his own: no
// other one is woken for them. It ends with Close.
func Open(dirs []string, interval time.Duration, accept func(name string) bool, log *slog.Logger) *Watcher {
	return prepare(dirs, interval, accept, log, openNotifier)
}

// Renamed is Open for names that files get by a rename: files that are created in the
// directories wake no one.
func Renamed(dirs []string, interval time.Duration, accept func(name string) bool, log *slog.Logger) *Watcher {
	return prepare(dirs, interval, accept, log, func() (*notifier, error) { return newNotifier(renamed) })
}

func prepare(dirs []string, interval time.Duration, accept func(string) bool, log *slog.Logger,
	open func() (*notifier, error)) *Watcher {
	w := &Watcher{
		accept: accept, log: log, open: open, ended: make(chan struct{}),
		kick: make(chan struct{}, 1), dirs: map[string]place{}, all: true,
	}
	for _, dir := range dirs {
		w.dirs[filepath.Clean(dir)] = place{}
	}
	w.interval.Store(int64(interval))
	w.arm()
	if interval > 0 {
		w.period = time.Now().Add(interval)
	}
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

// C returns the hints. At most cap(C) wait; more are folded into one empty Hint. It
// is never closed: a reader also waits for the context.
func (w *Watcher) C() <-chan Hint { return w.c }

// Wait returns when the context is done and everything has ended.
func (w *Watcher) Wait() { <-w.ended }

// run puts the hints into the channel.
func (w *Watcher) run(ctx context.Context) {
	defer close(w.ended)
	defer w.Close()
	stop := context.AfterFunc(ctx, w.Interrupt)
	defer stop()
	for ctx.Err() == nil {
		w.pass(ctx, w.Await(time.Time{}))
	}
}

// pass puts hints that have come together into the channel. When there is no room for a
// name, one empty Hint replaces it and all after it.
func (w *Watcher) pass(ctx context.Context, hints []Hint) {
	for _, h := range hints {
		if h.Name != "" {
			select {
			case w.c <- h:
				w.lastAll = false
				continue
			default:
				h = Hint{Lost: true}
			}
		}
		if !h.Lost && w.lastAll && len(w.c) > 0 {
			continue // one waits as the last
		}
		select {
		case w.c <- h:
			w.lastAll = true
		case <-ctx.Done():
		}
		if h.Lost {
			return
		}
	}
}

// Await waits until there are hints and gives them; they are valid until the next call.
// It gives none when Interrupt was called, or when a time has come; zero: at no time. With
// a time that is over it gives what is there.
func (w *Watcher) Await(until time.Time) []Hint {
	w.out = w.out[:0]
	looked := false
	for {
		if w.all {
			// It covers every name before it.
			w.out = append(w.out[:0], Hint{Lost: w.lost})
			w.all, w.lost = false, false
		}
		if w.changed.Swap(false) {
			w.period = time.Now().Add(time.Duration(w.interval.Load()))
		}
		if w.stopped.Swap(false) || len(w.out) > 0 {
			return w.out
		}
		end := until
		if !w.period.IsZero() {
			now := time.Now()
			if !now.Before(w.period) {
				// Armed before the look, so that nothing falls between.
				w.arm()
				w.period, w.all = now.Add(time.Duration(w.interval.Load())), true
				continue
			}
			if end.IsZero() || w.period.Before(end) {
				end = w.period
			}
		}
		if !until.IsZero() && !time.Now().Before(until) {
			if looked {
				return nil
			}
			looked = true
			w.poll()
			continue
		}
		w.wait(end)
		looked = true
	}
}

// SetInterval has the next empty Hint come after an interval from now, and the others at that interval.
// Await may return without a hint.
func (w *Watcher) SetInterval(d time.Duration) {
	w.interval.Store(int64(d))
	w.changed.Store(true)
	w.Interrupt()
}

// Interrupt has Await return, the one that goes on or the next one.
func (w *Watcher) Interrupt() {
	w.stopped.Store(true)
	select {
	case w.kick <- struct{}{}:
	default:
	}
	if n := w.source(); n != nil {
		n.until(past)
	}
}

// wait waits for events, until a time or an Interrupt.
func (w *Watcher) wait(end time.Time) {
	n := w.source()
	if n == nil {
		w.sleep(end)
		return
	}
	n.until(end)
	if w.stopped.Load() {
		return // perhaps before its deadline was set
	}
	w.heard(n, n.wait(w.event))
}

// poll takes what is there.
func (w *Watcher) poll() {
	if n := w.source(); n != nil {
		w.heard(n, n.poll(w.event))
	}
}

// heard takes in how a look at a notifier ended.
func (w *Watcher) heard(n *notifier, err error) {
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
	case errors.Is(err, errOverflow):
		w.all, w.lost = true, true
	default:
		w.log.Warn("watch-error", "reason", err)
		w.all, w.lost = true, true
		w.disarm(n)
	}
}

// sleep is wait without a notifier.
func (w *Watcher) sleep(end time.Time) {
	var over <-chan time.Time
	if !end.IsZero() {
		timer := time.NewTimer(time.Until(end))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-w.kick:
	}
}

// event takes a name.
func (w *Watcher) event(dir string, base []byte) bool {
	name := string(base)
	if !w.accept(name) {
		return false
	}
	w.out = append(w.out, Hint{Dir: dir, Name: name})
	return true
}

// source returns the notifier in use, nil if there is none.
func (w *Watcher) source() *notifier {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.from
}

// arm opens the notifier if need be and watches what is not watched (any more).
func (w *Watcher) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if w.from == nil {
		n, err := w.open()
		if err != nil {
			w.refused("", err)
			return
		}
		w.from = n
	}
	for dir, was := range w.dirs {
		if was.armed && w.from.has(dir) && was == look(dir) {
			continue
		}
		// It goes on for a directory that is no longer at this path, by a rename of it or
		// above it, or by a mount.
		w.from.remove(dir)
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
	if w.from == nil || w.dirs[dir].armed {
		return nil
	}
	// Looked at first: if it is replaced now, the next period finds it another one.
	found := look(dir)
	err := w.from.add(dir)
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

// look returns what a path leads to now.
func look(dir string) place {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return place{armed: true}
	}
	return place{true, uint64(st.Dev), st.Ino}
}

// Refused reports whether the kernel has refused a watch, so that some hints come by period
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
func (w *Watcher) disarm(n *notifier) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.from != n {
		return
	}
	// It only gives an inotify descriptor back.
	_ = n.close()
	w.from = nil
	for dir := range w.dirs {
		w.dirs[dir] = place{}
	}
}

// Close ends watching: no one calls Await any more.
func (w *Watcher) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.from != nil {
		// It only gives an inotify descriptor back.
		_ = w.from.close()
		w.from = nil
	}
}
