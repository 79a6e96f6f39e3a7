package faults

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// patience is how long an event may take on a loaded machine.
const patience = 90 * time.Second

// bin is where TestMain has built the programs.
var bin string

func TestMain(m *testing.M) {
	inject.Main()
	suite.AtOnce(8)
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// system is a mail system under a load whose every message is accounted for.
type system struct {
	*testing.T
	*suite.Suite
	load *load.Load
	ctx  context.Context // ends with the test's patience
}

// prepare makes a system that is not started. change may alter it before.
func prepare(t *testing.T, change func(s *suite.Suite)) *system {
	t.Helper()
	s := &suite.Suite{Bin: bin, Dir: t.TempDir(), Settings: map[string]string{"ROUTERPOLL": "1s"}}
	l := assert.Get(load.Prepare(s))(t)
	t.Cleanup(l.Close)
	if change != nil {
		change(s)
	}
	assert.Must(t, s.Init())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return &system{T: t, Suite: s, load: l, ctx: ctx}
}

// begin starts it, and kills it when the test ends.
func (s *system) begin() {
	s.Helper()
	s.Cleanup(func() {
		if s.Failed() {
			log := s.Log()
			s.Logf("the end of the log:\n%s", log[max(0, len(log)-5000):])
		}
		s.Kill()
	})
	if err := s.Start(); err != nil {
		s.Fatal(err)
	}
	s.AwaitDaemons(20 * time.Second)
}

// mount mounts a file system of the test's own at a directory.
func (s *system) mount(dir, kind, data string) {
	s.Helper()
	if os.Geteuid() != 0 {
		s.Skip("only root mounts")
	}
	if err := unix.Mount(kind, dir, kind, 0, data); err != nil {
		s.Skipf("a file system cannot be mounted here: %v", err)
	}
	// Its processes are killed; the last of them may still be on its way out.
	s.Cleanup(func() { s.try("unmount "+dir, unix.Unmount(dir, unix.MNT_DETACH)) })
}

func (s *system) try(what string, err error) {
	s.Helper()
	if err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

func (s *system) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// accepted has messages of these kinds accepted.
func (s *system) accepted(kinds ...load.Kind) {
	s.Helper()
	s.must("submit", s.load.Send(s.ctx, len(s.load.Tries()), kinds...))
}

// refused offers a message in every way and wants all refused for now.
func (s *system) refused(smtp string) {
	s.Helper()
	for _, by := range []string{load.BySMTP, load.BySubmit, load.ByUser} {
		t := s.load.Offer(s.ctx, 0, load.Relay, by)
		if t.Fate != load.Refused || by == load.BySMTP && !strings.HasPrefix(t.Said, smtp) {
			s.Errorf("got %v, want it refused for now, with %s or exit code 75", &t, smtp)
		}
	}
}

// settle waits until nothing is left to do and wants every promise kept.
func (s *system) settle() *load.Audit {
	s.Helper()
	if _, err := s.load.Drain(s.ctx); err != nil {
		s.Fatalf("not drained: %v", err)
	}
	a, err := s.load.Audit()
	if err != nil {
		s.Fatal(err)
	}
	if a.Bad() {
		s.Errorf("%v", a)
	}
	return a
}

// event waits for an event of the log; pairs are keys and what their values hold.
func (s *system) event(word string, pairs ...string) suite.Event {
	s.Helper()
	e, err := s.Wait(patience, word+" "+strings.Join(pairs, " "), func(e suite.Event) bool { return e.Is(word, pairs...) })
	if err != nil {
		what, _, _ := strings.Cut(err.Error(), "\n") // the log follows, see begin
		s.Fatal(what)
	}
	return e
}

// await looks at what other processes do until it is as wanted: that gives no event.
func (s *system) await(what string, ok func() bool) {
	s.Helper()
	for !ok() {
		select {
		case <-s.ctx.Done():
			left, err := s.Left()
			s.Fatalf("no %s; the postoffice holds %q, %v", what, left, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// path returns a file of the postoffice.
func (s *system) path(name string) string { return filepath.Join(s.PostOffice(), name) }

// names lists a directory of the postoffice.
func (s *system) names(dir string) []string {
	s.Helper()
	entries, err := os.ReadDir(s.path(dir))
	s.must("list", err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// running returns the processes of a program.
func (s *system) running(program string) []suite.Process {
	s.Helper()
	all, err := s.Processes()
	s.must("list processes", err)
	var list []suite.Process
	for _, p := range all {
		if p.Name == program {
			list = append(list, p)
		}
	}
	return list
}

// zmctl runs a command that must succeed.
func (s *system) zmctl(args ...string) string {
	s.Helper()
	out, err := s.Command("zmctl", args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) || err != nil {
		s.Fatalf("zmctl %q: %v\n%s", args, err, out)
	}
	return string(out)
}
