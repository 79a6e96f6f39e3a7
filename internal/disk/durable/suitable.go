package durable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is the file system that a directory is on.
type Mount struct {
	Kind    string   // as mountinfo names it: ext4, fuse.glusterfs; "" if it is not known
	Source  string   // the device, or its substitute
	Point   string   // where it is mounted
	Options []string // of the mount and of the file system
	// Journal is "yes", "no", or "" where it is not known. It is found out for ext3 and ext4.
	Journal string
}

// String names the file system in a message.
func (m Mount) String() string {
	if m.Kind == "" {
		return "unknown file system"
	}
	return fmt.Sprintf("%s (%s on %s)", m.Kind, m.Source, m.Point)
}

// has reports whether the mount has one of some options.
func (m Mount) has(options ...string) bool {
	return slices.ContainsFunc(m.Options, func(o string) bool { return slices.Contains(options, o) })
}

// Risk is something that a file system does not promise, and what helps.
type Risk struct {
	Text   string // what may happen
	Remedy string
}

// MountOf finds the file system of a directory.
func MountOf(dir string) (Mount, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(dir, &st) }); err != nil {
		return Mount{}, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	full, err := filepath.Abs(dir)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return Mount{}, err
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Mount{}, err
	}
	m := findMount(text, deviceNumber(st.Dev), full)
	if m.Kind == "ext3" || m.Kind == "ext4" {
		m.Journal = journalOf("/sys/dev/block/"+deviceNumber(st.Dev), "/sys/fs/ext4")
	}
	return m, nil
}

// deviceNumber writes the number of a device as mountinfo has it.
func deviceNumber(dev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)) }

// findMount finds the last mount, proc(5), on which a path is: by the number of its device,
// or else by the path, since btrfs gives each subvolume a number that is not there. Without a path the first mount
// with the number is found.
func findMount(mountinfo []byte, number, full string) Mount {
	var byNumber, byPath Mount
	for line := range strings.Lines(string(mountinfo)) {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 6 || len(g) < 2 {
			continue
		}
		m := Mount{Kind: g[0], Source: unescape(g[1]), Point: unescape(f[4]), Options: strings.Split(f[5], ",")}
		if len(g) > 2 {
			m.Options = append(m.Options, strings.Split(g[2], ",")...)
		}
		inside := full != "" && (m.Point == full || strings.HasPrefix(full, strings.TrimSuffix(m.Point, "/")+"/"))
		if f[2] == number && (byNumber.Kind == "" || inside) {
			byNumber = m
		}
		if inside && len(m.Point) >= len(byPath.Point) {
			byPath = m
		}
	}
	if byNumber.Kind != "" {
		return byNumber
	}
	return byPath
}

// unescape replaces the octal escapes of proc(5).
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// journalOf reports whether an ext4 has a journal, by what sysfs says of its block device.
func journalOf(device, ext4 string) string {
	name, err := filepath.EvalSymlinks(device)
	if err != nil {
		return ""
	}
	task, err := os.ReadFile(filepath.Join(ext4, filepath.Base(name), "journal_task"))
	switch {
	case err != nil:
		return ""
	case strings.TrimSpace(string(task)) == "<none>":
		return "no"
	}
	return "yes"
}

// Risks returns what docs/durability.md holds against a file system. strict: directories are
// synced too.
func (m Mount) Risks(strict bool) []Risk {
	var list []Risk
	add := func(text, remedy string) { list = append(list, Risk{text, remedy}) }
	const lost = "a loss of power may lose accepted mail"
	const move = "move the postoffice to ext4 with a journal, xfs or btrfs"
	kind, of, _ := strings.Cut(m.Kind, ".")
	if of == "glusterfs" || of == "ceph" {
		kind = of
	}
	switch kind {
	case "":
	case "ext3", "ext4":
		if m.Journal == "no" {
			add("it has no journal: after a loss of power files may be without a name, or in lost+found", "give it one: umount it, tune2fs -O has_journal, e2fsck -f")
		}
		if m.has("data=writeback") {
			add("with data=writeback a loss of power may leave other users' deleted data in messages and specifications", "mount it with data=ordered")
		}
	case "xfs", "zfs":
	case "btrfs", "bcachefs":
	case "f2fs":
		if !strict && !m.has("fsync_mode=strict") {
			add(lost+": fsync of a file does not cover its name", "set SYNC=strict, or mount it with fsync_mode=strict")
		}
		if m.has("fsync_mode=nobarrier") {
			add(lost+": fsync_mode=nobarrier omits the flush of the drive's cache", "mount it with fsync_mode=posix or strict")
		}
	case "overlay":
		if m.has("volatile") || slices.ContainsFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, "fsync=volatile") }) {
			add(lost+": volatile omits every sync", "mount it without volatile")
		}
	case "tmpfs", "ramfs":
		add("everything in it is lost when the machine stops", move)
	case "ext2", "vfat", "msdos", "exfat", "minix", "hfsplus":
		add("it has no journal: after a loss of power files may be without a name, or in lost+found", move)
	case "glusterfs", "ceph", "nfs4":
		if !strict {
			add(lost+": fsync of a file need not cover its name there", "set SYNC=strict")
		}
		if m.has("soft", "softerr") {
			add("with soft a call fails while the server is away, and mail is deferred or refused for that", "mount it with hard")
		}
	case "nfs", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "fuse", "fuseblk", "lustre", "gfs2", "ocfs2":
		add("it is not local, or a program's: it has locks and an order of its own, on which nothing here was tested", move)
	default:
		if !strict {
			add(lost+": it is not known whether fsync of a file covers its name there", "set SYNC=strict")
		}
	}
	if m.has("nobarrier", "barrier=0", "barrier=none") {
		add(lost+": without barriers the drive's cache is not flushed", "mount it with barriers, unless the controller's cache has a battery")
	}
	return list
}

// Renames reports whether every version of a kind of file system has RENAME_NOREPLACE, in
// kernels that this program runs on.
func (m Mount) Renames() bool {
	return slices.Contains([]string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"}, m.Kind)
}

// probePrefix starts the names of ProbeRename.
const probePrefix = ".probe."

// probeAge is from when on a probe's file was left by a process that was killed.
const probeAge = time.Minute

// IsProbe reports whether a name is one that ProbeRename makes.
func IsProbe(name string) bool {
	rest, ok := strings.CutPrefix(name, probePrefix)
	_, err := hex.DecodeString(rest)
	return ok && err == nil && len(rest) == 32
}

// ProbeRename tries RenameNew with an empty file in the first of some directories in which a
// file can be made. ErrNoRenameNew: it cannot be done there. If no file can be made nothing
// is known, and it returns nil.
func ProbeRename(f FS, dirs ...string) error {
	for _, dir := range dirs {
		if err := TryRenameNew(f, dir); err == nil || errors.Is(err, ErrNoRenameNew) {
			return err
		}
	}
	return nil
}

// TryRenameNew is ProbeRename in one directory. An error that is not ErrNoRenameNew means that
// nothing is known.
func TryRenameNew(f FS, dir string) error {
	from, to := dir+"/"+probeName(), dir+"/"+probeName()
	from, to = strings.TrimPrefix(from, "./"), strings.TrimPrefix(to, "./")
	tidyProbes(f, dir)
	// Crash: an empty file, which the next probe removes.
	file, err := f.Open(from, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_ = file.Close() // nothing was written
	err = f.RenameNew(from, to)
	if err == nil {
		from = to
	}
	// Crash: as before.
	_ = f.Remove(from)
	return err
}

// ProbeLink tries what MoveNew does where there is no RenameNew, in the first of some
// directories in which a file can be made. If no file can be made nothing is known, and it
// returns nil.
func ProbeLink(f FS, dirs ...string) error {
	for _, dir := range dirs {
		from, to := strings.TrimPrefix(dir+"/"+probeName(), "./"), strings.TrimPrefix(dir+"/"+probeName(), "./")
		tidyProbes(f, dir)
		// Crash: an empty file, with one name or two, which the next probe removes.
		file, err := f.Open(from, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			continue
		}
		_ = file.Close() // nothing was written
		err = f.Link(from, to)
		if err == nil {
			err = checkLinked(f, from, to)
			// Crash: as before.
			_ = f.Remove(to)
		}
		// Crash: as before.
		_ = f.Remove(from)
		return err
	}
	return nil
}

func checkLinked(f FS, from, to string) error {
	a, err := f.Stat(from)
	if err != nil {
		return err
	}
	b, err := f.Stat(to)
	if err != nil {
		return err
	}
	if a.Ino != b.Ino || b.Nlink != 2 {
		return fmt.Errorf("%s and %s are one file, and have the inode numbers %d and %d and %d names", from, to, a.Ino, b.Ino, b.Nlink)
	}
	if err := f.Link(from, to); !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("link %s to %s, which is taken: got %w, want EEXIST", from, to, err)
	}
	return nil
}

// probeName returns a name that no one can know before.
func probeName() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return probePrefix + hex.EncodeToString(b[:])
}

// tidyProbes removes what killed processes have left.
func tidyProbes(f FS, dir string) {
	list, err := f.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range list {
		if !IsProbe(e.Name) {
			continue
		}
		name := strings.TrimPrefix(dir+"/"+e.Name, "./")
		if info, err := f.Stat(name); err == nil && info.Mode.IsRegular() && info.Size == 0 && time.Since(info.ModTime) > probeAge {
			_ = f.Remove(name)
		}
	}
}
