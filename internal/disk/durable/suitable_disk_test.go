package durable_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/loopdisk"
	"zmailer/internal/run/assert"
)

// Dur4: what is said of file systems that are really mounted.
func TestDur4MountedFileSystemsAreJudged(t *testing.T) {
	ext4 := func(size int64, mkfs, options string) func(t *testing.T) string {
		return func(t *testing.T) string {
			disk := loopdisk.New(t, size, mkfs)
			disk.Mount(t, options)
			return disk.Dir
		}
	}
	for name, c := range map[string]struct {
		mount func(t *testing.T) string
		kind  string
		risk  string // a word of the only risk; "": none
	}{
		"ext4":                   {ext4(32<<20, "mkfs.ext4 -q -F", ""), "ext4", ""},
		"ext4 without a journal": {ext4(32<<20, "mkfs.ext4 -q -F -O ^has_journal", ""), "ext4", "no journal"},
		"ext4 data=writeback":    {ext4(32<<20, "mkfs.ext4 -q -F", "data=writeback"), "ext4", "data=writeback"},
		"ext4 data=journal":      {ext4(32<<20, "mkfs.ext4 -q -F", "data=journal"), "ext4", ""},
		"ext4 nobarrier":         {ext4(32<<20, "mkfs.ext4 -q -F", "nobarrier"), "ext4", "barriers"},
		"ext2":                   {ext4(32<<20, "mkfs.ext2 -q -F", ""), "", "no journal"},
		"xfs":                    {ext4(320<<20, "mkfs.xfs -q -f", ""), "xfs", ""},
		"tmpfs": {func(t *testing.T) string {
			if os.Geteuid() != 0 {
				t.Skip("only root mounts file systems")
			}
			dir := t.TempDir()
			if err := unix.Mount("test", dir, "tmpfs", 0, ""); err != nil {
				t.Skip("mount tmpfs: ", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			return dir
		}, "tmpfs", "lost"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.mount(t)
			m := assert.Get(durable.MountOf(dir))(t)
			if c.kind != "" && m.Kind != c.kind || m.Point != dir {
				t.Errorf("got %+v, want %s on %s", m, c.kind, dir)
			}
			risks := m.Risks(false)
			if c.risk == "" && len(risks) > 0 || c.risk != "" && (len(risks) != 1 || !strings.Contains(risks[0].Text, c.risk)) {
				t.Errorf("got %q, want %q", risks, c.risk)
			}
			o := assert.Get(durable.NewOS(dir))(t)
			defer o.Close()
			if err := durable.ProbeRename(o, "."); err != nil {
				t.Errorf("rename: %v", err)
			}
		})
	}
}
