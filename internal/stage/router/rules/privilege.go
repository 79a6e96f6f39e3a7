package rules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// rights are what the values of a file or source may do (M48).
type rights struct {
	uid uint32
	why string // why it is Nobody and not the owner; ""
	// admin: it is a table that zmailer.conf names, which may use any list as that
	// list's owner.
	admin bool
}

// including returns the rights of the values of a file that is named by a value with the
// rights r. Rights only become fewer, so that who may write into one list gets no
// other user's by naming his file; but root, and tables, may name anybody's.
func (r rights) including(file rights, name string) rights {
	switch {
	case r.uid == Nobody:
		return rights{uid: Nobody, why: r.why}
	case r.admin, r.uid == 0, r.uid == file.uid, file.uid == Nobody:
		return file
	}
	return rights{uid: Nobody, why: fmt.Sprintf("%s belongs to uid %d, and a file of uid %d includes it", name, file.uid, r.uid)}
}

// showRights names, for operators, the user whose rights programs and files get.
func showRights(r rights) string {
	if r.uid == Nobody {
		return "its programs and files are refused: " + r.why
	}
	return fmt.Sprintf("its programs and files as uid %d", r.uid)
}

// acts reports whether a value needs rights.
func acts(v *text.Value) bool {
	return v.Kind == text.ToPipe || v.Kind == text.ToFile && v.Text != os.DevNull
}

// checkRights reports the first program or file in a text table that will be refused.
func checkRights(layers []layer) error {
	for _, l := range layers {
		if l.mem == nil || l.mem.rights.uid != Nobody {
			continue
		}
		line := 0
		for _, e := range l.mem.entries {
			if slices.ContainsFunc(e.values, func(v text.Value) bool { return acts(&v) }) && (line == 0 || e.line < line) {
				line = e.line
			}
		}
		if line != 0 {
			return &config.Error{File: l.mem.file, Line: line, Reason: "its program or file is refused: " + l.mem.rights.why}
		}
	}
	return nil
}

// others are the permissions to write of those who are not the owner.
const others = 0o022

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// guarded returns the rights of a file: those of its owner, or Nobody and the reason, if
// another user could write it or replace it. Asked are the file, every symbolic link
// on the way and every directory, also those that links lead through: each must
// belong to root, to us or to the owner of the file, and be written by its owner alone;
// of a directory where each may remove only what is his (sticky) the second holds
// without. The error is the one that keeps the file from being looked at.
func guarded(path string) (rights, fs.FileInfo, error) {
	return new(guard).look(path)
}

// look is guarded; the guard records the path that was followed.
func (g *guard) look(path string) (rights, fs.FileInfo, error) {
	info, err := g.walk(path)
	if err != nil {
		return rights{uid: Nobody}, nil, err
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode().Perm()&others != 0:
		g.refuse("%s may be written by %s", path, whoWrites(info))
	case st.Uid == Nobody:
		g.refuse("%s belongs to the user nobody", path)
	}
	for _, o := range g.owners {
		if o.uid != 0 && o.uid != st.Uid && o.uid != uint32(os.Geteuid()) {
			g.refuse("%s on the way to %s belongs to uid %d, neither root nor the file's owner", o.path, path, o.uid)
		}
	}
	if g.why != "" {
		return rights{uid: Nobody, why: g.why}, info, nil
	}
	return rights{uid: st.Uid}, info, nil
}

// guard is a walk along a path.
type guard struct {
	reach  reach
	owners []owned // of directories and links
	closed []owned // directories in which not everybody may look names up
	why    string  // the first thing that was found wrong
}

type owned struct {
	path string
	uid  uint32
}

func (g *guard) refuse(format string, args ...any) {
	if g.why == "" {
		g.why = fmt.Sprintf(format, args...)
	}
}

// walk goes along a path as the kernel does and looks at each name.
func (g *guard) walk(path string) (fs.FileInfo, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	rest := strings.Split(abs[1:], "/")
	at, links := "/", 0
	for {
		info, to, err := g.reach.look(at)
		if err != nil {
			return nil, err
		}
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
			}
			g.own(at, info)
			if at = filepath.Dir(at); filepath.IsAbs(to) {
				at = "/"
			}
			rest = append(strings.Split(to, "/"), rest...)
		case mode.IsDir() && len(rest) > 0:
			g.own(at, info)
			if mode.Perm()&0o001 == 0 {
				g.closed = append(g.closed, owned{at, info.Sys().(*syscall.Stat_t).Uid})
			}
			if mode.Perm()&others != 0 && mode&fs.ModeSticky == 0 {
				g.refuse("the directory %s may be written by %s", at, whoWrites(info))
			}
		case len(rest) > 0:
			return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
		}
		if len(rest) == 0 {
			return info, nil
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

func (g *guard) own(path string, info fs.FileInfo) {
	o := owned{path, info.Sys().(*syscall.Stat_t).Uid}
	if !slices.Contains(g.owners, o) {
		g.owners = append(g.owners, o)
	}
}

func whoWrites(info fs.FileInfo) string {
	if info.Mode().Perm()&0o002 != 0 {
		return "everybody"
	}
	return "its group"
}

// readable returns an error if the user that a list or .forward acts as may not read a file
// that it includes. The user nobody may read what every user may.
func readable(uid uint32, l *list) error {
	if uid == 0 {
		return nil
	}
	who := fmt.Sprintf("uid %d, whose file includes it,", uid)
	if uid == Nobody {
		who = "the user nobody, as whom the file acts that includes it,"
	}
	for _, d := range l.closed {
		if d.uid != uid {
			return fmt.Errorf("%s may not enter %s", who, d.path)
		}
	}
	if l.info.Sys().(*syscall.Stat_t).Uid == uid || l.info.Mode().Perm()&0o004 != 0 {
		return nil
	}
	return fmt.Errorf("%s may not read it", who)
}

// absent reports whether an error means that a name does not exist.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}
