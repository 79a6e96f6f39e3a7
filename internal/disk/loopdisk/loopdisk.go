// Package loopdisk mounts file systems that live in a file, for tests that ask a real kernel
// what is on a disk. It needs root, loop devices and the mkfs programs; a test that lacks
// one of them is skipped with the reason.
//
// It owns the image and the mount point, both in the test's temporary directory. Nothing
// survives the test.
//
// Diagnostics: what fails ends the test, with the output of the program that failed.
package loopdisk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Image is a file system in a file.
type Image struct {
	// Dir is where it is mounted.
	Dir  string
	file string
	// mounted is set between Mount and Unmount.
	mounted bool
}

// New makes an image of so many bytes with a mkfs program, as "mkfs.ext4 -q -O ^has_journal".
// It is not mounted.
func New(t testing.TB, size int64, mkfs string) *Image {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts file systems")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("no loop devices: ", err)
	}
	words := strings.Fields(mkfs)
	need(t, words[0], "mount", "umount")
	dir := t.TempDir()
	i := &Image{Dir: filepath.Join(dir, "disk"), file: filepath.Join(dir, "image")}
	if err := os.Mkdir(i.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(i.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, "", append(words, i.file)...)
	return i
}

// need skips the test where a program is missing.
func need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("not installed: ", p)
		}
	}
}

// run runs a program and returns its output.
func run(t testing.TB, input string, words ...string) string {
	t.Helper()
	c := exec.Command(words[0], words[1:]...)
	c.Stdin = strings.NewReader(input)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

// Mount mounts the image until Unmount or the end of the test. The test is skipped where the
// kernel has no such file system or may not mount.
func (i *Image) Mount(t testing.TB, options string) {
	t.Helper()
	all := "loop"
	if options != "" {
		all += "," + options
	}
	out, err := exec.Command("mount", "-o", all, i.file, i.Dir).CombinedOutput()
	if err != nil {
		text := string(out)
		if strings.Contains(text, "unknown filesystem type") || strings.Contains(text, "permission denied") ||
			strings.Contains(options, "quota") && strings.Contains(text, "wrong fs type") { // a kernel without CONFIG_QFMT_V2
			t.Skipf("mount -o %s: %s", all, text)
		}
		t.Fatalf("mount -o %s: %v\n%s", all, err, text)
	}
	if !i.mounted {
		t.Cleanup(func() {
			if i.mounted {
				// What still has a file open must not keep the loop device.
				_ = unix.Unmount(i.Dir, unix.MNT_DETACH)
			}
		})
	}
	i.mounted = true
}

// Unmount writes everything to the image.
func (i *Image) Unmount(t testing.TB) {
	t.Helper()
	run(t, "", "umount", i.Dir)
	i.mounted = false
}

// goingDown is EXT4_IOC_SHUTDOWN of linux/fs/ext4/ext4.h, _IOR('X', 125, __u32), which xfs
// has too.
const goingDown = 0x8004587d

// Shutdown stops the file system as a loss of power does: what has not reached the journal
// is lost. It is still to be unmounted.
func (i *Image) Shutdown(t testing.TB) {
	t.Helper()
	fd, err := unix.Open(i.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const noLogFlush = 2
	if err := unix.IoctlSetPointerInt(fd, goingDown, noLogFlush); err != nil {
		t.Skip("this kernel's file system cannot be shut down: ", err)
	}
}

// Damaged returns a mounted ext4 on which names can be made and every allocation of a block
// fails: the only blocks that its bitmap calls free belong to its own inode table. With
// delayed allocation a write succeeds and the write-back fails. prepare fills the file
// system before it is damaged.
func Damaged(t testing.TB, prepare func(dir string)) *Image {
	t.Helper()
	need(t, "debugfs", "dumpe2fs")
	// Many inodes make a large inode table in one group of blocks.
	i := New(t, 32<<20, "mkfs.ext4 -q -F -b 4096 -I 256 -O ^resize_inode -E lazy_itable_init=0,lazy_journal_init=0 -N 32768")
	i.Mount(t, "")
	prepare(i.Dir)
	i.Unmount(t)
	group := run(t, "", "dumpe2fs", i.file)
	group = group[strings.Index(group, "\nGroup 0:")+1:]
	m := regexp.MustCompile(`Inode table at (\d+)-(\d+)`).FindStringSubmatch(group)
	free := regexp.MustCompile(`(?m)^  Free blocks: (.*)$`).FindStringSubmatch(group)
	if m == nil || free == nil {
		t.Fatalf("dumpe2fs describes the group in another way:\n%s", group)
	}
	var script strings.Builder
	for _, part := range strings.Split(free[1], ", ") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		fmt.Fprintf(&script, "setb %s %d\n", first, number(t, last)-number(t, first)+1)
	}
	// The table's first quarter has the inodes that are in use.
	begin := (3*number(t, m[1]) + number(t, m[2])) / 4
	blocks := number(t, m[2]) - begin + 1
	fmt.Fprintf(&script, "freeb %d %d\nssv free_blocks_count %d\nset_bg 0 free_blocks_count %d\nset_bg 0 checksum calc\n",
		begin, blocks, blocks, blocks)
	run(t, script.String(), "debugfs", "-w", "-f", "-", i.file)
	i.Mount(t, "errors=continue")
	return i
}

func number(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
