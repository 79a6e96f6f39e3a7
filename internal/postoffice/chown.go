package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ChangeOwner makes the user of the daemons the owner of the postoffice in a directory, as root: its
// directories and what the daemons write. A message file keeps its owner, who is its
// submitter, and opens itself to the daemons' group. What is given already stays.
//
// Crash: some is given, some not; the daemons do not start, and the next ChangeOwner goes on. A
// directory is given when all that is in it is.
func ChangeOwner(dir string, uid, gid int) error {
	return changeOwner(dir, uid, gid, func() error { return nil })
}

func changeOwner(dir string, uid, gid int, step func() error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("change the owner of the postoffice: %w", err)
	}
	defer root.Close()
	g := ownerChange{root: root, uid: uid, gid: gid, step: step}
	if _, err := root.Lstat(Router0); err == nil {
		g.inbox = true
	}
	if info, err := root.Lstat("."); err == nil {
		st, ok := info.Sys().(*syscall.Stat_t)
		g.given = ok && st.Uid != 0
	}
	if err = fs.WalkDir(root.FS(), ".", g.visit); err == nil {
		err = g.changeDirs()
	}
	if err != nil {
		return fmt.Errorf("change the owner of the postoffice: %w", err)
	}
	return nil
}

type ownerChange struct {
	root     *os.Root
	uid, gid int
	inbox    bool         // router/ is open to users
	given    bool         // the top is not root's: its owner may put names everywhere
	dirs     []string     // that are to be given, outer before inner
	step     func() error // called before each change; tests stop there
}

// linked reports whether a name may be one that somebody else has given to a file of root's.
func (g *ownerChange) linked(name string) bool { return g.given || open(name) }

// open reports whether everybody may put names where a name is.
func open(name string) bool {
	top, _, below := strings.Cut(name, "/")
	return below && (top == Public || top == Router || IsRouterDir(top))
}

// visit gives a file away, and notes a directory.
func (g *ownerChange) visit(name string, d fs.DirEntry, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // it was moved on meanwhile
	case err != nil || name == ".":
		return err
	case d.IsDir() && open(name):
		return fs.SkipDir // a user's: no message of ours is in there
	case d.IsDir():
		return g.visitDir(name)
	case d.Type()&fs.ModeSocket != 0 && !g.linked(name): // ListenSocket gives the others
		if err := g.step(); err != nil {
			return err
		}
		// Crash: root's socket, whose directory is not given; the next ChangeOwner gives it.
		return ignoreGone(g.root.Lchown(name, g.uid, g.gid))
	case !d.Type().IsRegular():
		return nil // no one's of ours
	}
	// Everybody may put names into public/ and router/: what they lead to is looked at, and
	// held while it is given. A link out of the postoffice is not followed.
	f, err := g.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	return g.changeFile(name, f)
}

// visitDir passes over a directory that is given: what its owner has put there since, like
// links to files of root's, is his affair.
func (g *ownerChange) visitDir(name string) error {
	info, err := g.root.Lstat(name)
	if err != nil {
		return ignoreGone(err)
	}
	shared := name == Public || name == Router || IsRouterDir(name)
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == g.uid && !shared {
		return fs.SkipDir
	}
	g.dirs = append(g.dirs, name)
	return nil
}

// changeDirs gives the directories, inner ones first, and the top last: by it the daemons
// know that all of it is theirs.
func (g *ownerChange) changeDirs() error {
	top, err := g.root.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	// Crash: on the disk no directory must be theirs before what is in it.
	if err := unix.Syncfs(int(top.Fd())); err != nil {
		return &fs.PathError{Op: "sync", Path: g.root.Name(), Err: err}
	}
	for _, name := range slices.Backward(g.dirs) {
		if err := g.changeDir(name); err != nil {
			return err
		}
	}
	return g.changeDir(".")
}

func (g *ownerChange) changeFile(name string, f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG, g.linked(name) && st.Nlink != 1:
		return nil // a link in there may lead anywhere
	case st.Mode&0o100 != 0: // a message
		// Crash: a message of the submitter's group, to which no one but he and root get. Its
		// directory is not given, so the next ChangeOwner comes to it again.
		if err := g.chown(f, -1, g.gid); err != nil {
			return err
		}
		// Crash: of the daemons' group, and closed to it; as before.
		mode := fs.FileMode(0o760)
		if st.Mode&unix.S_ISVTX != 0 {
			mode |= mark
		}
		return g.chmod(f, mode)
	case st.Uid != 0 || open(name) && !strings.HasPrefix(filepath.Base(name), "."):
		return nil // a submitter's draft, or given already
	}
	// Crash: root's, in a directory that is not given; the next ChangeOwner gives it.
	return g.chown(f, g.uid, g.gid)
}

func (g *ownerChange) chown(f *os.File, uid, gid int) error {
	if err := g.step(); err != nil {
		return err
	}
	return f.Chown(uid, gid)
}

func (g *ownerChange) chmod(f *os.File, mode fs.FileMode) error {
	if err := g.step(); err != nil {
		return err
	}
	return f.Chmod(mode)
}

func (g *ownerChange) changeDir(name string) error {
	f, err := g.root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	// Crash: root's, with all in it given. The top is root's, too: no daemon starts, and the
	// next ChangeOwner gives the rest.
	if err := g.chown(f, g.uid, g.gid); err != nil {
		return err
	}
	mode, _, _ := Mode(name)
	switch {
	case name == Router && g.inbox:
		mode = modeOfInbox
	case name != Public:
		return nil
	}
	// What anybody submits gets the group of the daemons.
	// Crash: public/ is theirs and gives no group yet. The top is root's; the next ChangeOwner
	// looks at public/ again.
	return g.chmod(f, mode|fs.ModeSetgid)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
