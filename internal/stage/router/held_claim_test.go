package router

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
)

// K12: a claim that can be neither opened nor given back, with no descriptors left on
// a disk that errs, is given back at a later poll: it is a living owner's, so nobody
// else would.
func TestClaimThatCannotBeOpenedIsGivenBack(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	o.submit(plain("a@example.net"))
	full := o.disk.Fail(faultfs.Open, "router/*-*", unix.EMFILE, faultfs.Always)
	stuck := o.disk.On(faultfs.Rename, "router/*", faultfs.Always, func(string) error {
		if full.Hits() > 0 {
			return unix.EIO
		}
		return nil
	})
	if n, err := o.r.RouteAll(); n != 0 || !errors.Is(err, unix.EMFILE) || !errors.Is(err, unix.EIO) {
		t.Fatalf("got %d, %v, want both errors", n, err)
	}
	if got := o.names("router"); len(got) != 1 || isMessage(got[0]) {
		t.Fatalf("router/: got %q, want the claim", got)
	}
	full.End()
	stuck.End()
	if err := o.r.Recover(); err != nil || !isMessage(o.names("router")[0]) {
		t.Fatalf("got %q, %v, want the message free", o.names("router"), err)
	}
	o.route()
	o.expect("then", map[string]int{"queue": 1, "transport": 1})
}

// K12: a hint for a name that is gone, because the other worker has claimed the file,
// is no success: the pauses go on, and nobody is told that the storage works again.
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
