// Package disk runs the mail system on a file system of the kernel, above a disk that
// logs, fails and loses power (blockdev), and compares from outside what became of the
// mail: with what submitters and the sink saw, with mailboxes and with the files of the
// postoffice. It never asks the product's own ledger.
//
// A Site is a mail system on such a disk. A Run is the log of a site under load; it
// judges images, which are the disk as a loss of power leaves it. Everything happens in
// namespaces of its own for mounts and processes (Isolated): when the test ends, however
// it ends, the kernel ends the processes, unmounts the file systems and detaches the
// loop devices. What may survive is an empty directory, which the next run removes.
package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is the variable that is set for a program in its own namespaces. Its
// value is the directory to work in.
const inside = "DISK_TEST_DIRECTORY"

// pattern is what directories of this package are named.
const pattern = "zmailer-disk-*"

// Missing is why nothing can be tried here; "" if it can.
func Missing() string {
	if os.Geteuid() != 0 {
		return "only root mounts file systems"
	}
	for _, name := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(name); err != nil {
			return err.Error()
		}
	}
	for _, program := range []string{"mkfs.ext4", "mkfs.xfs", "dumpe2fs"} {
		if _, err := exec.LookPath(program); err != nil {
			return err.Error() + "; it is in e2fsprogs or xfsprogs"
		}
	}
	return ""
}

// Isolated calls run in namespaces of its own, with a directory on a tmpfs, and returns
// its exit code. The program is started once more for it, with the same arguments.
// Where Missing gives a reason run is called with "".
func Isolated(run func(dir string) int) int {
	if dir := os.Getenv(inside); dir != "" {
		if err := settle(dir); err != nil {
			fmt.Fprintln(os.Stderr, "disk:", err)
			return 1
		}
		return run(dir)
	}
	if Missing() != "" {
		return run("")
	}
	code, err := again()
	if err != nil {
		fmt.Fprintln(os.Stderr, "disk:", err)
	}
	return code
}

// settle prepares the namespaces that this process is the first of.
func settle(dir string) error {
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		unix.Mount(inside, dir, "tmpfs", 0, "mode=0755"))
}

// again starts this program in new namespaces, which end with it.
func again() (code int, err error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), pattern))
	if err != nil {
		return 1, err
	}
	for _, name := range old {
		_ = os.Remove(name) // one that is in use is a mount point and stays
	}
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return 1, err
	}
	defer os.Remove(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return 1, err
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	// The kernel kills the child when this thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	exit := (*exec.ExitError)(nil)
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
