package closed

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Policy selects the files that are opened. It is what stands between a router that somebody has
// taken over and the secrets of users, so it goes by the files and by what the administrator
// has set, not by the purpose that the router claims.
type Policy struct {
	Lowest  uint32 // the first uid of people; those below are of the system's parts
	Forward string // where users have their own aliases, FORWARD
}

// Accounts of people have no uid from here to the user nobody's: systemd gives these to
// services while they run.
const firstPassing, nobody = 61184, 65534

// LowestUser is UID_MIN of a file like /etc/login.defs.
func LowestUser(defs string) uint32 {
	const usual = 1000
	f, err := os.Open(defs)
	if err != nil {
		return usual
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if w := strings.Fields(lines.Text()); len(w) == 2 && w[0] == "UID_MIN" {
			if n, err := strconv.ParseUint(w[1], 0, 32); err == nil && n > 0 {
				return uint32(n)
			}
		}
	}
	return usual
}

// open opens a regular file for reading: one that has the name of a user's .forward, of any
// user but root; of people also others, but none that is hidden, as keys and passwords are.
func (p Policy) open(path string) (fd int, err error) {
	fd, err = openPath(path, 0)
	if err != nil {
		return -1, err
	}
	// A device might do something when it is opened.
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid == 0 {
		return -1, syscall.EACCES
	}
	same := "/proc/self/fd/" + strconv.Itoa(fd)
	if !p.isForward(path, st.Uid) && !p.isPlain(same, st.Uid) {
		return -1, syscall.EACCES
	}
	return unix.Open(same, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
}

// isForward reports whether a name is one that users have for their own aliases, or begins so.
// It may be a link: then only root and the file's owner can have put it there.
func (p Policy) isForward(path string, owner uint32) bool {
	if !p.named(path) {
		return false
	}
	fd, err := openPath(filepath.Dir(path), 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&0o022 == 0 && (st.Uid == 0 || st.Uid == owner)
}

func (p Policy) named(path string) bool {
	if rest, ok := strings.CutPrefix(p.Forward, "~"); ok {
		return matches(filepath.Base(rest), filepath.Base(path))
	}
	return p.Forward != "" && matches(p.Forward, path)
}

// matches compares a name with a pattern in which %u is a login.
func matches(template, name string) bool {
	quoted := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `%u`, `*`).Replace(template)
	ok, err := filepath.Match(quoted+"*", name)
	return ok && err == nil
}

// isPlain reports whether a file is of a user's account, is not hidden, and in no hidden
// directory, whatever links lead to it. same is its name in /proc.
func (p Policy) isPlain(same string, owner uint32) bool {
	if owner < p.Lowest || owner >= firstPassing && owner <= nobody {
		return false
	}
	real, err := os.Readlink(same)
	return err == nil && filepath.IsAbs(real) && !strings.Contains(real, "/.")
}
