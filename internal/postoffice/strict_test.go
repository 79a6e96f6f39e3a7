package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// A directory that is there is made durable once by each process, and again when it was
// made again.
func TestDirectoryIsMadeDurableOnce(t *testing.T) {
	_, dir := newPostOffice(t, 0)
	below := assert.Get(durable.NewOS(dir))(t)
	disk := faultfs.New(below)
	for _, want := range []int{1, 1, 2} {
		p := assert.Get(Open(Config{FS: disk, Strict: true}))(t)
		synced := disk.On(faultfs.SyncDir, ".", faultfs.Always, func(string) error { return nil })
		for i := range 3 {
			assert.Must(t, p.Ensure(Removed))
			if i == 0 && want > 1 {
				assert.Must(t, os.Remove(filepath.Join(dir, Removed)))
			}
		}
		assert.Equal(t, synced.Hits(), want, "syncs")
		synced.End()
	}
}

// M2: with sync=strict a directory that cannot be synced is no yes: the message is
// taken back, or stays in router/ if even that fails, rather sent twice than promised
// and lost. Only one that a router has claimed meanwhile is accepted after all.
func TestDirectoryThatCannotBeSyncedIsNoYes(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(disk *faultfs.FS, p *PostOffice)
		yes       bool
		left      string // I: inode
	}{
		"taken back": {func(*faultfs.FS, *PostOffice) {}, false, ""},
		"cannot be taken back": {func(disk *faultfs.FS, _ *PostOffice) {
			disk.Fail(faultfs.Rename, Router+"/*", unix.EIO, faultfs.Always)
		}, false, "router/I"},
		"claimed meanwhile": {func(_ *faultfs.FS, p *PostOffice) {
			list, err := p.fs.ReadDir(Router)
			if err == nil && len(list) == 1 {
				err = p.fs.RenameNew(Router+"/"+list[0].Name, Router+"/"+list[0].Name+"-7")
			}
			assert.NoError(t, err)
		}, true, "router/I-7"},
	} {
		t.Run(name, func(t *testing.T) {
			_, dir := newPostOffice(t, 0)
			below := assert.Get(durable.NewOS(dir))(t)
			disk := faultfs.New(below)
			p := assert.Get(Open(Config{FS: disk, Strict: true}))(t)
			d := assert.Get(p.Submissions.NewDraft("test"))(t)
			assert.Get(io.WriteString(d, "to a\n\n"))(t)
			disk.On(faultfs.SyncDir, Public, 1, func(string) error {
				c.meanwhile(disk, p)
				return unix.EIO
			})
			a, err := d.Commit()
			if c.yes != (err == nil) || !c.yes && !errors.Is(err, unix.EIO) {
				t.Errorf("got %v, want yes %v", err, c.yes)
			}
			left := ""
			for _, sub := range []string{Public, Router} {
				names := assert.Get(filepath.Glob(filepath.Join(dir, sub, "*")))(t)
				for _, n := range names {
					info, err := below.Stat(sub + "/" + filepath.Base(n))
					if err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Fatal(err)
					}
					name := sub + "/" + filepath.Base(n)
					for _, suffix := range []string{"", "-7"} {
						if name == fmt.Sprintf("router/%d%s", info.Ino, suffix) {
							name = "router/I" + suffix
						}
					}
					left += name
				}
			}
			assert.Equal(t, left, c.left, "left; accepted as %+v", a)
		})
	}
}
