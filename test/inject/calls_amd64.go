package inject

import "golang.org/x/sys/unix"

// legacy returns the calls without a directory, which younger machines do not have.
func legacy() map[int]shape {
	return map[int]shape{
		unix.SYS_OPEN:    {name: "open", fd: -1, names: [][2]int{{-1, 0}}, flags: 1},
		unix.SYS_CREAT:   onName("creat", [2]int{-1, 0}),
		unix.SYS_RENAME:  onName("rename", [2]int{-1, 0}, [2]int{-1, 1}),
		unix.SYS_LINK:    onName("link", [2]int{-1, 0}, [2]int{-1, 1}),
		unix.SYS_SYMLINK: onName("symlink", [2]int{-1, 1}),
		unix.SYS_UNLINK:  onName("unlink", [2]int{-1, 0}),
		unix.SYS_RMDIR:   onName("rmdir", [2]int{-1, 0}),
		unix.SYS_MKDIR:   onName("mkdir", [2]int{-1, 0}),
		unix.SYS_MKNOD:   onName("mknod", [2]int{-1, 0}),
		unix.SYS_CHMOD:   onName("chmod", [2]int{-1, 0}),
		unix.SYS_CHOWN:   onName("chown", [2]int{-1, 0}),
		unix.SYS_UTIMES:  onName("utimes", [2]int{-1, 0}),
	}
}
