package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// fromPid has the system run in a pid namespace of its own, as in a container, where
// zmctl run gets the pid first and the others those that follow.
func fromPid(t *testing.T, s *suite.Suite, first int) {
	t.Helper()
	s.Starter = func(cmd *exec.Cmd) error {
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

// insidePid is a process's pid in its own namespace.
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

// holder is the owner number that stands in a specification's lock, and the pid of the
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
	t.Fatalf("nobody has locked a recipient of %s", name)
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
