package disk

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// withoutSyncs is the variable that makes this program install a filter and become
// the program that its arguments name.
const withoutSyncs = "DISK_TEST_WITHOUT_SYNCS"

// Main returns at once in a program that was started as usual. Started by
// StartWithoutSyncs it becomes the other program and does not return.
func Main() {
	if os.Getenv(withoutSyncs) == "" {
		return
	}
	err := becomeWithoutSyncs()
	fmt.Fprintln(os.Stderr, "disk:", err)
	os.Exit(127)
}

// StartWithoutSyncs starts a program for which, and for whose children, every call that
// waits for the disk returns 0 and does nothing.
func StartWithoutSyncs(cmd *exec.Cmd) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(slices.Clone(cmd.Env), withoutSyncs+"=yes")
	cmd.Args = append([]string{self, cmd.Path}, cmd.Args...)
	cmd.Path = self
	return cmd.Start()
}

// becomeWithoutSyncs is given the program's path and its arguments, beginning with argv[0].
func becomeWithoutSyncs() error {
	if len(os.Args) < 3 {
		return fmt.Errorf("%s: started without a program", withoutSyncs)
	}
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no filter for %s", runtime.GOARCH)
	}
	// Offsets in struct seccomp_data (linux/seccomp.h): nr 0, arch 4. An errno of 0 is
	// success without the call.
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		allow,
		bpf.LoadAbsolute{Off: 0, Size: 4},
	}
	for _, nr := range []uint32{unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_SYNCFS, unix.SYS_SYNC, unix.SYS_MSYNC} {
		code = append(code,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO})
	}
	raw, err := bpf.Assemble(append(code, allow))
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// This thread keeps the filter through execve(2); the others end there.
	runtime.LockOSThread()
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if e != 0 {
		return fmt.Errorf("install a seccomp filter: %w", e)
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, withoutSyncs+"=") })
	return fmt.Errorf("execute %s: %w", os.Args[1], syscall.Exec(os.Args[1], os.Args[2:], env))
}
