package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Quarantined is the action of Recovered for what QuarantineUnfinished put away.
const Quarantined = "quarantined"

// maxQuarantined is how much of a name its name in quarantine/ keeps, so that the
// words around it fit the 255 bytes of a name.
const maxQuarantined = 160

// Quarantine puts away a file, a directory or whatever else has a name in the
// postoffice and is of no use to any program: name, a path below the postoffice, is
// renamed to quarantine/<top directory>.<last element>.<why>, with .2, .3 and so on
// behind it if that is taken. Nothing takes up what is there but a person. ErrGone:
// the name is not there any more.
func (p *PostOffice) Quarantine(name, why string) (to string, err error) {
	top, _, below := strings.Cut(name, "/")
	if !below {
		return "", fmt.Errorf("quarantine %s: only what is in a directory of the postoffice", name)
	}
	if err := p.Ensure(Quarantine); err != nil {
		return "", fmt.Errorf("quarantine %s: %w", name, err)
	}
	base := path.Base(name)
	if len(base) > maxQuarantined {
		base = base[:maxQuarantined]
	}
	base = Quarantine + "/" + top + "." + base + "." + reason(why)
	to = base
	for n := 2; ; n++ {
		// Crash: the old name or the one in quarantine/, never neither.
		err = p.move(name, to)
		if !errors.Is(err, ErrOccupied) {
			break
		}
		to = base + "." + strconv.Itoa(n)
	}
	if err == nil {
		err = p.syncDirs(dirOf(name), Quarantine)
	} else if holdsNothing(err, p, name) {
		// Crash: there or not; it held nothing.
		to, err = "", p.remove(name)
	}
	if err != nil {
		return "", fmt.Errorf("quarantine %s: %w", name, err)
	}
	return to, nil
}

// holdsNothing reports whether a name that could not be moved is a link, a fifo or the like,
// of which nothing is lost. Landlock lets a confined daemon move none into another directory.
func holdsNothing(err error, p *PostOffice, name string) bool {
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EXDEV) {
		return false
	}
	info, serr := p.fs.Stat(name)
	return serr == nil && !info.Mode.IsRegular() && !info.Mode.IsDir()
}

// UnfinishedError refuses a start with --strict (A7).
type UnfinishedError struct{ Files []Recovered }

func (e *UnfinishedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "unfinished files are here, and --strict was asked for; without it they go to %s/:", Quarantine)
	for _, r := range e.Files {
		fmt.Fprintf(&b, "\n  %s: %s", r.Name, r.Detail)
	}
	return b.String()
}

// SettleUnfinished puts what nobody will finish in public/ into quarantine/ (A7), as
// Unfinished finds it. With strict it changes nothing and returns an
// *UnfinishedError if there is anything. A daemon calls it at its start; any number
// may at once. What cannot be looked at or moved is among the results as Unreadable.
func (p *PostOffice) SettleUnfinished(now, boot time.Time, strict bool) ([]Recovered, error) {
	p.removeStaging()
	found, err := p.Unfinished(now, boot)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	if strict {
		return nil, &UnfinishedError{found}
	}
	var done []Recovered
	for _, r := range found {
		to, err := p.Quarantine(r.Name, r.Action)
		switch {
		case errors.Is(err, ErrGone):
		case err != nil:
			done = append(done, Recovered{Action: Unreadable, Name: r.Name, Detail: err.Error()})
		default:
			done = append(done, Recovered{Action: Quarantined, Name: to, Detail: "from " + r.Name + ": " + r.Detail})
		}
	}
	return done, nil
}

// Staging is a directory in which the daemons of an earlier version made new files before
// they renamed them to where they belong.
const Staging = ".nursery"

// removeStaging removes the empty files and directories in Staging. A daemon that may not do
// that leaves it to the scheduler, and a daemon of the earlier version makes it anew.
func (p *PostOffice) removeStaging() {
	dirs, _ := p.fs.ReadDir(Staging)
	f, ok := p.fs.(interface{ RemoveDir(name string) error })
	if !ok {
		return
	}
	for _, d := range dirs {
		dir := Staging + "/" + d.Name
		files, _ := p.fs.ReadDir(dir)
		for _, e := range files {
			if info, err := p.fs.Stat(dir + "/" + e.Name); err == nil && info.Size == 0 {
				// Crash: there or not; no one was told of it.
				_ = p.fs.Remove(dir + "/" + e.Name)
			}
		}
		_ = f.RemoveDir(dir)
	}
	_ = f.RemoveDir(Staging)
}

// Unfinished lists the files in public/ that nobody will finish; for none of them a
// submitter was told yes. Action is "incomplete" for a file with the execute bit that
// is not as long as its first line says, left alone for a minute or older than the
// last boot; "unfinished" for one without the bit that no living process holds and
// that is older than the last boot, and if it is another program's, which takes no
// lock, than an hour too. Younger drafts of dead writers are SweepDrafts' to remove.
func (p *PostOffice) Unfinished(now, boot time.Time) ([]Recovered, error) {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return nil, fmt.Errorf("look for unfinished files: %w", err)
	}
	var found []Recovered
	for _, e := range entries {
		name := Public + "/" + e.Name
		r, err := p.unfinished(name, now, boot)
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, fs.ErrPermission) {
			return found, fmt.Errorf("look at %s: %w", name, err)
		}
		if r != nil {
			found = append(found, *r)
		}
	}
	return found, nil
}

func (p *PostOffice) unfinished(name string, now, boot time.Time) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !info.Mode.IsRegular() {
		return nil, err
	}
	age, rebooted := now.Sub(info.ModTime), info.ModTime.Before(boot)
	accepted := info.Mode&0o100 != 0
	base := path.Base(name)
	switch {
	case accepted && age < foreignGrace && !rebooted:
		return nil, nil // somebody may be copying it in
	case accepted:
	case !rebooted || isPrepared(base):
		return nil, nil
	case !isDraft(base) && age < draftGrace:
		return nil, nil
	}
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	free, err := f.TryLock()
	if err != nil || !free {
		return nil, err // its writer lives
	}
	if !accepted {
		return &Recovered{Action: "unfinished", Name: name,
			Detail: fmt.Sprintf("%d bytes, written before the last boot; its submitter was never answered", info.Size)}, nil
	}
	ok, err := whole(f)
	if err != nil || ok {
		return nil, err
	}
	return &Recovered{Action: Incomplete, Name: name,
		Detail: fmt.Sprintf("%d bytes, not what its first line says; its submitter was never answered", info.Size)}, nil
}

// BootTime is when this machine was started, as its clock has it now. A process that
// was writing a file before that is dead. The zero time if the kernel does not tell.
func BootTime() time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(up.Nano()))
}
