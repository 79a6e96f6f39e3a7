package faults

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/load"
	"zmailer/test/suite"
)

// frozen is a way to forbid changes in a directory; thaw allows them again.
type frozen func(s *system, dir string) (thaw func())

// boundReadOnly mounts a directory over itself, for reading alone: what makes or
// removes a name fails with EROFS, a rename from or to it with EXDEV.
func boundReadOnly(s *system, dir string) (thaw func()) {
	s.Helper()
	if os.Geteuid() != 0 {
		s.Skip("only root mounts")
	}
	// Made elsewhere first: a file that is open for writing there forbids the change.
	aside := s.TempDir()
	if err := unix.Mount(dir, aside, "", unix.MS_BIND, ""); err != nil {
		s.Skipf("a directory cannot be mounted here: %v", err)
	}
	defer func() { s.try("unmount "+aside, unix.Unmount(aside, unix.MNT_DETACH)) }()
	s.must("remount", unix.Mount("", aside, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	s.must("mount over "+dir, unix.Mount(aside, dir, "", unix.MS_BIND, ""))
	thaw = sync.OnceFunc(func() { s.try("unmount "+dir, unix.Unmount(dir, unix.MNT_DETACH)) })
	s.Cleanup(thaw)
	return thaw
}

// immutableFlag is linux/fs.h's FS_IMMUTABLE_FL.
const immutableFlag = 0x10

// immutable sets a directory's flag of that name: every change of its names fails with
// EPERM, as where the daemons have lost their rights to it.
func immutable(s *system, dir string) (thaw func()) {
	s.Helper()
	if os.Geteuid() != 0 {
		s.Skip("only root sets the flag")
	}
	set := func(on bool) error {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if err != nil {
			return err
		}
		if flags &^= immutableFlag; on {
			flags |= immutableFlag
		}
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	if err := set(true); err != nil {
		s.Skipf("the file system has no immutable files: %v", err)
	}
	thaw = sync.OnceFunc(func() { s.try("make "+dir+" mutable", set(false)) })
	s.Cleanup(thaw) // else no one removes it
	return thaw
}

// K1 K12 S21: each directory of the postoffice becomes read-only under load for some
// seconds. What depends on it waits or is refused for now, the complaint names a file
// in it, the daemons live on, and then everything arrives, once.
func TestReadOnlyDirectoryLosesNothing(t *testing.T) {
	t.Parallel()
	ways := map[string]frozen{"read-only mount": boundReadOnly, "immutable": immutable}
	for way, freeze := range ways {
		for _, dir := range []string{"public", "router", "queue", "transport", "deferred", "owners"} {
			t.Run(way+" of "+dir, func(t *testing.T) {
				t.Parallel()
				s := prepare(t, func(s *suite.Suite) {
					s.Files["aliases"] += "later: :include:" + filepath.Join(s.Dir, "list") + "\n"
				})
				frozenUnderLoad(s, dir, freeze)
			})
		}
	}
}

func frozenUnderLoad(s *system, dir string, freeze frozen) {
	s.Helper()
	s.begin()
	s.accepted(load.Kinds()...)
	sent := make(chan error, 1)
	go func() {
		var err error
		for round := range 6 {
			if err = s.load.Round(s.ctx, round); err != nil {
				break
			}
		}
		sent <- err
	}()
	thaw := freeze(s, s.path(dir))
	over := time.After(4 * time.Second)
	if dir == "owners" {
		// Whoever starts now has no number.
		for _, program := range []string{"router", "ta-smtp", "ta-mailbox"} {
			for _, p := range s.running(program) {
				s.try("kill", p.Kill())
			}
		}
	}
	if dir == "deferred" {
		s.submitToList()
	}
	s.complaint(dir)
	<-over
	thaw()
	s.must("submit", <-sent)
	if dir == "deferred" {
		s.event("deferred", "program", "router", "name", "deferred/")
		s.must("make the list", os.WriteFile(filepath.Join(s.Dir, "list"), []byte("alice@mta.example\n"), 0o644))
	}
	s.settle()
	s.saidOnce()
	if dir != "owners" && s.Count("daemon-ended") > 0 {
		s.Errorf("a daemon ended")
	}
	s.failedRightly()
}

// failedRightly wants no recipient failed but those whom somebody has refused.
func (s *system) failedRightly() {
	s.Helper()
	for _, e := range s.Events() {
		if e.Word == "expired" || e.Word == "failed" && e.Get("status") != "5.1.1" {
			s.Errorf("%s %s for a fault of ours: %s", e.Get("rcpt"), e.Word, e.Get("reply"))
		}
	}
}

// submitToList submits a message to an alias whose list cannot be read yet.
func (s *system) submitToList() {
	s.Helper()
	cmd := s.Command("submit", "-i", "-f", "bob@mta.example", "later@mta.example")
	cmd.Stdin = strings.NewReader("Subject: list\n\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("submit: %v\n%s", err, out)
	}
}

// complaint waits until somebody has complained of something in a directory: a daemon
// in an event, or a program that cannot start on its standard error, in words.
func (s *system) complaint(dir string) {
	s.Helper()
	what := s.path(dir) + "/"
	s.await("complaint of "+what, func() bool {
		for _, e := range s.Events() {
			if strings.Contains(e.Get("reason"), what) && (e.Level == "ERROR" || e.Level == "WARN") {
				return true
			}
		}
		return dir == "owners" && strings.Contains(s.Log(), what)
	})
}
