package agent

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// input is standard input. Where that is a pipe or a socket, as from a scheduler, it is
// read when it has something and no thread waits in read(2) for it: then the thread that
// takes a job goes on with it, and is not one that has to wake another.
func input() io.Reader {
	var st unix.Stat_t
	err := unix.Fstat(unix.Stdin, &st)
	if kind := st.Mode & unix.S_IFMT; err != nil || kind != unix.S_IFIFO && kind != unix.S_IFSOCK {
		return os.Stdin // a terminal is others', too
	}
	if unix.SetNonblock(unix.Stdin, true) != nil {
		return os.Stdin
	}
	return os.NewFile(uintptr(unix.Stdin), "/dev/stdin")
}
