package blockdev

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FileSystem is a kind of file system and how it is mounted.
type FileSystem struct {
	Name    string // as a test shows it
	Type    string // mount(2)
	Options string // mount(2)
	Size    int64  // of the disk in bytes
	Mkfs    []string
}

// FileSystems returns those that docs/durability.md promises something about, and
// data=writeback without what hides its blocks on newer kernels, which shows other files'
// text. The journals are small, so that they go round.
func FileSystems() []FileSystem {
	ext4 := []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-N", "8192", "-J", "size=8", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"}
	return []FileSystem{
		{"ext4", "ext4", "data=ordered", 128 << 20, ext4},
		{"ext4-journal", "ext4", "data=journal", 128 << 20, ext4},
		{"ext4-writeback", "ext4", "data=writeback,nodelalloc,dioread_lock", 128 << 20, ext4},
		{"xfs", "xfs", "", 320 << 20, []string{"mkfs.xfs", "-q", "-f", "-K"}},
	}
}

// attach makes a loop device of a file. The kernel removes it when nothing has it open or
// mounted any more.
func attach(image string) (*os.File, error) {
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the device has its own reference
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: sector}
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(config.Info.File_name[:], image)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) { // another program took it first
			return nil, fmt.Errorf("attach %s to a loop device: %w", image, err)
		}
	}
}

// Make makes the file system in an image.
func (f FileSystem) Make(image string) error {
	device, err := attach(image)
	if err != nil {
		return err
	}
	defer device.Close()
	args := append(f.Mkfs[1:len(f.Mkfs):len(f.Mkfs)], device.Name())
	if out, err := exec.Command(f.Mkfs[0], args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(f.Mkfs, " "), err, out)
	}
	return nil
}

// Mount mounts an image; the kernel replays the journal.
func (f FileSystem) Mount(image, dir string) error {
	device, err := attach(image)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := unix.Mount(device.Name(), dir, f.Type, unix.MS_NOATIME, f.Options); err != nil {
		return fmt.Errorf("mount %s of %s: %w", f.Name, image, err)
	}
	return nil
}

// Unmount unmounts what is mounted at a directory. Processes that were killed may not
// have closed their files yet.
func Unmount(dir string, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		err := unix.Unmount(dir, 0)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			if err != nil {
				err = fmt.Errorf("unmount %s: %w", dir, err)
			}
			return err
		}
		time.Sleep(time.Millisecond) // the end of a process's files has no event
	}
}

// Sync writes all of a mounted file system to its disk, and returns when it was flushed.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
