package main

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// callName returns a system call's name.
func callName(n int) string {
	if name := names[n]; name != "" {
		return name
	}
	if name := legacy()[n]; name != "" {
		return name
	}
	return "call " + strconv.Itoa(n)
}

// names has what Go programs call; others are shown by number.
var names = map[int]string{
	-1:               "rt_sigreturn", // it leaves no number behind
	unix.SYS_ACCEPT4: "accept4", unix.SYS_BIND: "bind", unix.SYS_BRK: "brk", unix.SYS_CLOCK_GETTIME: "clock_gettime",
	unix.SYS_CLOCK_NANOSLEEP: "clock_nanosleep", unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_CLOSE: "close",
	unix.SYS_CONNECT: "connect", unix.SYS_COPY_FILE_RANGE: "copy_file_range", unix.SYS_EPOLL_CREATE1: "epoll_create1",
	unix.SYS_EPOLL_CTL: "epoll_ctl", unix.SYS_EPOLL_PWAIT: "epoll_pwait", unix.SYS_EVENTFD2: "eventfd2", unix.SYS_EXECVE: "execve",
	unix.SYS_FACCESSAT: "faccessat", unix.SYS_FALLOCATE: "fallocate", unix.SYS_FCHDIR: "fchdir", unix.SYS_FCHMOD: "fchmod",
	unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHOWN: "fchown", unix.SYS_FCNTL: "fcntl", unix.SYS_FDATASYNC: "fdatasync",
	unix.SYS_FLOCK: "flock", unix.SYS_FSTAT: "fstat", unix.SYS_FSTATFS: "fstatfs", unix.SYS_FSYNC: "fsync",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FUTEX: "futex", unix.SYS_GETDENTS64: "getdents64", unix.SYS_GETPEERNAME: "getpeername",
	unix.SYS_GETPID: "getpid", unix.SYS_GETRANDOM: "getrandom", unix.SYS_GETSOCKNAME: "getsockname", unix.SYS_GETSOCKOPT: "getsockopt",
	unix.SYS_GETTID: "gettid", unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch", unix.SYS_INOTIFY_RM_WATCH: "inotify_rm_watch",
	unix.SYS_IO_URING_ENTER: "io_uring_enter", unix.SYS_IOCTL: "ioctl", unix.SYS_LINKAT: "linkat", unix.SYS_LISTEN: "listen", unix.SYS_LSEEK: "lseek",
	unix.SYS_MADVISE: "madvise", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_MMAP: "mmap", unix.SYS_MPROTECT: "mprotect", unix.SYS_MUNMAP: "munmap",
	unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_OPENAT: "openat", unix.SYS_PIPE2: "pipe2", unix.SYS_PPOLL: "ppoll", unix.SYS_PREAD64: "pread64",
	unix.SYS_PREADV: "preadv", unix.SYS_PWRITE64: "pwrite64", unix.SYS_PWRITEV: "pwritev", unix.SYS_READ: "read", unix.SYS_READLINKAT: "readlinkat",
	unix.SYS_READV: "readv", unix.SYS_RECVFROM: "recvfrom", unix.SYS_RECVMSG: "recvmsg", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_RESTART_SYSCALL: "restart_syscall", unix.SYS_RT_SIGACTION: "rt_sigaction", unix.SYS_RT_SIGPROCMASK: "rt_sigprocmask",
	unix.SYS_RT_SIGRETURN: "rt_sigreturn", unix.SYS_SCHED_YIELD: "sched_yield", unix.SYS_SENDFILE: "sendfile", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_SENDTO: "sendto", unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_SHUTDOWN: "shutdown", unix.SYS_SIGALTSTACK: "sigaltstack",
	unix.SYS_SOCKET: "socket", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_SPLICE: "splice", unix.SYS_STATX: "statx",
	unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_SYNC_FILE_RANGE: "sync_file_range", unix.SYS_TGKILL: "tgkill", unix.SYS_TIMERFD_SETTIME: "timerfd_settime",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_UTIMENSAT: "utimensat", unix.SYS_WAIT4: "wait4", unix.SYS_WAITID: "waitid", unix.SYS_WRITE: "write",
	unix.SYS_WRITEV: "writev",
}
