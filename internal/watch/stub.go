// Package watch tells that something may have changed in directories: fsnotify is
// the hint, a periodic look is the truth.
package watch

import (
	"context"
	"log/slog"
	"time"
)

// Hint is a reason to look. Name is the base name that appeared in Dir; an empty
// Name means: look at everything (start, period over, hints lost).
type Hint struct{ Dir, Name string }

// Watcher watches directories.
type Watcher struct{}

// New watches dirs (absolute paths); accept picks the base names worth a hint;
// every interval an empty Hint comes whether or not something changed. It works,
// by period alone, where the kernel refuses a watch, and says so in log once.
func New(ctx context.Context, dirs []string, interval time.Duration, accept func(name string) bool, log *slog.Logger) *Watcher {
	panic("stub")
}

// Add watches one more directory.
func (w *Watcher) Add(dir string) error { panic("stub") }

// C gives the hints. At most cap(C) wait; more are folded into one empty Hint.
func (w *Watcher) C() <-chan Hint { panic("stub") }
