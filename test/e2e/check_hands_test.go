package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/test/suite"
)

// pids are the system's daemons and agents.
func pids(t *testing.T, s *suite.Suite) map[int]string {
	t.Helper()
	list := map[int]string{}
	for _, p := range processes(t, s) {
		list[p.Pid] = p.Name
	}
	return list
}

// K10, and the traps "a corrupt file that kills a daemon" and "an administrator's command
// that kills a daemon": repair, check and resubmit beside running daemons, files of
// waiting mail moved, cut off, written over, renamed, linked and replaced by other
// things. Every process lives on, and the mail that nobody touched arrives once.
func TestHandsInTheSpoolKillNoDaemon(t *testing.T) {
	t.Parallel()
	count := 1200
	if testing.Short() {
		count = 300
	}
	x := newTraffic(t, func(address string, attempt int) string {
		if strings.HasPrefix(address, "hand") {
			return "451 4.2.1 always later"
		}
		return deferSome(address, attempt)
	}, nil)
	// Mail that stays, for the hands: one for each thing that they do.
	const hands = 14
	for i := range hands {
		submit(t, x.s, fmt.Sprintf("Subject: hand %d\n\n%s\n", i, strings.Repeat("x", 1000)), "-f", "<>", fmt.Sprintf("hand%d@sink.example", i))
	}
	await(t, x.s, "mail that waits", func() (bool, error) {
		return x.s.Count("deferred", "program", "scheduler", "rcpt", "hand") >= hands, nil
	})
	before := pids(t, x.s)
	var waiting []string
	for _, name := range transports(t, x.s) {
		if strings.Contains(read(t, path(x.s, "transport/"+name)), "hand") {
			waiting = append(waiting, name)
		}
	}
	if len(waiting) != hands {
		t.Fatalf("%d messages wait, want %d", len(waiting), hands)
	}
	sent := x.send(context.Background(), count)
	random := rand.New(rand.NewPCG(7, 7))
	for i, name := range waiting {
		spoil(t, x.s, name, i, random)
		for _, c := range [][]string{{"check", "--repair"}, {"resubmit", "all"}, {"check", "--json"}} {
			if said, code := call(t, x.s, "zmctl", c...); code > 2 {
				t.Errorf("zmctl %q: exit code %d\n%s", c, code, said)
			}
		}
	}
	<-sent
	arrived := func() (bool, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		for n := range count {
			if x.arrivals[recipientOf(n)] == 0 {
				return false, nil
			}
		}
		return true, nil
	}
	await(t, x.s, "the mail that nobody touched", arrived)
	x.check(t, count, nil)
	after := pids(t, x.s)
	for pid, name := range before {
		if after[pid] != name {
			t.Errorf("%s, pid %d, has ended; the log says %d times that a daemon did", name, pid, x.s.Count("daemon-ended"))
		}
	}
	// With the scheduler stopped the repair ends what is left; then all starts again.
	stop(t, x.s)
	exits(t, x.s, 0, "zmctl", "check", "--repair")
	found, text, _ := findings(t, x.s)
	for file, words := range found {
		for _, w := range words {
			// What daemons mend at their start, what a person decides, and M17.
			if !slices.Contains([]string{"daemon-missing", "quarantined", "waits-for-a-person", "broken-message", "misnumbered", "dead-lock",
				"no-specification", "specification-cut", "unknown-format"}, w) {
				t.Errorf("after the repair: %s %s\n%s", file, w, text)
			}
		}
	}
	x.s.Forget()
	restart(t, x.s)
	submit(t, x.s, "Subject: still here\n\n", "-f", "bob@mta.example", "alice@mta.example")
	awaitMail(t, x.s, "alice", 1)
}

// spoil does one of the things that hands do to a message's two files.
func spoil(t *testing.T, s *suite.Suite, name string, i int, random *rand.Rand) {
	t.Helper()
	queue, spec := path(s, "queue/"+name), path(s, "transport/"+name)
	away := filepath.Join(s.Dir, fmt.Sprintf("away%d", i))
	cut := func(file string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, random.Int64N(info.Size()))
	}
	var err error
	switch i {
	case 0:
		// A second name keeps the inode number from being used again: mail with that number
		// would wait for the minute that the scheduler leaves the specification there.
		if err = os.Link(queue, away); err == nil {
			err = os.Remove(queue)
		}
	case 1:
		err = os.Remove(spec)
	case 2:
		err = os.Rename(queue, away)
	case 3:
		err = os.Rename(spec, away)
	case 4:
		err = cut(queue)
	case 5:
		err = cut(spec)
	case 6:
		err = os.WriteFile(spec, []byte("@ 0x00000087\n"), 0o600)
	case 7:
		err = os.Rename(queue, queue+"9")
	case 8:
		err = os.Rename(spec, spec+"9")
	case 9:
		if err = os.Rename(spec, away); err == nil {
			err = os.Mkdir(spec, 0o755)
		}
	case 10:
		if err = os.Rename(queue, away); err == nil {
			err = os.Symlink("/etc/passwd", queue)
		}
	case 11:
		err = os.Link(queue, path(s, "router/"+inode(t, queue)))
	case 12:
		now := time.Now().Add(time.Duration(random.Int64N(48)-24) * time.Hour)
		err = os.Chtimes(queue, now, now)
	case 13:
		err = os.Rename(queue, path(s, "deferred/"+inode(t, queue)+".byhand"))
	}
	if err != nil && !isGone(err) {
		t.Fatal(err)
	}
}

// isGone: the daemons have taken the file meanwhile, after an earlier spoiling.
func isGone(err error) bool { return os.IsNotExist(err) || os.IsExist(err) || err == fs.ErrInvalid }
