package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Closed is the action of Recovered for a directory that others could use until now.
const Closed = "closed"

// Secure takes from others the rights that a directory of the postoffice must not give
// them, as in one that an earlier version made. It adds no rights. What cannot be changed
// is among the results as Unreadable.
func (p *PostOffice) Secure() ([]Recovered, error) {
	dirs, err := p.securedDirs()
	if err != nil {
		return nil, fmt.Errorf("close directories: %w", err)
	}
	var done []Recovered
	for _, dir := range dirs {
		changed, err := p.secureDir(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			done = append(done, Recovered{Action: Unreadable, Name: dir, Detail: "others can use it: " + err.Error()})
		case changed != "":
			done = append(done, Recovered{Action: Closed, Name: dir, Detail: changed})
		}
	}
	return done, nil
}

func (p *PostOffice) securedDirs() ([]string, error) {
	dirs := Directories()
	routers, err := p.RouterDirs()
	for _, dir := range routers {
		if dir != Router {
			dirs = append(dirs, dir)
		}
	}
	return dirs, err
}

func (p *PostOffice) secureDir(dir string) (changed string, err error) {
	want := p.ModeOf(dir)
	info, err := p.fs.Stat(dir)
	if err != nil || !info.Mode.IsDir() {
		return "", err
	}
	mode := info.Mode &^ fs.ModeType
	closed := mode &^ (fs.ModePerm &^ want.Perm())
	if want.Perm()&0o002 != 0 {
		closed |= fs.ModeSticky
	}
	if closed == mode {
		return "", nil
	}
	f, err := p.fs.Open(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	// Crash: open to others as before, or closed.
	if err := errors.Join(f.Chmod(closed), f.Close()); err != nil {
		return "", err
	}
	return fmt.Sprintf("mode %s was %s", closed, mode), nil
}

// Share makes router/ a directory in which other programs than ours leave messages, as in
// ZMailer: what was router/ is router0/ from then on, which the daemons use. No daemon may
// run meanwhile.
func (p *PostOffice) Share() error {
	if err := p.share(); err != nil {
		return fmt.Errorf("open router/ to users: %w", err)
	}
	return nil
}

func (p *PostOffice) share() error {
	there, err := p.exists(Router0)
	if err != nil {
		return err
	}
	if !there {
		// Crash: router/ is missing. Nothing starts, and the next init makes it and goes on.
		if err := p.fs.RenameNew(Router, Router0); err != nil {
			return err
		}
		if err := p.fs.Mkdir(Router, modeOfRouterDir); err != nil {
			return err
		}
		if err := p.fs.SyncDir("."); err != nil {
			return err
		}
	}
	p.inbox = true
	f, err := p.fs.Open(Router, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	// Crash: router/ is closed and empty; the next init opens it.
	return errors.Join(f.Chmod(p.ModeOf(Router)), f.Close())
}

// ModeOf is the mode that a directory of this postoffice is to have.
func (p *PostOffice) ModeOf(dir string) fs.FileMode {
	mode, _, _ := Mode(dir)
	switch {
	case dir == Public && p.shared:
		return mode | fs.ModeSetgid // see Give
	case dir == Router && p.inbox:
		mode = modeOfInbox
		if p.shared {
			mode |= fs.ModeSetgid
		}
	}
	return mode
}
