package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// Beside router/ there may be further directories, router2/, router3/ and so on, for
// mail that may wait (M3): routers take from one only when those before it are empty.
// Each is used as router/ is, claims, work files and markers with it. Which there are
// is what is on the disk, not what a setting says: mail in a directory that was struck
// from ROUTERDIRS goes on.
//
// Where there is a router0/, users may put messages into router/ as into public/
// (ROUTERMODE=shared), and the daemons use router0/ in its place.

// routerDirs are the directories that routers take mail from, and those in which users leave
// it.
type routerDirs struct{ *spool }

func (p *spool) routers() routerDirs { return routerDirs{p} }

// RouterQueue is router/ and the directories that are used as it is.
type RouterQueue struct {
	*spool
	aside       *AsideArea
	owners      *OwnerTable
	submissions *Submissions
	crashes     *crashMarkers
}

// modeOfRouterDir is the mode of router/ and the directories that are used as it is.
const modeOfRouterDir = 0o750

// maxRouterDir is the largest number of such a directory.
const maxRouterDir = 99

// routerRank returns where a directory comes among those that routers take from: router/ is
// 0, routerN is N.
func routerRank(dir string) (rank int, ok bool) {
	digits, ok := strings.CutPrefix(dir, Router)
	if !ok || digits == "" || dir == Router0 {
		return 0, ok
	}
	n, ok := decimal(digits)
	return int(min(n, maxRouterDir+1)), ok && n <= maxRouterDir
}

// IsRouterDir recognizes the name of a directory that routers take mail from.
func IsRouterDir(dir string) bool {
	_, ok := routerRank(dir)
	return ok
}

// ParseRouterDirs checks the setting ROUTERDIRS: the directories behind router/, in the
// order in which routers look into them.
func ParseRouterDirs(list []string) ([]string, error) {
	last := 0
	for _, dir := range list {
		rank, ok := routerRank(dir)
		switch {
		case !ok || rank == 0:
			return nil, fmt.Errorf("%q: want %s and a number from 1 to %d, like %s2", dir, Router, maxRouterDir, Router)
		case rank <= last:
			return nil, fmt.Errorf("%s is listed behind %s%d: name them in the order of their numbers, which is that in which routers look into them", dir, Router, last)
		}
		last = rank
	}
	return list, nil
}

// PriorityDir returns the directory for mail of a priority: 0 is router/, 1 the first of
// ROUTERDIRS, and more than there are the last.
func PriorityDir(routerDirs []string, priority int) string {
	if priority <= 0 || len(routerDirs) == 0 {
		return Router
	}
	return routerDirs[min(priority, len(routerDirs))-1]
}

// Dir returns the directory that routers take mail from first: router/ or, where that is
// open to users, router0/.
func (p *RouterQueue) Dir() string { return p.routers().first() }

// Dirs lists the router directories that exist, in the order in which routers scan them.
func (p *RouterQueue) Dirs() ([]string, error) { return p.routers().all() }

// EnsureRouterDirs makes the directories of ROUTERDIRS that are missing.
func (p *RouterQueue) EnsureDirs(routerDirs []string) error {
	made := false
	for _, dir := range routerDirs {
		// Crash: a directory that nothing is in yet, or none.
		err := p.fs.Mkdir(dir, modeOfRouterDir)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make %s: %w", dir, err)
		}
		made = made || err == nil
		info, err := p.fs.Stat(dir)
		if err == nil && !info.Mode.IsDir() {
			err = errors.New("it is no directory")
		}
		if err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if !made {
		return nil
	}
	// Crash: as in Init.
	if err := p.fs.SyncDir("."); err != nil {
		return fmt.Errorf("make router directories: %w", err)
	}
	return nil
}

// RouterDir is the directory that routers take mail from first: router/ or, where that is
// open to users, router0/.
func (p routerDirs) first() string {
	if p.inbox {
		return Router0
	}
	return Router
}

// IsInbox reports whether a directory is one of Inboxes.
func (p routerDirs) isInbox(dir string) bool {
	return dir == Public || dir == Router && p.inbox
}

// Inboxes are the directories in which users leave messages for PickUp.
func (p routerDirs) inboxes() []string {
	if p.inbox {
		return []string{Public, Router}
	}
	return []string{Public}
}

// RouterDirs lists the directories that are there, in the order in which routers look
// into them, router/ first.
func (p routerDirs) all() ([]string, error) {
	entries, err := p.fs.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list router directories: %w", err)
	}
	list := []string{p.first()}
	for _, e := range entries {
		if rank, ok := routerRank(e.Name); !ok || rank == 0 {
			continue
		}
		if e.Type == fs.ModeIrregular {
			if info, err := p.fs.Stat(e.Name); err != nil || !info.Mode.IsDir() {
				continue
			}
		} else if !e.Type.IsDir() {
			continue
		}
		list = append(list, e.Name)
	}
	slices.SortFunc(list, func(a, b string) int {
		x, _ := routerRank(a)
		y, _ := routerRank(b)
		return x - y
	})
	return list, nil
}

// checkRouterDirs finds a router directory on another file system. A postoffice that
// this process may not list is one that it only submits to.
func (p routerDirs) check(dev uint64) error {
	dirs, err := p.all()
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	for _, dir := range dirs {
		info, serr := p.fs.Stat(dir)
		if serr == nil && info.Dev != dev {
			return fmt.Errorf("open postoffice: %s and %s: %w; put both on one, a message is handed over by rename", Public, dir, ErrCrossDevice)
		}
	}
	return err
}

// syncRouters makes the names in all router directories durable.
func (p routerDirs) sync() error {
	dirs, err := p.all()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := p.fs.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// findWork looks for the work file of a claim; "" if there is none. One that is not
// believed counts for nothing: the router puts it away, and the message must not wait for
// that.
func (p routerDirs) findWork(n Name) (string, error) {
	dirs, err := p.all()
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		work := dir + "/.." + n.String()
		info, err := p.fs.Stat(work)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case p.checkTrust(work, info) == nil:
			return work, nil
		}
	}
	return "", nil
}

// eachRouterName calls fn for each name in the router directories.
func (p routerDirs) each(fn func(dir, name string)) error {
	dirs, err := p.all()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		entries, err := p.fs.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != p.first() {
			continue // removed just now
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			fn(dir, e.Name)
		}
	}
	return nil
}

// RouterPath returns the path below the postoffice of a message that is named as Claim and
// Pending name it: by its last element if it is in router/, else with its directory.
func RouterPath(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return Router + "/" + name
}

// RouterName returns the name, as Claim takes it, of a file in a router directory.
func RouterName(dir, base string) string {
	if dir == Router {
		return base
	}
	return dir + "/" + base
}

// Pending is a message that waits in router/.
type Pending struct {
	// Name is as Claim takes it: its last element, or its path if it is not in router/.
	Name    string
	ModTime time.Time
	// Tries is how many routers it has ended; such a message comes after all others.
	Tries int
}

// ListRouter lists what may be claimed, oldest first (M4); with sorted false in
// the directory's order, sparing a stat for each. Only regular files whose name is
// a decimal number count (M5). Those that have ended routers come last (M8).
//
// A time after now is that of a message from before the clock was set back: it is
// older than what has come since, or it would wait behind that for as long as the
// clock went back.
//
// What is in further router directories comes behind, directory by directory (M3).
func (p *RouterQueue) List(sorted bool, now time.Time) ([]Pending, error) {
	dirs, err := p.routers().all()
	if err != nil {
		return nil, err
	}
	var list []Pending
	for _, dir := range dirs {
		more, err := p.ListDir(dir, sorted, now)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	slices.SortStableFunc(list, func(a, b Pending) int { return triedLast(&a, &b) })
	return list, nil
}

// ListRouterDir is ListRouter for one of the directories. One that is gone is empty.
func (p *RouterQueue) ListDir(dir string, sorted bool, now time.Time) ([]Pending, error) {
	entries, err := p.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) && dir != p.routers().first() {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var marked map[uint64]bool
	for _, e := range entries {
		if ino, ok := TriesMarker(e.Name); ok {
			if marked == nil {
				marked = map[uint64]bool{}
			}
			marked[ino] = true
		}
	}
	var list []Pending
	for _, e := range entries {
		n, ok := ParseName(e.Name)
		if !ok || n.Owner != 0 || (e.Type != 0 && e.Type != fs.ModeIrregular) {
			continue
		}
		pend := Pending{Name: RouterName(dir, e.Name)}
		if sorted || marked[n.Ino] {
			if ok, err := p.describe(&pend, dir, n.Ino, marked[n.Ino]); err != nil {
				return nil, fmt.Errorf("list %s: %w", dir, err)
			} else if !ok {
				continue
			}
		}
		list = append(list, pend)
	}
	sortPending(list, sorted, now)
	return list, nil
}

// look fills in what a listing needs to know of one file; false: it is gone.
func (p *RouterQueue) describe(pend *Pending, dir string, number uint64, marked bool) (bool, error) {
	info, err := p.fs.Stat(RouterPath(pend.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pend.ModTime = info.ModTime
	if !marked {
		return true, nil
	}
	// A marker that cannot be read is no reason to route nothing.
	tries, _ := p.crashes.of(dir, number, IDOf(info))
	pend.Tries = len(tries)
	return true, nil
}

func sortPending(list []Pending, byAge bool, now time.Time) {
	if !byAge && !slices.ContainsFunc(list, func(p Pending) bool { return p.Tries > 0 }) {
		return
	}
	soon := now.Add(clockSlack)
	slices.SortStableFunc(list, func(a, b Pending) int {
		if c := triedLast(&a, &b); c != 0 || !byAge {
			return c
		}
		if before := a.ModTime.After(soon); before != b.ModTime.After(soon) {
			if before {
				return -1
			}
			return 1
		}
		return a.ModTime.Compare(b.ModTime)
	})
}

// triedLast compares two messages by whether they have ended routers.
func triedLast(a, b *Pending) int {
	switch tried := a.Tries > 0; {
	case tried == (b.Tries > 0):
		return 0
	case tried:
		return 1
	}
	return -1
}

// clockSlack is how far a file's time may be ahead of the clock's before it says that
// the clock was set back: the kernel stamps files with a coarser clock, and another
// machine's may differ by a little.
const clockSlack = 10 * time.Second
