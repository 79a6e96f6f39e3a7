package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// insideEnv is set in the process that a script is run by: it names the root.
const insideEnv = "INSTALL_TEST_ROOT"

// mirror is where a fresh root comes from.
const mirror = "http://deb.debian.org/debian"

// extra is what a machine has beside a minimal Debian.
const extra = "systemd,systemd-sysv,dbus,iproute2,procps,ca-certificates"

// base is a fresh Debian, made once for all tests.
var base struct {
	once sync.Once
	dir  string
	none string // why there is none
}

// machinesEnv is 1 where whole Debian systems are to be made.
const machinesEnv = "MACHINES"

// freshRoot returns a fresh Debian system. INSTALL_TEST_TARBALL may name one that is packed,
// so that the tests do not wait for the network; it is made if it is not there.
func freshRoot(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: a root of its own needs root")
	}
	if os.Getenv(machinesEnv) != "1" {
		t.Skip("skipped: whole systems take minutes; make machines runs them")
	}
	base.once.Do(func() { base.dir, base.none = makeBase() })
	if base.none != "" {
		t.Skip("skipped: " + base.none)
	}
	// Within bin it goes with it when the tests are interrupted.
	dir := assert.Get(os.MkdirTemp(bin, "machine-"))(t)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	root := filepath.Join(dir, "root")
	run(t, "cp", "--archive", "--reflink=auto", base.dir, root)
	return root
}

// apart runs a program in namespaces of its own: what it mounts is mounted there alone, and it,
// all that it has started and all mounts end with it, or with this process.
func apart(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `mount --make-rprivate / && mount -t proc proc /proc && "$@"`, "sh"}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func makeBase() (dir, none string) {
	dir = filepath.Join(bin, "base")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err.Error()
	}
	tarball := os.Getenv("INSTALL_TEST_TARBALL")
	if tarball != "" {
		if _, err := os.Stat(tarball); err == nil {
			if out, err := exec.Command("tar", "-C", dir, "-xpf", tarball).CombinedOutput(); err != nil {
				return "", fmt.Sprintf("unpack %s: %v: %s", tarball, err, out)
			}
			return dir, ""
		}
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return "", "debootstrap is not here"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := apart(ctx, "debootstrap", "--variant=minbase", "--include="+extra, "stable", dir, mirror).CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Sprintf("debootstrap cannot make a root: %v: %s", err, lines[len(lines)-1])
	}
	if tarball != "" {
		if out, err := exec.Command("tar", "-C", dir, "-cpf", tarball, ".").CombinedOutput(); err != nil {
			return "", fmt.Sprintf("pack %s: %v: %s", tarball, err, out)
		}
	}
	return dir, ""
}

// within runs a script of testdata in the root, with a network and processes of its own:
// what it leaves running ends with it.
func within(t *testing.T, root, script string, args ...string) string {
	t.Helper()
	text := ". /common.sh\n" + read(t, filepath.Join("testdata", script))
	self, err := os.Executable()
	assert.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, append([]string{"-c", text, script}, args...)...)
	cmd.Env = []string{insideEnv + "=" + root, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		t.Skip("skipped: this machine gives no namespaces")
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	t.Logf("%s\n%s", script, out)
	return string(out)
}

// inside is the first process of a root's namespaces: it has /proc and a loopback
// interface made and becomes the shell.
func inside() {
	root := os.Getenv(insideEnv)
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""),
		loopback(), unix.Sethostname([]byte("mail.example.org")),
		unix.Chroot(root), unix.Chdir("/"))
	if err == nil {
		err = unix.Exec("/bin/sh", append([]string{"sh"}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "enter the root:", err)
	os.Exit(1)
}

// loopback brings the interface lo up.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}
