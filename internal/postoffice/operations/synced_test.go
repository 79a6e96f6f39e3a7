package operations

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// An operation that returns is on the disk: it returns the error of each of its syncs of the
// specification, and it has so many.
func TestFailedSyncIsNoOperation(t *testing.T) {
	resume := func(q Request, name string) (Result, error) {
		f, err := q.PostOffice.Queue.Open(name)
		if err != nil {
			return Result{}, err
		}
		defer f.Close()
		spec, err := read(f)
		if err != nil {
			return Result{}, err
		}
		_, err = Resume(f, spec, q.submit)
		return Result{}, err
	}
	for name, tt := range map[string]struct {
		do    func(q Request, name string) (Result, error)
		syncs int
		begun bool // a rerouting has been cut after its event
	}{
		"hold":              {func(q Request, name string) (Result, error) { return Hold(q, name, q.Now) }, 1, false},
		"remove":            {Remove, 2, false},
		"expire":            {Expire, 2, false},
		"reroute":           {Reroute, 2, false},
		"rest of a reroute": {resume, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			for fails := range tt.syncs + 1 { // the last time none does
				d := newDesk(t, plainText, plainHeader, "body\n")
				disk := faultfs.New(d.po.FS())
				d.po = assert.Get(postoffice.Open(postoffice.Config{FS: disk}))(t)
				if tt.begun {
					q := d.request()
					q.Submit = func(string, int) (postoffice.Accepted, error) { return postoffice.Accepted{}, unix.EIO }
					if _, err := Reroute(q, d.name); !errors.Is(err, unix.EIO) {
						t.Fatalf("cut after the event: %v", err)
					}
				}
				rule := failSync(disk, fails)
				_, err := tt.do(d.request(), d.name)
				if fails < tt.syncs && !errors.Is(err, unix.EIO) {
					t.Errorf("sync %d failed: got %v", fails, err)
				}
				if fails == tt.syncs {
					d.must(err)
					assert.Equal(t, rule.Hits(), tt.syncs, "syncs")
				}
			}
		})
	}
}

// failSync has the sync of a specification fail that comes after so many.
func failSync(disk *faultfs.FS, after int) *faultfs.Rule {
	n := 0
	return disk.On(faultfs.Sync, "transport/*", faultfs.Always, func(string) error {
		if n++; n == after+1 {
			return unix.EIO
		}
		return nil
	})
}
