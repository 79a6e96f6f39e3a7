package durable_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/loopdisk"
	"zmailer/internal/run/assert"
)

// Dur2: no file is called durable that is gone when the disk is mounted again. On a damaged
// ext4 the only error comes from the call that begins the write-back.
func TestDur2SharedSyncOnDamagedDisk(t *testing.T) {
	disk := loopdisk.Damaged(t, func(string) {})
	o := assert.Get(durable.NewOS(disk.Dir))(t)
	if !o.SharesSync() {
		t.Skip("this kernel's ext4 shares no sync")
	}
	text := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 3000) }
	name := func(i int) string { return fmt.Sprint("message", i) }
	const count = 3
	var files []durable.File
	for i := range count {
		f := assert.Get(o.Open(name(i), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))(t)
		if _, err := f.Write(text(i)); err != nil {
			t.Fatalf("the damage is found before the sync: %v", err)
		}
		files = append(files, f)
	}
	synced := o.SyncAll(files)
	t.Logf("the shared sync returns: %v", synced)
	for _, f := range files {
		assert.NoError(t, f.Close())
	}
	assert.NoError(t, o.Close())
	disk.Unmount(t)
	disk.Mount(t, "errors=continue")
	lost := 0
	for i := range count {
		if got, err := os.ReadFile(filepath.Join(disk.Dir, name(i))); err != nil || !bytes.Equal(got, text(i)) {
			lost++
		}
	}
	switch {
	case lost == 0:
		t.Skip("this kernel loses nothing on the damaged disk")
	case synced == nil:
		t.Errorf("SyncAll returned nil, and %d of %d files have lost their content", lost, count)
	}
}

// Dur2: WriteOut returns the error that a later Sync does not.
func TestDur2EarlyWriteBackOnDamagedDisk(t *testing.T) {
	disk := loopdisk.Damaged(t, func(string) {})
	o := assert.Get(durable.NewOS(disk.Dir))(t)
	defer o.Close()
	f := assert.Get(o.Open("message", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))(t)
	defer f.Close()
	assert.Get(f.Write(make([]byte, 100<<10)))(t)
	if err := durable.WriteOut(f, 0, 100<<10); err == nil {
		t.Errorf("got no error; fsync then returns %v", f.Sync())
	}
}

// Dur2: what the kernel has dropped in the background is seen after the sync.
func TestDur2BackgroundWriteBackOnDamagedDisk(t *testing.T) {
	disk := loopdisk.Damaged(t, func(string) {})
	o := assert.Get(durable.NewOS(disk.Dir))(t)
	defer o.Close()
	f := assert.Get(o.Open("message", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))(t)
	defer f.Close()
	assert.Get(f.Write(make([]byte, 3000)))(t)
	fd := assert.Get(unix.Open(disk.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0))(t)
	defer unix.Close(fd)
	// As the kernel does by itself within half a minute.
	t.Logf("syncfs returns: %v", unix.Syncfs(fd))
	if err := f.Sync(); err != nil {
		return
	}
	info := assert.Get(f.Stat())(t)
	if !durable.Unwritten(o, info) {
		t.Errorf("fsync returned nil, and %d of %d bytes have a place on the disk", info.Blocks, info.Size)
	}
}

// Dur2: a file that is on the disk is never taken for one that is not.
func TestDur2WholeFilesAreNotCalledUnwritten(t *testing.T) {
	for name, disk := range map[string]func(t *testing.T) *loopdisk.Image{
		"ext4": func(t *testing.T) *loopdisk.Image { return loopdisk.New(t, 32<<20, "mkfs.ext4 -q -F") },
		"ext4 with inline data": func(t *testing.T) *loopdisk.Image {
			return loopdisk.New(t, 32<<20, "mkfs.ext4 -q -F -I 1024 -O inline_data")
		},
		"ext4 without a journal": func(t *testing.T) *loopdisk.Image {
			return loopdisk.New(t, 32<<20, "mkfs.ext4 -q -F -O ^has_journal")
		},
		"xfs": func(t *testing.T) *loopdisk.Image { return loopdisk.New(t, 320<<20, "mkfs.xfs -q -f") },
	} {
		t.Run(name, func(t *testing.T) {
			image := disk(t)
			image.Mount(t, "")
			o := assert.Get(durable.NewOS(image.Dir))(t)
			defer o.Close()
			for _, size := range []int{0, 1, 60, 500, 4096, 4097, 1 << 20} {
				f := assert.Get(o.Open(fmt.Sprint(size), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))(t)
				defer f.Close()
				assert.Get(f.Write(make([]byte, size)))(t)
				assert.Must(t, f.Sync())
				info, err := f.Stat()
				if err != nil || durable.Unwritten(o, info) {
					t.Errorf("%d bytes: %d on the disk, called unwritten (%v)", size, info.Blocks, err)
				}
			}
		})
	}
}
