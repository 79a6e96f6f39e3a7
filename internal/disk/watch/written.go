package watch

import (
	"context"

	"github.com/fsnotify/fsnotify"
)

// Written reports that something in a directory was written, made or removed, for who reads
// along in its files. Whatever comes before it is taken is reported once. Nothing ever comes
// where the kernel refuses a watch, so its reader looks by period, too. It ends with ctx.
func Written(ctx context.Context, dir string) <-chan struct{} {
	c := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return c
	}
	if err := w.Add(dir); err != nil {
		_ = w.Close() // it only gives a descriptor back
		return c
	}
	go func() {
		defer w.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case _, open := <-w.Events:
				if !open {
					return
				}
			case _, open := <-w.Errors: // events are lost: something was written
				if !open {
					return
				}
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return c
}
