package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/suite"
)

// M43: each recipient's end is one line with the time of each stage, and its spool ID is unique
// although inode numbers are used again.
func TestEachRecipientHasOneLineWithItsTimes(t *testing.T) {
	t.Parallel()
	var busy atomic.Bool
	busy.Store(true)
	sink := newSink(t, &peer.Sink{Rcpt: func(a string, _ int) string {
		switch {
		case strings.HasPrefix(a, "bad"):
			return "550 5.1.1 no such user"
		case strings.HasPrefix(a, "later") && busy.Load():
			return "451 4.2.1 later"
		}
		return ""
	}})
	s := start(t, sink, nil)
	const many = 10
	for i := range many {
		submit(t, s, "Subject: x\n\nx\n", "-f", "<>", "alice@mta.example", fmt.Sprintf("good%d@x.example", i), fmt.Sprintf("bad%d@x.example", i))
		awaitEmpty(t, s) // so that the inode number is free again
	}
	submit(t, s, "Subject: x\n\nx\n", "-f", "<>", "later@x.example")
	used := keepNumber(t, s, event(t, s, "deferred", "rcpt", "later@x.example").Get("name"))
	stop(t, s)
	busy.Store(false)
	restart(t, s)
	awaitEmpty(t, s)
	used()
	await(t, s, "the message with a number that was used", func() (bool, error) { return s.Count("delivered", "rcpt", "later@x.example") == 2, nil })
	awaitEmpty(t, s)
	lines, inodes, ids := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, e := range s.Events() {
		if e.Word != "delivered" && e.Word != "failed" && e.Word != "deferred" {
			continue
		}
		if e.Word != "deferred" {
			lines[e.Get("id")+" "+e.Get("rcpt")]++
			name, _, _ := strings.Cut(e.Get("name"), "-")
			inodes[name], ids[e.Get("id")] = true, true
		}
		took, sum := nanoseconds(t, e, "took"), time.Duration(0)
		for _, key := range []string{"routing", "queue", "delivery"} {
			if first := e.Get("attempt") == "1"; key != "routing" || first {
				sum += nanoseconds(t, e, key)
			} else if e.Get(key) != "" {
				t.Errorf("routing of attempt %s: %+v", e.Get("attempt"), e)
			}
		}
		if e.Get("attempt") == "1" && (sum > took+10*time.Millisecond || took-sum > time.Second) || e.Get("attempt") != "1" && took < time.Second {
			t.Errorf("took %v, its stages %v: %+v", took, sum, e)
		}
	}
	if len(lines) != 3*many+2 || len(ids) != many+2 {
		t.Errorf("%d recipients of %d messages, want %d of %d", len(lines), len(ids), 3*many+2, many+2)
	}
	for key, n := range lines {
		if n != 1 {
			t.Errorf("%s has %d lines", key, n)
		}
	}
	if len(inodes) >= len(ids) {
		t.Errorf("%d messages had %d inode numbers, want one of them used again", len(ids), len(inodes))
	}
}

// keepNumber keeps a queued message's file, and so its inode number. used submits another
// message in that file, as if the file system had given the number again: some do so at
// once, some never.
func keepNumber(t *testing.T, s *suite.Suite, name string) (used func()) {
	t.Helper()
	kept := filepath.Join(s.Dir, "kept")
	number, _, _ := strings.Cut(filepath.Base(name), "-")
	must(t, os.Link(filepath.Join(s.PostOffice(), "queue", name), kept))
	return func() {
		t.Helper()
		write(t, kept, read(t, kept)) // in its place, with the time of now
		must(t, os.Rename(kept, filepath.Join(s.PostOffice(), "router", number)))
	}
}

func nanoseconds(t *testing.T, e suite.Event, key string) time.Duration {
	t.Helper()
	f, ok := e.Attrs[key].(float64)
	if !ok || f < 0 {
		t.Errorf("%s is missing: %+v", key, e)
	}
	return time.Duration(f)
}
