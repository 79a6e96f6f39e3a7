package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// The trap "inode reused": a message with the inode number of one that was delivered,
// and with its name in queue/ and transport/, is another one: it is routed and
// delivered, has a spool ID of its own, and no command with the old ID touches it.
func TestInodeNumberUsedAgainIsAnotherMessage(t *testing.T) {
	t.Parallel()
	var busy atomic.Bool
	busy.Store(true)
	sink := newSink(t, &peer.Sink{Rcpt: func(address string, _ int) string {
		if busy.Load() && strings.HasPrefix(address, "w.") {
			return "451 4.2.1 later"
		}
		return ""
	}})
	s := start(t, sink, nil)
	submit(t, s, "Subject: first\n\n", "-f", "bob@mta.example", "w.first@sink.example")
	first := event(t, s, "deferred", "rcpt", "w.first@sink.example").Get("id")
	name := only(t, s, "transport")
	// A second name keeps the number for us when the message is gone.
	again := filepath.Join(s.Dir, "again")
	assert.Must(t, os.Link(path(s, "queue/"+name), again))
	busy.Store(false)
	awaitEmpty(t, s)

	busy.Store(true)
	number, _, _ := strings.Cut(name, "-")
	const text = "from <bob@mta.example>\nto <ok@sink.example>\nto <w.second@sink.example>\nenv-end\nSubject: second\n\n"
	assert.Must(t, errors.Join(os.WriteFile(again, []byte(text), 0o700), os.Rename(again, path(s, "router/"+number))))
	second := event(t, s, "deferred", "rcpt", "w.second@sink.example").Get("id")
	event(t, s, "delivered", "rcpt", "ok@sink.example", "id", second)
	if first == second || !strings.HasPrefix(second, "S"+number+"A") {
		t.Errorf("spool IDs %s and %s, want two of one inode number", first, second)
	}
	assert.Equal(t, only(t, s, "transport"), name)
	for _, command := range []string{"show", "remove", "undo"} {
		if said, code := call(t, s, "zmctl", command, first); code == 0 || strings.Contains(said, "second") {
			t.Errorf("zmctl %s %s: exit code %d, %s", command, first, code, said)
		}
	}
	wantIn(t, zmctl(t, s, "queue"), second, "w.second@sink.example")
	busy.Store(false)
	awaitEmpty(t, s)
	for _, to := range []string{"w.first@sink.example", "ok@sink.example", "w.second@sink.example"} {
		assert.Equal(t, len(arrivals(sink, to)), 1, to)
	}
	balance(t, s)
}

// fromPid has the system run in a pid namespace of its own, as in a container, where
// zmctl run gets the pid first and the others those that follow.
func fromPid(t *testing.T, s *suite.Suite, first int) {
	t.Helper()
	s.Launch = func(cmd *exec.Cmd) error {
		const begin = `echo $0 >/proc/sys/kernel/ns_last_pid || exit; "$@" & child=$!; trap 'kill -TERM $child' TERM; wait $child; wait $child`
		cmd.Args = append([]string{"sh", "-c", begin, strconv.Itoa(first - 1), cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		return cmd.Start()
	}
}

// pidsUpTo skips a test that needs a pid namespace with pids so large.
func pidsUpTo(t *testing.T, most int) {
	t.Helper()
	cmd := exec.Command("cat", "/proc/sys/kernel/pid_max")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("no pid namespaces here: %v", err)
	}
	if limit, err := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || limit <= most {
		t.Skipf("pids are below %s here", out)
	}
}

// insidePid returns a process's pid in its own namespace.
func insidePid(t *testing.T, p suite.Process) string {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/status", p.Pid))) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "NSpid:" {
			return f[len(f)-1]
		}
	}
	t.Fatalf("%s has no pid of its own", p.Name)
	return ""
}

// holder returns the owner number of a specification's lock, and the pid of the
// process that took it.
func holder(t *testing.T, s *suite.Suite, name string) (owner int, pid string) {
	t.Helper()
	for _, g := range spec(t, s, name).Groups {
		for _, r := range g.Recipients {
			if r.Tag == workspec.TagLocked {
				_, pid, _ = strings.Cut(read(t, filepath.Join(s.PostOffice(), "owners", strconv.Itoa(r.Owner))), " pid ")
				return r.Owner, strings.TrimSpace(pid)
			}
		}
	}
	t.Fatalf("no recipient of %s is locked", name)
	return 0, ""
}

// The traps "pid longer than the pid field" and "pid reused" (M18): a system is killed
// in mid-delivery, in a container; in the next one the dead agent's pid is a living
// process's. Its lock is known as a dead one's, and the message is delivered once.
func TestPidsMayBeLongAndMayComeAgain(t *testing.T) {
	needRoot(t)
	t.Parallel()
	for name, first := range map[string]int{"pid of seven digits": 1234567, "pid that fits": 4321} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pidsUpTo(t, first+1000)
			sink, g := newGate(t, peer.AtData)
			s := prepare(t, sink, nil)
			fromPid(t, s, first)
			begin(t, s)
			submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", "far@sink.example")
			g.await(t)
			file := only(t, s, "transport")
			owner, pid := holder(t, s, file)
			n, err := strconv.Atoi(pid)
			if err != nil || n <= first || owner > postoffice.MaxOwner || n <= postoffice.MaxOwner && owner != n {
				t.Errorf("owner %d of pid %q in %s, want six digits at most for a pid above %d", owner, pid, file, first)
			}
			if claim, ok := postoffice.ParseName(file); !ok || claim.Owner < 1 || claim.Owner > postoffice.MaxOwner {
				t.Errorf("the router's claim was %s", file)
			}
			s.Kill()
			g.release()
			fromPid(t, s, n)
			restart(t, s)
			if got := insidePid(t, oneOf(t, s, "zmctl")); got != pid {
				t.Fatalf("zmctl has pid %s, want the dead agent's, %s", got, pid)
			}
			event(t, s, "recovered", "action", "unlocked", "rcpt", "far@sink.example")
			awaitEmpty(t, s)
			wantArrived(t, sink, 1)
			stop(t, s)
		})
	}
}

const day = 24 * time.Hour

// aDayAhead makes the files of a stopped postoffice what they are when the clock was a
// day ahead while they were written, and has been set back since.
func aDayAhead(t *testing.T, s *suite.Suite) {
	t.Helper()
	left := assert.Get(s.Left())(t)
	times := regexp.MustCompile(`(?m)^(h )(\d{13})( )|( next=)(\d{13})( )`)
	for _, name := range left {
		path := filepath.Join(s.PostOffice(), name)
		if strings.HasPrefix(name, "transport/") {
			b := assert.Get(os.ReadFile(path))(t)
			b = times.ReplaceAllFunc(b, func(m []byte) []byte {
				digits := regexp.MustCompile(`\d{13}`)
				return digits.ReplaceAllFunc(m, func(d []byte) []byte {
					ms, _ := strconv.ParseInt(string(d), 10, 64)
					return strconv.AppendInt(nil, ms+day.Milliseconds(), 10)
				})
			})
			// In place: the scheduler knows the file by its number.
			assert.Must(t, os.WriteFile(path, b, 0o600))
		}
		at := time.Now().Add(day)
		assert.Must(t, os.Chtimes(path, at, at))
	}
}

// A5 M4 K4: files from before the clock was set back by a day: what waited is tried
// within its interval, what was accepted is routed, an abandoned draft is swept.
func TestFilesFromBeforeTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	var deferring atomic.Bool
	deferring.Store(true)
	sink := newSink(t, &peer.Sink{Rcpt: func(string, int) string {
		if deferring.Load() {
			return "451 4.2.1 later"
		}
		return ""
	}})
	s := start(t, sink, func(s *suite.Suite) {
		s.Files["scheduler.conf"] = strings.Replace(schedulerConf, `interval=1s retries="1 1 2 3"`, `interval=4s retries="1"`, 1)
		s.Settings = map[string]string{"ROUTERPOLL": "1s"}
	})
	for i := range 3 {
		submit(t, s, "Subject: x\n\n", "-f", "bob@mta.example", fmt.Sprintf("u%d@sink.example", i))
	}
	await(t, s, "three deferrals", func() (bool, error) { return s.Count("deferred") >= 3, nil })
	stop(t, s)
	// Accepted, and not routed yet; and what a dead submitter has begun to write.
	accepted := filepath.Join(s.PostOffice(), "public", "accepted")
	assert.Must(t, os.WriteFile(accepted, []byte("from <bob@mta.example>\nto <u3@sink.example>\nenv-end\nSubject: x\n\n"), 0o700))
	draft := filepath.Join(s.PostOffice(), "public", "smtp.77.dn0kpsb1upkv.1i")
	assert.Must(t, os.WriteFile(draft, []byte("comment oct"), 0o600))
	aDayAhead(t, s)
	deferring.Store(false)
	restart(t, s)
	assert.Must(t, sink.Wait(4, patience))
	awaitEmpty(t, s)
	wantNone(t, s, "expired")
}

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
		assert.Equal(t, n, 1, key)
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
	assert.Must(t, os.Link(filepath.Join(s.PostOffice(), "queue", name), kept))
	return func() {
		t.Helper()
		write(t, kept, read(t, kept)) // in its place, with the time of now
		assert.Must(t, os.Rename(kept, filepath.Join(s.PostOffice(), "router", number)))
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
