package postoffice_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/disk/loopdisk"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// damaged returns a postoffice on an ext4 that cannot write data back.
func damaged(t *testing.T) (*postoffice.PostOffice, *loopdisk.Image) {
	t.Helper()
	disk := loopdisk.Damaged(t, func(dir string) {
		f := assert.Get(durable.NewOS(dir))(t)
		assert.Must(t, postoffice.Init(f))
		assert.Must(t, f.Close())
	})
	p := assert.Get(postoffice.OpenDir(disk.Dir, 0, false))(t)
	return p, disk
}

// write makes a draft of so many bytes.
func write(p *postoffice.PostOffice, size int) (*postoffice.Draft, error) {
	d, err := p.Submissions.NewDraft("test")
	if err == nil {
		_, err = d.Write(bytes.Repeat([]byte("x"), size))
	}
	return d, err
}

// Dur2: what was accepted on a damaged ext4 is whole when that is mounted again: small
// messages that share a sync, a large one that is written out early, and a slow one that
// the kernel writes in the background.
func TestDur2AcceptedOnDamagedDiskIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		drafts, size int
		background   bool
	}{
		"shared sync":   {40, 3000, false},
		"alone":         {1, 3000, false},
		"large":         {1, 5 << 20, false},
		"slow":          {1, 100 << 10, true},
		"several, slow": {10, 100 << 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, disk := damaged(t)
			drafts := make([]*postoffice.Draft, c.drafts)
			for i := range drafts {
				var err error
				if drafts[i], err = write(p, c.size); drafts[i] == nil {
					t.Fatal(err)
				}
			}
			if c.background {
				fd := assert.Get(unix.Open(disk.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0))(t)
				// What it returns is no concern of the drafts' writer.
				_ = unix.Syncfs(fd)
				unix.Close(fd)
			}
			accepted := make([]postoffice.Accepted, c.drafts)
			errs := make([]error, c.drafts)
			var all sync.WaitGroup
			for i, d := range drafts {
				all.Go(func() { accepted[i], errs[i] = d.Commit() })
			}
			all.Wait()
			assert.Must(t, p.FS().(*durable.OS).Close())
			disk.Unmount(t)
			disk.Mount(t, "errors=continue")
			for i, a := range accepted {
				if errs[i] != nil {
					continue
				}
				b, err := os.ReadFile(filepath.Join(disk.Dir, a.Name))
				if err != nil || int64(len(b)) != a.Size || bytes.Count(b, []byte("x")) != c.size {
					t.Errorf("message %d was accepted; %s has %d of %d bytes (%v)", i, a.Name, len(b), a.Size, err)
				}
			}
			t.Logf("the first commit returns: %v", errs[0])
		})
	}
}

// Dur2: an error of the early write-back is the message's.
func TestDur2EarlyWriteBackFailsTheMessage(t *testing.T) {
	f := assert.Get(durable.NewOS(t.TempDir()))(t)
	defer f.Close()
	assert.Must(t, postoffice.Init(f))
	faulty := faultfs.New(f)
	p := assert.Get(postoffice.Open(postoffice.Config{FS: faulty}))(t)
	rule := faulty.Fail(faultfs.WriteOut, "public/*", unix.EUCLEAN, 1)
	d := assert.Get(p.Submissions.NewDraft("test"))(t)
	for range 5 {
		// The error stays until Commit.
		_, _ = d.Write(bytes.Repeat([]byte("x"), 1<<20))
	}
	if _, err := d.Commit(); err == nil || rule.Hits() != 1 {
		t.Errorf("got %v after %d errors", err, rule.Hits())
	}
	for _, dir := range []string{postoffice.Public, postoffice.Router} {
		if list, err := f.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%s: left %v, %v", dir, list, err)
		}
	}
}

// dropping is a file system that has lost a part of each file in the background.
type dropping struct{ durable.FS }

func (dropping) Unwritten(info durable.Info) bool { return info.Size > 0 }

// Dur2: a message that the kernel dropped a part of, and whose fsync succeeded, is neither
// accepted nor prepared.
func TestDur2DroppedDataIsNotAccepted(t *testing.T) {
	f := assert.Get(durable.NewOS(t.TempDir()))(t)
	defer f.Close()
	assert.Must(t, postoffice.Init(f))
	p := assert.Get(postoffice.Open(postoffice.Config{FS: dropping{f}}))(t)
	for name, end := range map[string]func(d *postoffice.Draft) error{
		"commit":  func(d *postoffice.Draft) error { _, err := d.Commit(); return err },
		"prepare": (*postoffice.Draft).Prepare,
	} {
		d := assert.Get(write(p, 3000))(t)
		if err := end(d); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: got %v, want EIO", name, err)
		}
	}
	for _, dir := range []string{postoffice.Public, postoffice.Router} {
		if list, err := f.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%s: left %v, %v", dir, list, err)
		}
	}
}
