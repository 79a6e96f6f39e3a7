package suspension

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
)

// Following is who follows the suspensions of a postoffice.
type Following struct {
	PostOffice *postoffice.PostOffice
	Dir        string        // of the postoffice
	Every      time.Duration // the file is looked at, hint or no hint
	Now        func() time.Time
	Log        *slog.Logger
	// Changed is called when the file has changed or a suspension has ended. With an error the
	// file cannot be read: the list is the one before.
	Changed func(*List, error)
}

// Follow calls Changed at once, and for each change until ctx is done.
func Follow(ctx context.Context, f Following) {
	w := watch.New(ctx, []string{filepath.Join(f.Dir, postoffice.Suspended)}, f.Every, func(name string) bool { return name == filepath.Base(postoffice.SuspensionFile) }, f.Log)
	defer w.Wait()
	ends := time.NewTimer(time.Hour)
	defer ends.Stop()
	var text []byte
	list, active, failed := &List{}, -1, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.C():
		case <-ends.C:
		}
		b, err := f.PostOffice.ReadSuspensions()
		if err == nil && !bytes.Equal(b, text) {
			list, text, active = Parse(b), b, -1
		}
		why := ""
		if err != nil {
			why = err.Error()
		}
		now := f.Now()
		if n := len(list.Active(now)); n != active || why != failed {
			active, failed = n, why
			f.Changed(list, err)
		}
		ends.Reset(list.next(now))
	}
}

// next is how long it is until a suspension ends, or an hour.
func (l *List) next(now time.Time) time.Duration {
	next := time.Hour
	for _, s := range l.Active(now) {
		if !s.Until.IsZero() {
			next = min(next, s.Until.Sub(now))
		}
	}
	return max(next, time.Millisecond)
}
