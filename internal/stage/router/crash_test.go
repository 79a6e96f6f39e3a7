package router

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

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

// K12: a claim that can be neither routed nor given back, with no descriptors or space left on
// a disk that errs, is given back at a later poll: it is a living owner's, so no other process
// would.
func TestClaimThatCannotBeGivenBackIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		op   faultfs.Op
		file string
		err  error
	}{
		"not opened": {faultfs.Open, "router/*-*", unix.EMFILE},
		"not routed": {faultfs.Create, "router/..*", unix.ENOSPC},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			o.submit(plain("a@example.net"))
			full := o.disk.Fail(c.op, c.file, c.err, faultfs.Always)
			// The claim works, the way back does not.
			stuck := o.disk.On(faultfs.Rename, "router/*", faultfs.Always, func(string) error {
				if full.Hits() > 0 {
					return unix.EIO
				}
				return nil
			})
			if n, err := o.r.RouteAll(); n != 0 || !errors.Is(err, c.err) || !errors.Is(err, unix.EIO) {
				t.Fatalf("got %d, %v, want both errors", n, err)
			}
			assert.Must(t, o.r.Recover())
			if got := o.names("router"); len(got) != 1 || isMessage(got[0]) {
				t.Fatalf("router/: got %q, want the claim still", got)
			}
			full.End()
			stuck.End()
			assert.Must(t, o.r.Recover())
			o.route()
			o.expect("in the end", map[string]int{"queue": 1, "transport": 1})
		})
	}
}

// K12: a hint for a name that is gone, because the other worker has claimed the file,
// is no success: the pauses go on, and no log line says that the storage works again.
func TestHintForAGoneNameIsNoSuccess(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	d := newDispatcher(o.r, nil)
	d.routed(jobResult{"4711", unix.ENOSPC})
	d.routed(o.hinted(t, "4711")[0])
	if _, waits := d.later["4711"]; !waits || d.pause.length == 0 {
		t.Errorf("the message waits %v, all routing for %v", waits, d.pause.length)
	}
	o.logged(0, "msg=storage-recovered")
}
