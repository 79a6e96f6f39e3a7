package inject

import "golang.org/x/sys/unix"

// shape is how one system call names what it changes: by indices of arguments.
type shape struct {
	name  string
	fd    int      // a descriptor, -1: none
	names [][2]int // directory (-1: the working directory) and path; two of a rename
	flags int      // of open(2), -1: none; without O_CREAT and the like it changes nothing
	bytes content
	at    int  // with buffer, vector or message: its address; its length follows
	log   bool // descriptor 2 is left out
}

// content is where a writing call has its bytes.
type content int

const (
	nothing content = iota
	buffer          // address and length
	vector          // struct iovec and their number
	message         // struct msghdr
)

func onFD(name string) shape { return shape{name: name, fd: 0, flags: -1} }

func onName(name string, names ...[2]int) shape {
	return shape{name: name, fd: -1, names: names, flags: -1}
}

func writing(name string, kind content) shape {
	return shape{name: name, fd: 0, flags: -1, bytes: kind, at: 1, log: true}
}

// into copies between descriptors; the one that is written is an argument.
func into(name string, fd int) shape { return shape{name: name, fd: fd, flags: -1} }

// table is every call that changes a file, a name or what another process sees, by
// number. A flock changes no file, but claims an owner number or a copy; see Ignored.
func table() map[int]shape {
	list := map[int]shape{
		unix.SYS_OPENAT:          {name: "openat", fd: -1, names: [][2]int{{0, 1}}, flags: 2},
		unix.SYS_WRITE:           writing("write", buffer),
		unix.SYS_PWRITE64:        writing("pwrite64", buffer),
		unix.SYS_WRITEV:          writing("writev", vector),
		unix.SYS_PWRITEV:         writing("pwritev", vector),
		unix.SYS_SENDTO:          writing("sendto", buffer),
		unix.SYS_SENDMSG:         writing("sendmsg", message),
		unix.SYS_SENDFILE:        into("sendfile", 0),
		unix.SYS_SPLICE:          into("splice", 2),
		unix.SYS_COPY_FILE_RANGE: into("copy_file_range", 2),
		unix.SYS_FSYNC:           onFD("fsync"),
		unix.SYS_FDATASYNC:       onFD("fdatasync"),
		unix.SYS_SYNC_FILE_RANGE: onFD("sync_file_range"),
		unix.SYS_FTRUNCATE:       onFD("ftruncate"),
		unix.SYS_FALLOCATE:       onFD("fallocate"),
		unix.SYS_FCHMOD:          onFD("fchmod"),
		unix.SYS_FCHOWN:          onFD("fchown"),
		unix.SYS_FLOCK:           onFD("flock"),
		unix.SYS_TRUNCATE:        onName("truncate", [2]int{-1, 0}),
		unix.SYS_RENAMEAT2:       onName("renameat2", [2]int{0, 1}, [2]int{2, 3}),
		unix.SYS_RENAMEAT:        onName("renameat", [2]int{0, 1}, [2]int{2, 3}),
		unix.SYS_LINKAT:          onName("linkat", [2]int{0, 1}, [2]int{2, 3}),
		unix.SYS_SYMLINKAT:       onName("symlinkat", [2]int{1, 2}),
		unix.SYS_UNLINKAT:        onName("unlinkat", [2]int{0, 1}),
		unix.SYS_MKDIRAT:         onName("mkdirat", [2]int{0, 1}),
		unix.SYS_MKNODAT:         onName("mknodat", [2]int{0, 1}),
		unix.SYS_FCHMODAT:        onName("fchmodat", [2]int{0, 1}),
		unix.SYS_FCHMODAT2:       onName("fchmodat2", [2]int{0, 1}),
		unix.SYS_FCHOWNAT:        onName("fchownat", [2]int{0, 1}),
		unix.SYS_UTIMENSAT:       onName("utimensat", [2]int{0, 1}),
	}
	for nr, c := range legacy() {
		list[nr] = c
	}
	return list
}

// Traced returns the list of the table's calls as strace's trace= wants it.
func Traced() []string {
	var names []string
	for _, c := range table() {
		names = append(names, c.name)
	}
	return names
}
