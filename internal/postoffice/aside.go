package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// AsideArea is what waits for an operator or for a router's next try: deferred/, freezer/,
// postman/ and quarantine/.
type AsideArea struct {
	*spool
	// reasons are the messages that this process knows a text of; see Explain.
	reasons inodes
}

// ListDeferred lists the names in deferred/, "<ino>.<why>".
func (p *AsideArea) ListDeferred() ([]string, error) {
	entries, err := p.fs.ReadDir(Deferred)
	if err != nil {
		return nil, fmt.Errorf("list deferred: %w", err)
	}
	var list []string
	for _, e := range entries {
		ino, _, _ := strings.Cut(e.Name, ".")
		if _, ok := decimal(ino); ok && (e.Type == 0 || e.Type == fs.ModeIrregular) {
			list = append(list, e.Name)
		}
	}
	return list, nil
}

// Waiting is a message in deferred/. Its file says all that a schedule needs: ModTime is
// when it arrived, and CTime when it was put aside last, by the rename. ls -l and ls -lc
// show both.
type Waiting struct {
	Name string // below deferred/
	Why  string // the word in its name
	ID   SpoolID
	Info durable.Info
}

// WhyCrash is the word of a message that has ended too many routers. It is put into
// deferred/ if its name in postman/ is taken, and no program gives it back.
const WhyCrash = "crash"

// ListWaiting lists the messages in deferred/ that a router may try again by itself: not
// one that has ended routers, and not one that is also under another name, as after a
// copy by links, which would be delivered twice.
func (p *AsideArea) ListWaiting() ([]Waiting, error) {
	names, err := p.ListDeferred()
	if err != nil {
		return nil, err
	}
	var list []Waiting
	for _, name := range names {
		_, why, _ := strings.Cut(name, ".")
		if why == WhyCrash {
			continue
		}
		info, err := p.fs.Stat(Deferred + "/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another router has it
		}
		if err != nil {
			return nil, fmt.Errorf("list deferred: %w", err)
		}
		if !info.Mode.IsRegular() || info.Nlink > 1 && !p.hasCopies(info) {
			continue
		}
		list = append(list, Waiting{Name: name, Why: why, ID: IDOf(info), Info: info})
	}
	return list, nil
}

// Resubmit moves deferred/name back to router/ (M10). The name is taken from the
// file itself, not from its old name.
func (p *AsideArea) Resubmit(name string) (Accepted, error) {
	name = path.Base(name)
	info, err := p.fs.Stat(Deferred + "/" + name)
	if err != nil {
		return Accepted{}, fmt.Errorf("resubmit %s: %w", name, gone(err))
	}
	return p.RecallTo(p.routers().first(), Deferred, name, IDOf(info))
}

// Recall moves a message from deferred/ or freezer/ to router/, where it is routed from
// the start: dir/name must be the message id. ErrGone: it has moved on, or is another.
func (p *AsideArea) Recall(dir, name string, id SpoolID) (Accepted, error) {
	return p.RecallTo(p.routers().first(), dir, name, id)
}

// RecallTo moves a message that is put aside, dir/name, to a router directory, under its
// inode number, whatever number its name has: somebody may have put a mended copy in its
// place. Its time stays, so it is no younger. ErrGone: it has moved on, or another
// message is there by now; ErrOccupied: the name is taken.
func (p *AsideArea) RecallTo(to, dir, name string, id SpoolID) (Accepted, error) {
	if to == Router {
		to = p.routers().first()
	}
	a := Accepted{ID: id}
	info, err := p.same(dir, name, id)
	if err == nil {
		a.Size = info.Size
		if was, ok := asideNumber(name); ok {
			p.renumber(info, was)
		}
		// Crash: where it was, or in the router directory.
		a.Name, err = p.moveIn(dir+"/"+name, to, id.Ino, "")
	}
	if err == nil {
		err = p.syncDirs(dir, to)
	}
	if err != nil {
		return a, fmt.Errorf("move %s/%s to %s: %w", dir, name, to, err)
	}
	return a, nil
}

// Park moves a message that is not routed from router/ or deferred/ to freezer/, where it
// waits for an operator, and gives its name there. ErrGone: as Recall.
func (p *AsideArea) Freeze(dir, name string, id SpoolID, cause string) (string, error) {
	to := inodeName(id.Ino) + "." + cause
	_, err := p.same(dir, name, id)
	if err == nil {
		// Crash: where it was, or in freezer/.
		err = p.move(dir+"/"+name, Freezer+"/"+to)
	}
	if err == nil {
		err = p.syncDirs(dir, Freezer)
	}
	if err != nil {
		return to, fmt.Errorf("move %s/%s to freezer: %w", dir, name, err)
	}
	return to, nil
}

// asideDirs returns the directories of what is put aside.
func asideDirs() []string { return []string{Deferred, Freezer, Postman} }

// asideNumber returns the inode number in the name of what is put aside.
func asideNumber(name string) (uint64, bool) {
	digits := len(name) - len(strings.TrimLeft(name, "0123456789"))
	return decimal(name[:digits])
}

// DefaultPostmanKeep is how long a copy stays in postman/.
const DefaultPostmanKeep = 14 * 24 * time.Hour

// Dropped is the action of Recovered for a copy whose time is over.
const Dropped = "dropped"

// SweepCopies removes copies for the postmaster, postman/I_why, that have been there for
// so long (M12). Their messages went on. postman/I is the only copy of a message and is
// never touched, and neither is anything else. keep 0: nothing is done; dry: it is reported
// and not done. Any number of processes may call it at once.
func (p *AsideArea) SweepCopies(now time.Time, keep time.Duration, dry bool) ([]Recovered, error) {
	if keep <= 0 {
		return nil, nil
	}
	var names []string
	err := durable.ReadDirFunc(p.fs, Postman, func(part []durable.Entry) error {
		for _, e := range part {
			if isCopy(e.Name) && (e.Type == 0 || e.Type == fs.ModeIrregular) {
				names = append(names, e.Name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sweep copies: %w", err)
	}
	slices.Sort(names)
	var done report
	for _, base := range names {
		name := Postman + "/" + base
		info, err := p.fs.Stat(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode.IsRegular() {
			continue
		}
		// A copy is a link: its file was changed last when it was made, or later.
		since := later(info.ModTime, info.CTime)
		if err == nil && now.Sub(since) < keep {
			continue
		}
		if err == nil && !dry {
			// Crash: there, and dropped another time, or not. Who has made an only copy of it
			// meanwhile, by a rename, has it.
			err = p.remove(name)
		}
		done.add(name, &Recovered{Action: Dropped, Name: name, ID: IDOf(info),
			Detail: "a copy since " + since.UTC().Format(time.RFC3339) + "; its message went on"}, err)
	}
	return done, nil
}

// isCopy recognizes the name of a copy of a message that went on.
func isCopy(name string) bool {
	ino, why, ok := strings.Cut(name, "_")
	_, number := decimal(ino)
	return ok && number && why != ""
}

// Quarantined is the action of Recovered for what QuarantineUnfinished put away.
const Quarantined = "quarantined"

// maxQuarantined is how much of a name its name in quarantine/ keeps, so that the
// words around it fit the 255 bytes of a name.
const maxQuarantined = 160

// Quarantine puts away a file, a directory or whatever else has a name in the
// postoffice and is of no use to any program: name, a path below the postoffice, is
// renamed to quarantine/<top directory>.<last element>.<why>, with .2, .3 and so on
// behind it if that is taken. No program uses what is there. ErrGone: the name does not
// exist any more.
func (p *AsideArea) Quarantine(name, why string) (to string, err error) {
	return p.quarantine(name, why)
}

// putAside is quarantine for recovery.
func (p *spool) putAside(name, why, detail string) (*Recovered, error) {
	to, err := p.quarantine(name, why)
	if err != nil {
		return nil, err
	}
	return &Recovered{Action: Quarantined, Name: to, Detail: detail}, nil
}

func (p *spool) quarantine(name, why string) (to string, err error) {
	top, _, below := strings.Cut(name, "/")
	if !below {
		return "", fmt.Errorf("quarantine %s: only what is in a directory of the postoffice", name)
	}
	if err := p.ensure(Quarantine); err != nil {
		return "", fmt.Errorf("quarantine %s: %w", name, err)
	}
	base := path.Base(name)
	if len(base) > maxQuarantined {
		base = base[:maxQuarantined]
	}
	base = Quarantine + "/" + top + "." + base + "." + CauseWord(why)
	to = base
	for n := 2; ; n++ {
		// Crash: the old name or the one in quarantine/, never neither.
		err = p.moving(name, to, func() error { return durable.MoveNew(p.fs, name, to) })
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
func holdsNothing(err error, p *spool, name string) bool {
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EXDEV) {
		return false
	}
	info, serr := p.fs.Stat(name)
	return serr == nil && !info.Mode.IsRegular() && !info.Mode.IsDir()
}
