package router

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// cutOffice opens a postoffice and a router on a test disk.
func cutOffice(t *testing.T, disk *cutfs.FS, c postoffice.Config) (*postoffice.PostOffice, *Router, error) {
	t.Helper()
	c.FS = disk
	p, err := postoffice.Open(c)
	if err != nil {
		return nil, nil, err
	}
	r, err := New(p, Config{Config: route.Config{Hostname: "mx.example.org", Rules: rules.Config{Dir: t.TempDir()}}})
	return p, r, err
}

// drain is the next start of router and scheduler, again and again until nothing
// moves: what they find is routed.
func drain(t *testing.T, disk *cutfs.FS, c postoffice.Config) []routed {
	t.Helper()
	p, r, err := cutOffice(t, disk, c)
	assert.Must(t, err)
	for range 5 {
		assert.Must(t, r.Recover())
		// The scheduler's part, an hour later: nobody is between two renames.
		if _, err := p.Queue.Recover(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		err := p.Queue.List(func(name string) error {
			s, err := p.Queue.Open(name)
			if err != nil {
				return err
			}
			b, err := s.Read()
			if err := errors.Join(err, s.Close()); err != nil || workspec.Complete(b) {
				return err
			}
			return p.Queue.Reroute(name)
		})
		assert.Must(t, err)
		if _, err := r.RouteAll(); err != nil {
			t.Fatal(err)
		}
	}
	return handedOver(t, p)
}

// M7: a router that is cut off before any operation, by a kill or by a loss of
// power, leaves what the next one routes, once.
func TestRouterCutAnywhereLosesAndRepeatsNothing(t *testing.T) {
	for name, c := range map[string]postoffice.Config{
		"usual": {}, "strict": {Strict: true}, "two hash levels": {HashLevels: 2},
	} {
		t.Run(name, func(t *testing.T) {
			cuts := 0
			for n := 0; ; n++ {
				disk, want := cutSpool(t, c)
				disk.CutAfter(n)
				if n%2 == 1 {
					disk.CutInside(n)
				}
				if _, r, err := cutOffice(t, disk, c); err == nil {
					// Its errors are those of a process that is dying.
					_ = r.Recover()
					_, _ = r.RouteAll()
				}
				if !disk.Dead() {
					break
				}
				cuts++
				for _, loss := range disk.Losses() {
					got := drain(t, disk.Restart(loss), c)
					if ids := subjects(got); ids != want {
						t.Fatalf("cut before operation %d, %v: got %q, want %q\n%s", n, loss, ids, want, disk.Log())
					}
				}
			}
			if cuts < 15 {
				t.Errorf("cuts: got %d, want more operations than that", cuts)
			}
		})
	}
}

// cutSpool makes a test disk with three messages in router/.
func cutSpool(t *testing.T, c postoffice.Config) (router *cutfs.FS, subjectsOf string) {
	t.Helper()
	disk := cutfs.New()
	assert.Must(t, postoffice.Init(disk))
	c.FS = disk
	p, err := postoffice.Open(c)
	assert.Must(t, err)
	for _, s := range []string{"a", "b", "c"} {
		submit(t, p, "from <q@example.net>\nto <"+s+"@example.net>\nenv-end\nSubject: "+s+"\n\nbody\n")
	}
	assert.Must(t, errors.Join(disk.SyncDir(postoffice.Public), disk.SyncDir(postoffice.Router)))
	return disk.Process(), "a b c"
}

// subjects names messages by their Subject, sorted, each as often as it is there.
func subjects(list []routed) string {
	count := map[string]int{}
	for _, m := range list {
		_, s, _ := strings.Cut(m.header(), "Subject: ")
		count[strings.TrimSpace(s)]++
	}
	var out []string
	for _, s := range []string{"a", "b", "c", ""} {
		for range count[s] {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

// K12 S21, and the trap "second rename fails and the only copy is unlinked".
func TestStorageErrorGivesTheMessageBack(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		op   faultfs.Op
		glob string
		err  error
	}{
		"no space for the work file":    {faultfs.Create, "router/..*", unix.ENOSPC},
		"no space in the work file":     {faultfs.Write, "router/..*", unix.ENOSPC},
		"work file lost at close":       {faultfs.Close, "router/..*", unix.EIO},
		"message cannot be read":        {faultfs.Read, "router/*", unix.EIO},
		"no space in queue/":            {faultfs.Rename, "queue/*", unix.ENOSPC},
		"no space in transport/":        {faultfs.Rename, "transport/*", unix.ENOSPC},
		"router/ cannot be changed":     {faultfs.Rename, "router/*", unix.EROFS},
		"router/ cannot be read":        {faultfs.ReadDir, "router", unix.EIO},
		"too many files: work file":     {faultfs.Create, "router/..*", unix.EMFILE},
		"too many files: the directory": {faultfs.ReadDir, "router", unix.ENFILE},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			o.submit(plain("a@example.net"))
			fault := o.disk.Fail(tt.op, tt.glob, tt.err, faultfs.Always)
			if n, err := o.r.RouteAll(); n != 0 || !errors.Is(err, tt.err) || !isStorage(err) {
				t.Errorf("got %d, %v, want 0, %v", n, err, tt.err)
			}
			if fault.Hits() == 0 {
				t.Error("the fault was not met")
			}
			o.expect("with the fault", map[string]int{"router": 1})
			fault.End()
			o.route()
			o.expect("without", map[string]int{"queue": 1, "transport": 1})
		})
	}
}

func TestClaimThatCannotBeGivenBackIsTriedAgain(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	o.submit(plain("a@example.net"))
	full := o.disk.Fail(faultfs.Create, "router/..*", unix.ENOSPC, faultfs.Always)
	// The claim works, the way back does not.
	stuck := o.disk.On(faultfs.Rename, "router/*", faultfs.Always, func(string) error {
		if full.Hits() > 0 {
			return unix.EIO
		}
		return nil
	})
	if n, err := o.r.RouteAll(); n != 0 || !errors.Is(err, unix.ENOSPC) || !errors.Is(err, unix.EIO) {
		t.Fatalf("got %d, %v, want both errors", n, err)
	}
	if got := o.names("router"); len(got) != 1 || isMessage(got[0]) {
		t.Fatalf("router/: got %q, want the claim", got)
	}
	if err := o.r.Recover(); err != nil || isMessage(o.names("router")[0]) {
		t.Fatalf("got %q, %v, want the claim still", o.names("router"), err)
	}
	full.End()
	stuck.End()
	assert.Must(t, o.r.Recover())
	o.route()
	o.expect("in the end", map[string]int{"queue": 1, "transport": 1})
}

// K10
func TestMessageRemovedByHandIsLoggedAndForgotten(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	gone := o.submit(plain("gone@example.net"))
	o.submit(plain("a@example.net"))
	o.disk.On(faultfs.Create, "router/..*", 1, func(name string) error {
		return os.Remove(filepath.Join(o.dir, strings.Replace(name, "..", "", 1)))
	})
	if n, err := o.r.RouteAll(); n != 1 || err != nil {
		t.Errorf("got %d, %v, want 1", n, err)
	}
	o.logged(1, "msg=gone", "id="+gone.ID.String())
}

// K10, and the trap "inode reused": inode numbers are used again, and a file that a hand
// has left under one is no reason for a message to wait for an operator, nor may it stand
// beside a specification that is not its own.
func TestMessageWhoseNameIsTakenWaitsForIt(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			a := o.submit(plain("a@example.net"))
			taken := filepath.Join(o.dir, dir, fmt.Sprintf("%d-%d", a.ID.Ino, o.r.owner.Number()))
			assert.Must(t, os.WriteFile(taken, nil, 0o600))
			beside := false
			o.disk.On(faultfs.Rename, "queue/*", 1, func(string) error { beside = dir == postoffice.Transport; return nil })
			if _, err := o.r.RouteAll(); !errors.Is(err, postoffice.ErrOccupied) {
				t.Errorf("got %v, want ErrOccupied", err)
			}
			o.expect("taken", map[string]int{"router": 1, dir: 1})
			if beside {
				t.Error("the message was moved into queue/, beside another's specification")
			}
			assert.Must(t, os.Remove(taken))
			if n, err := o.r.RouteAll(); n != 1 || err != nil {
				t.Errorf("when the name is free: got %d, %v", n, err)
			}
			o.expect("free", map[string]int{"queue": 1, "transport": 1})
		})
	}
}

func TestUnfinishedMessagesInPublicAreToldOnce(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	path := filepath.Join(o.dir, postoffice.Public, "x.1")
	assert.Must(t, os.WriteFile(path, []byte("comment octets 0000000000000999\nto a\n"), 0o700))
	if err := os.Chmod(path, 0o700|fs.ModeSticky); err != nil { // as a daemon's
		t.Fatal(err)
	}
	for range 3 {
		assert.Must(t, o.r.Recover())
	}
	o.logged(1, "msg=recovered", "action=incomplete", "name=public/x.1")
}

// M7 K12, and the trap "second rename fails and the only copy is unlinked": the message
// is in queue/, and neither the specification's way there nor the message's way back
// works: the router itself ends that when the disk is well again.
func TestHandOverThatIsStuckIsFinishedByItsRouter(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	o.submit(plain("a@example.net"))
	spec := o.disk.Fail(faultfs.Rename, "transport/*", unix.EIO, faultfs.Always)
	back := o.disk.On(faultfs.Rename, "router/*", faultfs.Always, func(string) error {
		if spec.Hits() > 0 {
			return unix.EIO
		}
		return nil
	})
	if _, err := o.r.RouteAll(); !errors.Is(err, unix.EIO) {
		t.Fatalf("got %v, want EIO", err)
	}
	o.expect("stuck", map[string]int{"router": 1, "queue": 1})
	spec.End()
	back.End()
	assert.Must(t, o.r.Recover())
	o.expect("in the end", map[string]int{"queue": 1, "transport": 1})
}
