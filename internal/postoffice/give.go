package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/durable"
)

// Give gives the postoffice in a directory to the user of the daemons, as root: its
// directories and what the daemons write. A message file keeps its owner, who is its
// submitter, and opens itself to the daemons' group. What is given already stays.
//
// Crash: some is given, some not; the daemons do not start, and the next Give goes on.
func Give(dir string, uid, gid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("give the postoffice away: %w", err)
	}
	defer root.Close()
	g := giver{root: root, uid: uid, gid: gid}
	// The top comes last: by it the daemons know that all of it is theirs.
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was moved on meanwhile
		}
		if err != nil || name == "." {
			return err
		}
		return g.give(name, d)
	})
	if err == nil {
		err = g.giveDir(".")
	}
	if err != nil {
		return fmt.Errorf("give the postoffice away: %w", err)
	}
	return nil
}

type giver struct {
	root     *os.Root
	uid, gid int
}

// give gives one name away.
func (g *giver) give(name string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		return g.giveDir(name)
	case d.Type()&fs.ModeSocket != 0:
		return ignoreGone(g.root.Lchown(name, g.uid, g.gid))
	case !d.Type().IsRegular():
		return nil // nobody's of ours
	}
	// Everybody may put names into public/ and router/: what they lead to is looked at, and
	// held while it is given.
	f, err := g.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer f.Close()
	return g.giveFile(name, f)
}

func (g *giver) giveFile(name string, f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	top, _, _ := strings.Cut(name, "/")
	open := top == Public || IsRouterDir(top) || top == Router
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG, open && st.Nlink != 1:
		return nil // a link in there may lead anywhere
	case st.Mode&0o100 != 0: // a message
		if err := f.Chown(-1, g.gid); err != nil {
			return err
		}
		return f.Chmod(0o760)
	case st.Uid != 0 || open && !strings.HasPrefix(filepath.Base(name), "."):
		return nil // a submitter's draft, or given already
	}
	return f.Chown(g.uid, g.gid)
}

func (g *giver) giveDir(name string) error {
	if err := g.root.Chown(name, g.uid, g.gid); err != nil {
		return ignoreGone(err)
	}
	if name != Public {
		return nil
	}
	// What anybody submits gets the group of the daemons.
	return g.root.Chmod(name, 0o777|fs.ModeSticky|fs.ModeSetgid)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// MakeNursery makes the directory in which files of the daemons begin, where the file
// system wants one: a confined daemon cannot.
func MakeNursery(dir string) error {
	f, err := durable.NewOS(dir)
	if err != nil {
		return fmt.Errorf("make %s: %w", durable.Nursery, err)
	}
	f.MakeNursery()
	return f.Close()
}
