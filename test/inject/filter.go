package inject

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

// making are the open(2) flags that change something. O_TMPFILE's own bit is in it.
const making = unix.O_CREAT | unix.O_TRUNC | (unix.O_TMPFILE &^ unix.O_DIRECTORY)

// program returns the filter: calls of the table go to the listener, everything else is
// executed at once. What is written to standard error is a log, no state.
func program() ([]unix.SockFilter, error) {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("no filter for %s", runtime.GOARCH)
	}
	notify := bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		allow,
		bpf.LoadAbsolute{Off: dataNumber, Size: 4},
	}
	for nr, c := range table() {
		var then []bpf.Instruction
		switch {
		case c.flags >= 0:
			then = []bpf.Instruction{
				// The low half of the argument: both machines are little-endian.
				bpf.LoadAbsolute{Off: dataArgs + 8*uint32(c.flags), Size: 4},
				bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: making, SkipTrue: 1},
				allow,
			}
		case c.log:
			then = []bpf.Instruction{
				bpf.LoadAbsolute{Off: dataArgs, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 2, SkipTrue: 1},
				allow,
			}
		}
		then = append(then, notify)
		code = append(code, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(nr), SkipTrue: uint8(len(then))})
		code = append(code, then...)
	}
	raw, err := bpf.Assemble(append(code, allow))
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, nil
}

// install puts the filter on the calling thread and returns its listener. A signal
// does not take a thread out of a call that the listener has already received
// (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19).
func install() (int, error) {
	filter, err := program()
	if err != nil {
		return -1, err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if e != 0 {
		return -1, fmt.Errorf("install a seccomp filter: %w", e)
	}
	return int(fd), nil
}

// seccomp is seccomp(2) with an argument of one word.
func seccomp(op, flags uintptr, arg *uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, op, flags, uintptr(unsafe.Pointer(arg))); e != 0 {
		return e
	}
	return nil
}
