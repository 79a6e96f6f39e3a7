package load

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Drain waits until the postoffice holds no message. What no daemon would touch for an
// hour is made old, and what was put into deferred/ is submitted again, as a
// postmaster would; resubmitted is how often.
func (l *Load) Drain(ctx context.Context) (resubmitted int, err error) {
	old := time.Now().Add(-2 * time.Hour)
	for {
		left, err := l.Suite.Left()
		left = l.Suite.DropDrafts(left)
		if err != nil || len(left) == 0 {
			return resubmitted, err
		}
		aside := false
		for _, name := range left {
			switch {
			case strings.HasPrefix(name, "public/") && !strings.HasPrefix(name, "public/report."):
				age(filepath.Join(l.Suite.PostOffice(), name), old)
			case strings.HasPrefix(name, "deferred/"):
				aside = true
			}
		}
		if aside {
			resubmitted++
			// An error is that of a message that the router took meanwhile.
			_ = l.Suite.Command("zmctl", "resubmit", "--all").Run()
		}
		select {
		case <-time.After(50 * time.Millisecond): // directories of another process have no event
		case <-ctx.Done():
			return resubmitted, fmt.Errorf("the postoffice holds %q: %w", left, context.Cause(ctx))
		}
	}
}

// age makes an unfinished submission old, unless it was written to in the last seconds.
// With the execute bit it was accepted, and its time is a part of its spool ID.
func age(name string, old time.Time) {
	info, err := os.Stat(name)
	if err == nil && info.Mode()&0o100 == 0 && time.Since(info.ModTime()) > 5*time.Second {
		// An error means that it is gone.
		_ = os.Chtimes(name, old, old)
	}
}
