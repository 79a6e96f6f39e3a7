package main

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/repair"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// K9: what a live process has in hand is left alone, and told; when that process is
// dead the same repair takes it.
func TestRepairLeavesTheWorkOfTheLiving(t *testing.T) {
	cases := map[string]struct {
		plant func(t *testing.T, o *office) (files []string, end func() error)
		told  bool // as a step that is left
	}{
		"a scheduler has the queue": {func(t *testing.T, o *office) ([]string, func() error) {
			_, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			o.rename(t, "queue/"+name, "queue/7-7")
			o.rename(t, "transport/"+name, "transport/7-7")
			release, err := o.Owners.Exclusive("scheduler")
			must(t, err)
			return []string{"queue/7-7", "transport/7-7"}, release
		}, true},
		"an agent of a dead scheduler delivers": {func(t *testing.T, o *office) ([]string, func() error) {
			_, name, off := o.queue(t, "a@a.example.com", "b@a.example.com")
			o.rename(t, "queue/"+name, "queue/7-7")
			o.rename(t, "transport/"+name, "transport/7-7")
			agent := o.run(t, "ta-smtp")
			o.tag(t, "7-7", off[0], workspec.LockBytes(agent.Number()))
			return []string{"queue/7-7", "transport/7-7"}, agent.Release
		}, true},
		"somebody has the specification locked": {func(t *testing.T, o *office) ([]string, func() error) {
			_, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
			o.rename(t, "queue/"+name, "queue/7-7")
			o.rename(t, "transport/"+name, "transport/7-7")
			s, err := o.Queue.Open("7-7")
			must(t, err, s.Lock())
			return []string{"queue/7-7", "transport/7-7"}, s.Close
		}, true},
		"a router has a claim": {func(t *testing.T, o *office) ([]string, func() error) {
			c := o.claim(t, o.submit(t, plainMail))
			other := o.run(t, "submit")
			name := postoffice.Name{Ino: 7, Owner: o.owner.Number()}.String()
			o.rename(t, "router/"+c.Name(), "router/"+name)
			return []string{"router/" + name}, other.Release
		}, false},
		"a router is between its two renames": {func(t *testing.T, o *office) ([]string, func() error) {
			c := o.claim(t, o.submit(t, plainMail))
			w, err := c.CreateWork()
			must(t, err, w.Close())
			name := postoffice.Name{Ino: 7, Owner: o.owner.Number()}.String()
			o.rename(t, "router/"+c.Name(), "queue/"+name)
			o.rename(t, "router/.."+c.Name(), "router/.."+name)
			return []string{"queue/" + name, "router/.." + name}, func() error { return nil }
		}, false},
		"a submitter writes": {func(t *testing.T, o *office) ([]string, func() error) {
			d, err := o.Submissions.NewDraft("test")
			must(t, err, os.Chmod(o.path("public/"+d.Name()), 0o700))
			o.age(t, "public/"+d.Name(), 3*check.DraftGrace)
			return []string{"public/" + d.Name()}, d.Abort
		}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			files, end := c.plant(t, o)
			steps, _ := mendSteps(t, "--repair")
			left := slices.ContainsFunc(steps, func(s repair.Step) bool { return s.Left != "" })
			if left != c.told || !left && len(steps) > 0 {
				t.Errorf("got %+v, want something left: %v", steps, c.told)
			}
			for _, f := range files {
				if _, err := os.Lstat(o.path(f)); err != nil {
					t.Errorf("it was taken: %v", err)
				}
			}
			must(t, end())
			if o.owner != nil {
				must(t, o.owner.Release())
				o.owner = nil
			}
			if !c.told {
				return
			}
			if steps, code := mendSteps(t, "--repair"); code != 0 || len(steps) == 0 {
				t.Errorf("when it is dead: exit code %d, %+v", code, steps)
			}
			rightNames(t, o, 0)
		})
	}
}

// Two repairs at once: each message is mended by one of them, once.
func TestTwoRepairsAtOnceDoNotMeet(t *testing.T) {
	o := newOffice(t)
	full(t, o)
	o = o.copyOffice(t, 0)
	self, err := os.Executable()
	must(t, err)
	var both [2]*exec.Cmd
	for i := range both {
		both[i] = exec.CommandContext(t.Context(), self, "check", "--repair")
		both[i].Env = append(os.Environ(), "BE_ZMCTL=1")
		must(t, both[i].Start())
	}
	for _, c := range both {
		if err := c.Wait(); c.ProcessState.ExitCode() > 1 {
			t.Error(err)
		}
	}
	steps, code := mendSteps(t, "--repair")
	if again, _ := mendSteps(t, "--dry-run"); code != 0 || len(again) > 0 {
		t.Errorf("a third repair: exit code %d, %+v, and then %+v", code, steps, again)
	}
	if got := rightNames(t, o, 0); len(got) != 13 {
		t.Errorf("%d recipients are open, want 13: %q", len(got), got)
	}
}

// M50: a hash directory on another file system is found; the daemons cannot rename
// into it.
func TestHashDirectoryOnAnotherFileSystemIsFound(t *testing.T) {
	o := newOffice(t)
	must(t, os.Mkdir(o.path("queue/B"), 0o755))
	if err := unix.Mount("none", o.path("queue/B"), "tmpfs", 0, "mode=755"); err != nil {
		t.Skipf("mounting a second file system needs root: %v", err)
	}
	defer func() { must(t, unix.Unmount(o.path("queue/B"), 0)) }()
	found, code := problems(t)
	if !slices.Contains(found["queue/B/"], string(check.OtherDevice)) || code != 2 {
		t.Errorf("got %v and exit code %d, want %s at queue/B/", found, code, check.OtherDevice)
	}
}

// What is unreadable is told, and nothing is guessed about it.
func TestUnreadableFilesAreToldAndLeft(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	o := newOffice(t)
	_, name, _ := o.queue(t, "a@a.example.com", "b@a.example.com")
	must(t, os.Chmod(o.path("transport/"+name), 0), os.Chmod(o.path("freezer"), 0))
	defer func() { must(t, os.Chmod(o.path("freezer"), 0o750)) }()
	found, code := problems(t)
	if code != 2 || !slices.Contains(found["transport/"+name], string(check.Unreadable)) || !slices.Contains(found["freezer"], string(check.Unreadable)) {
		t.Errorf("got %v and exit code %d", found, code)
	}
	if _, _, err := invoke(t, "check", "--repair"); err == nil || !strings.Contains(err.Error(), "freezer") {
		t.Errorf("repair: got %v, want it to tell of freezer/", err)
	}
	if _, err := os.Stat(o.path("transport/" + name)); errors.Is(err, os.ErrNotExist) {
		t.Error("the specification was taken away")
	}
}
