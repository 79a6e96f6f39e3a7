package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

const mountsText = `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
35 27 8:17 / /srv/a\040b rw,relatime shared:1 master:2 - xfs /dev/sdb1 rw,noquota
36 27 0:40 / /short
37 27 0:41 / /over rw - overlay overlay rw,lowerdir=/l,volatile
38 27 0:50 /@home /home rw,relatime - btrfs /dev/sdc rw,space_cache=v2,subvolid=256
39 38 0:60 / /home/mail rw - fuse.glusterfs server:/vol rw,user_id=0
`

// Dur4: the file system is found by its number, or by its path where the number is not
// there, as with btrfs.
func TestDur4MountIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		number, path string
		kind, point  string
	}{
		"the root":                     {"254:0", "/var/spool/postoffice", "ext4", "/"},
		"a blank in the path":          {"8:17", "/srv/a b/po", "xfs", "/srv/a b"},
		"a subvolume's own number":     {"0:77", "/home/jim/po", "btrfs", "/home"},
		"a mount inside another":       {"0:60", "/home/mail/po", "fuse.glusterfs", "/home/mail"},
		"a path that begins likewise":  {"0:99", "/home/mailing", "btrfs", "/home"},
		"the mount point":              {"0:99", "/home/mail", "fuse.glusterfs", "/home/mail"},
		"a line that is too short":     {"0:40", "/short/po", "ext4", "/"},
		"the number before the path":   {"0:41", "/home/jim", "overlay", "/over"},
		"a number that is not a mount": {"1:1", "/elsewhere", "ext4", "/"},
	} {
		t.Run(name, func(t *testing.T) {
			if m := findMount([]byte(mountsText), c.number, c.path); m.Kind != c.kind || m.Point != c.point {
				t.Errorf("got %+v, want %s on %s", m, c.kind, c.point)
			}
		})
	}
	if m := findMount(nil, "1:1", "/x"); m.Kind != "" || len(m.Risks(false)) > 0 {
		t.Errorf("nothing is known: got %+v, %v", m, m.Risks(false))
	}
}

// Dur4: each file system that docs/durability.md calls unsuitable has a risk and a remedy, by
// SYNC; each that it calls suitable has none.
func TestDur4UnsuitableFileSystemsAreNamed(t *testing.T) {
	mount := func(kind, journal, options string) Mount {
		return Mount{Kind: kind, Source: "/dev/x", Point: "/", Options: strings.Split(options, ","), Journal: journal}
	}
	for name, c := range map[string]struct {
		mount          Mount
		normal, strict string // a word of the risk; "": none
	}{
		"ext4":                    {mount("ext4", "yes", "rw,relatime"), "", ""},
		"ext4, journal not known": {mount("ext4", "", "rw"), "", ""},
		"ext4, data=journal":      {mount("ext4", "yes", "rw,data=journal"), "", ""},
		"ext4 without a journal":  {mount("ext4", "no", "rw"), "journal", "journal"},
		"ext4, data=writeback":    {mount("ext4", "yes", "rw,data=writeback"), "data=writeback", "data=writeback"},
		"ext4, nobarrier":         {mount("ext4", "yes", "rw,nobarrier"), "barriers", "barriers"},
		"ext4, barrier=0":         {mount("ext4", "yes", "rw,barrier=0"), "barriers", "barriers"},
		"ext3 without a journal":  {mount("ext3", "no", "rw"), "journal", "journal"},
		"ext2":                    {mount("ext2", "", "rw"), "journal", "journal"},
		"vfat":                    {mount("vfat", "", "rw"), "journal", "journal"},
		"xfs":                     {mount("xfs", "", "rw,noquota"), "", ""},
		"btrfs":                   {mount("btrfs", "", "rw"), "", ""},
		"zfs":                     {mount("zfs", "", "rw"), "", ""},
		"f2fs":                    {mount("f2fs", "", "rw,fsync_mode=posix"), "fsync", ""},
		"f2fs, fsync_mode=strict": {mount("f2fs", "", "rw,fsync_mode=strict"), "", ""},
		"f2fs, fsync_mode nobarrier": {mount("f2fs", "", "rw,fsync_mode=nobarrier"), "fsync_mode=nobarrier",
			"fsync_mode=nobarrier"},
		"overlay":           {mount("overlay", "", "rw,upperdir=/u"), "", ""},
		"overlay, volatile": {mount("overlay", "", "rw,volatile"), "volatile", "volatile"},
		"tmpfs":             {mount("tmpfs", "", "rw"), "lost", "lost"},
		"nfs":               {mount("nfs", "", "rw"), "local", "local"},
		"nfs4":              {mount("nfs4", "", "rw,hard"), "fsync", ""},
		"nfs4, soft":        {mount("nfs4", "", "rw,soft"), "soft", "soft"},
		"glusterfs":         {mount("fuse.glusterfs", "", "rw"), "fsync", ""},
		"another of FUSE":   {mount("fuse.sshfs", "", "rw"), "local", "local"},
		"an unknown one":    {mount("jfs", "", "rw"), "not known", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for strict, want := range map[bool]string{false: c.normal, true: c.strict} {
				risks := c.mount.Risks(strict)
				if want == "" {
					if len(risks) > 0 {
						t.Errorf("strict %v: got %q, want none", strict, risks)
					}
					continue
				}
				found := false
				for _, r := range risks {
					found = found || strings.Contains(r.Text, want) && r.Remedy != ""
				}
				if !found {
					t.Errorf("strict %v: got %q, want one about %s", strict, risks, want)
				}
			}
		})
	}
}

// refusing is a file system without RENAME_NOREPLACE.
type refusing struct {
	*OS
	err error
}

func (r refusing) RenameNew(from, to string) error {
	err := r.err
	if isNoFlag(err) {
		err = fmt.Errorf("%w: %w", ErrNoRenameNew, err)
	}
	return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
}

// Dur4: the probe finds the missing rename, leaves nothing behind, takes away what a killed
// process has left, and knows nothing where it cannot make a file.
func TestDur4ProbeTriesARealRename(t *testing.T) {
	dir := t.TempDir()
	o := assert.Get(NewOS(dir))(t)
	defer o.Close()
	left, young, other := probeName(), probeName(), ".probe.mine"
	for name, age := range map[string]time.Duration{left: time.Hour, young: 0, other: time.Hour} {
		file := filepath.Join(dir, name)
		at := time.Now().Add(-age)
		assert.Must(t, errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, at, at)))
	}
	for name, c := range map[string]struct {
		fs   FS
		dirs []string
		want error
	}{
		"a rename":            {o, []string{"."}, nil},
		"EINVAL":              {refusing{o, unix.EINVAL}, []string{"."}, ErrNoRenameNew},
		"ENOSYS":              {refusing{o, unix.ENOSYS}, []string{"."}, ErrNoRenameNew},
		"another error":       {refusing{o, unix.EIO}, []string{"."}, nil},
		"no such directory":   {refusing{o, unix.EINVAL}, []string{"none"}, nil},
		"the second of two":   {refusing{o, unix.EINVAL}, []string{"none", "."}, ErrNoRenameNew},
		"no directory at all": {refusing{o, unix.EINVAL}, nil, nil},
	} {
		if err := ProbeRename(c.fs, c.dirs...); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	list := assert.Get(o.ReadDir("."))(t)
	for _, e := range list {
		if e.Name != young && e.Name != other {
			t.Errorf("left: %s", e.Name)
		}
	}
	if len(list) != 2 || IsProbe(other) || !IsProbe(young) {
		t.Errorf("got %v", list)
	}
}
