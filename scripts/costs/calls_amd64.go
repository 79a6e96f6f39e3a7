package main

import "golang.org/x/sys/unix"

// legacy has calls that newer architectures have not, or by another name.
func legacy() map[int]string {
	return map[int]string{
		unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_OPEN: "open", unix.SYS_RENAME: "rename", unix.SYS_LINK: "link",
		unix.SYS_UNLINK: "unlink", unix.SYS_STAT: "stat", unix.SYS_LSTAT: "lstat", unix.SYS_CHMOD: "chmod", unix.SYS_MKDIR: "mkdir",
		unix.SYS_POLL: "poll", unix.SYS_EPOLL_WAIT: "epoll_wait", unix.SYS_DUP2: "dup2", unix.SYS_ACCESS: "access", unix.SYS_PIPE: "pipe",
	}
}
