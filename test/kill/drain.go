package kill

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"zmailer/test/suite"
)

// drain waits until the postoffice holds no message. Drafts of killed submitters are
// made old, so that a router takes them away now and not in an hour; no one writes
// one any more when this is called.
func drain(ctx context.Context, s *suite.Suite) error {
	old := time.Now().Add(-2 * time.Hour)
	for {
		left, err := s.Left()
		if err != nil {
			return err
		}
		work := 0
		for _, name := range s.DropDrafts(left) {
			if aside(name) {
				continue
			}
			work++
			if strings.HasPrefix(name, "public/") && !strings.HasPrefix(name, "public/report.") {
				age(filepath.Join(s.PostOffice(), name), old)
			}
		}
		if work == 0 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // directories of another process have no event
		case <-ctx.Done():
			return fmt.Errorf("the postoffice holds %q: %w", left, context.Cause(ctx))
		}
	}
}

// aside reports whether no daemon takes up a file any more: the audit counts these.
func aside(name string) bool {
	dir, _, _ := strings.Cut(name, "/")
	switch dir {
	case "quarantine", "postman", "deferred", "removed", "freezer":
		return true
	}
	return false
}

// age makes a draft without the execute bit old: one with it was accepted, and its
// time is a part of its spool ID.
func age(name string, old time.Time) {
	info, err := os.Stat(name)
	if err == nil && info.Mode()&0o100 == 0 {
		_ = os.Chtimes(name, old, old) // an error means that it is gone
	}
}
