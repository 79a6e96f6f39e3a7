package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// Claim is a message that this process routes: router/<ino>-<owner>, open. One of a
// further router directory is claimed there.
type Claim struct {
	ID   SpoolID
	Info durable.Info
	File durable.File // for reading
	p    *RouterQueue
	dir  string
	name Name
	text string // of name
	done bool
	// occupied: the name is another file's in queue/ or transport/.
	occupied bool
	// marked: there may be a marker for it, to be removed when it leaves router/.
	marked bool
}

// claimPlace parts a name as Claim takes it.
func claimPlace(name string) (dir string, n Name, ok bool) {
	dir, base, below := strings.Cut(name, "/")
	if !below {
		dir, base = Router, name
	}
	if n, ok = ParseName(base); !ok || strings.Contains(base, "/") {
		return "", Name{}, false
	}
	return dir, n, IsRouterDir(dir)
}

// Claim takes router/name, or a path as router2/name, by rename; only one of many
// routers can (M6). ErrGone: another one did. A file whose name is not its inode number, as after a copy, is
// renamed to the right one on the way, or to a random one where that is taken. ErrUnsettled: such a file was written a moment
// ago; it is in router/ again. So is what is no message, ErrIrregular, what a user has
// submitted, ErrSubmission, and what is not believed, *UntrustedError. A Claim beside an error could not be given back: its
// Release is to be tried until it succeeds, for while we live no other process does that.
func (p *RouterQueue) Claim(o *Owner, name string) (*Claim, error) {
	dir, n, ok := claimPlace(name)
	if !ok {
		return nil, fmt.Errorf("claim %s: not a spool file's name", name)
	}
	from := RouterPath(name)
	mine := Name{Ino: n.Ino, Owner: o.n}
	// Crash: router/I or router/I-P; a claim of a dead owner is taken over.
	if err := p.moveOwn(from, dir+"/"+mine.String()); err != nil {
		return nil, fmt.Errorf("claim %s: %w", name, err)
	}
	c, err := p.openClaim(dir, mine)
	if err != nil && !errors.Is(err, ErrGone) {
		// Out of descriptors, or no file to route: a claim that no process works on would
		// wait for our end.
		return p.unclaim(dir, mine, from, err)
	}
	return c, err
}

// ClaimWaiting takes deferred/name as a claim of this router, for a last attempt: by one
// rename, so that no other router has it between deferred/ and the claim. ErrGone:
// another one did, or another message is there by now. The errors of Claim hold, too: the
// message is in router/ then. A Claim beside an error could not be given back there.
func (p *RouterQueue) ClaimWaiting(o *Owner, w Waiting) (*Claim, error) {
	from, dir := Deferred+"/"+w.Name, p.routers().first()
	if _, err := p.same(Deferred, w.Name, w.ID); err != nil {
		return nil, fmt.Errorf("claim %s: %w", from, err)
	}
	mine := Name{Ino: w.ID.Ino, Owner: o.n}
	// Crash: deferred/I.why, or router/I-P, which is given back to router/ and routed in the
	// usual way: it is deferred again, and given up later.
	if err := p.moveOwn(from, dir+"/"+mine.String()); err != nil {
		return nil, fmt.Errorf("claim %s: %w", from, err)
	}
	err := p.syncDirs(Deferred, dir)
	if err == nil {
		var c *Claim
		if c, err = p.openClaim(dir, mine); err == nil || errors.Is(err, ErrGone) {
			return c, err
		}
	}
	return p.unclaim(dir, mine, dir+"/"+inodeName(mine.Ino), err)
}

// unclaim ends a claim that is not open: its message gets a name in router/ again.
func (p *RouterQueue) unclaim(dir string, n Name, to string, cause error) (*Claim, error) {
	// Crash: the claim, or the message free to be claimed.
	err := p.moveMine(dir+"/"+n.String(), to)
	if err != nil && !errors.Is(err, ErrGone) {
		return &Claim{p: p, dir: dir, name: n, text: n.String(), done: true}, errors.Join(cause, err)
	}
	return nil, cause
}

// copyGrace is how long a file that was copied into router/ is left alone after its
// last write.
const copyGrace = 2 * time.Second

func (p *RouterQueue) openClaim(dir string, n Name) (*Claim, error) {
	f, err := p.openRead(dir + "/" + n.String())
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		err = fmt.Errorf("%w: %w", ErrIrregular, err) // a symbolic link, a socket
	}
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", n, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("claim %s: %w", n, err), f.Close())
	}
	if !info.Mode.IsRegular() {
		return nil, errors.Join(fmt.Errorf("claim %s: %w", n, ErrIrregular), f.Close())
	}
	if info.Nlink > 1 && p.linked.Load() {
		if info, err = p.settle(f, dir+"/"+n.String(), info); err != nil {
			return nil, errors.Join(fmt.Errorf("claim %s: %w", n, err), f.Close())
		}
	}
	if err := p.checkTrust(dir+"/"+n.String(), info); err != nil {
		if !p.trusts(info.UID) {
			err = ErrSubmission
		}
		return nil, errors.Join(fmt.Errorf("claim %s: %w", n, err), f.Close())
	}
	right := Name{Ino: info.Ino, Owner: n.Owner}
	if info.Ino != n.Ino && p.isOccupied(dir, info.Ino, n.Owner) {
		// Of a random number all stages know that the spool ID has another one.
		if right.Ino = n.Ino; !IsRandom(n.Ino) {
			right.Ino = randomNumber()
		}
	}
	if right != n {
		// Mail comes by rename, under its number. cp(1) makes the name first and the
		// content later.
		if n.Ino < firstRandom && time.Since(info.ModTime).Abs() < copyGrace {
			return nil, errors.Join(fmt.Errorf("claim %s: %w", n, ErrUnsettled), f.Close())
		}
		p.renumber(info, n.Ino)
		// Crash: a claim under the old or the new name; both are taken over.
		if err := p.moveOwn(dir+"/"+n.String(), dir+"/"+right.String()); err != nil {
			return nil, errors.Join(fmt.Errorf("renumber %s: %w", n, err), f.Close())
		}
		n = right
	}
	return &Claim{ID: IDOf(info), Info: info, File: f, p: p, dir: dir, name: n, text: n.String()}, nil
}

// isOccupied reports whether a message cannot get the number of its inode, because another
// file has a name with that. It then goes on under a number taken at random.
func (p *RouterQueue) isOccupied(dir string, ino uint64, owner int) bool {
	right := Name{Ino: ino, Owner: owner}.String()
	rel := right
	if h := HashDir(ino, p.levels); h != "" {
		rel = h + "/" + right
	}
	for _, name := range []string{dir + "/" + inodeName(ino), dir + "/" + right, Queue + "/" + rel, Transport + "/" + rel} {
		if there, err := p.exists(name); err == nil && there {
			return true
		}
	}
	return false
}

// Name returns the name that message and work specification will have, <ino>-<owner>.
func (c *Claim) Name() string { return c.text }

// Dir returns the directory that it was claimed in: router/, or a further one.
func (c *Claim) Dir() string { return c.dir }

func (c *Claim) path() string { return c.dir + "/" + c.text }

func (c *Claim) work() string { return c.dir + "/.." + c.text }

// CreateWork makes the claim's work file, router/..<ino>-<owner>. One that is there is
// removed and not written to: it is a new file in any case.
func (c *Claim) CreateWork() (durable.File, error) {
	// Crash: without its z line the file is thrown away with the stale claim.
	f, err := c.p.fs.Open(c.work(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) { // an earlier try has left it
		if err = c.p.remove(c.work()); err == nil {
			// Crash: as before.
			f, err = c.p.fs.Open(c.work(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("route %s: %w", c.name, err)
	}
	return f, nil
}

// HandOver gives message and specification to the scheduler, message first, and
// returns the name below transport/. The work file must be complete and closed. On
// an error that leaves the message in router/, Defer or Release may follow.
func (c *Claim) HandOver() (string, error) {
	rel := c.text
	if h := HashDir(c.name.Ino, c.p.levels); h != "" {
		rel = h + "/" + rel
	}
	claim, work, message, spec := c.path(), c.work(), Queue+"/"+rel, Transport+"/"+rel
	// A specification that lost its message, to a hand or a restore, names other
	// recipients: this message must not be beside it for a moment.
	if there, err := c.p.exists(spec); err != nil || there {
		if c.occupied = there; there {
			err = fmt.Errorf("%w: %s", ErrOccupied, spec)
		}
		return "", fmt.Errorf("hand over %s: %w", c.name, err)
	}
	// Crash: router/I-P (routed again), or queue/I-P with router/..I-P (the second
	// rename is finished), or both in place.
	if err := c.p.moveOwn(claim, message); err != nil {
		c.occupied = errors.Is(err, ErrOccupied)
		return "", fmt.Errorf("hand over %s: %w", c.name, err)
	}
	err := c.p.moveOwn(work, spec)
	if errors.Is(err, ErrGone) {
		// A router that took us for dead has finished the rename for us.
		if there, serr := c.p.exists(spec); serr == nil && there {
			err = nil
		}
	}
	if err != nil {
		err = fmt.Errorf("hand over %s: %w", c.name, err)
		// The message is not lost with its specification: put it back.
		if berr := c.p.moveOwn(message, claim); berr != nil {
			c.Close()
			return "", errors.Join(err, berr)
		}
		return "", err
	}
	// Both are in place; after an error a power loss may undo a rename, which recovery mends.
	err = c.p.syncDirs(dirOf(message), dirOf(spec), c.dir)
	c.forget()
	c.Close()
	if err != nil {
		return rel, fmt.Errorf("hand over %s: %w", c.name, err)
	}
	return rel, nil
}

// dropMarker removes the message's marker, if there may be one: it is no longer in router/.
func (c *Claim) dropMarker() {
	if c.marked {
		// Crash: a marker without its message, which is swept.
		c.p.crashes.forget(c.dir, c.name.Ino)
	}
}

// forget also removes the reasons of a message that will not be set aside any more.
func (c *Claim) forget() {
	c.dropMarker()
	c.p.aside.forgetReasons(c.name.Ino)
}

// aside moves the message out of the router's way, under a number and an end of the name,
// and drops the work file.
func (c *Claim) aside(verb, dir string, number uint64, end string) error {
	// Crash: the claim, or the message set aside; a leftover work file is swept.
	if _, err := c.p.moveInMine(c.path(), dir, number, end); err != nil {
		return fmt.Errorf("%s %s: %w", verb, c.name, err)
	}
	if dir != c.dir {
		c.dropMarker()
	}
	err := c.p.remove(c.work())
	c.Close()
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, c.name, err)
	}
	return c.p.syncDirs(c.dir, dir)
}

// Defer sets the message aside as deferred/<ino>.<why> until zmctl resubmit (M10).
func (c *Claim) Defer(why string) error {
	return c.aside("defer", Deferred, c.name.Ino, "."+CauseWord(why))
}

// Freeze holds the message as freezer/<ino>.<cause> (M13).
func (c *Claim) Freeze(cause string) error {
	return c.aside("freeze", Freezer, c.name.Ino, "."+CauseWord(cause))
}

// ToPostman moves the only copy to postman/<ino>: it cannot be routed (M12).
func (c *Claim) ToPostman() error {
	return c.aside("set aside", Postman, c.name.Ino, "")
}

// Release gives the claim back to its router directory; if its name is another file's in
// queue/ or transport/, under a number taken at random.
func (c *Claim) Release() error {
	number := c.name.Ino
	if c.occupied {
		number = randomNumber()
	}
	return c.aside("release", c.dir, number, "")
}

// EndMissing ends a claim whose message is no longer in router/: an operator has taken it
// away, or it got into queue/ and its specification did not follow, which is done now.
func (c *Claim) EndMissing() error {
	rel, err := c.p.tree(Queue).seek(c.name)
	if err != nil {
		return fmt.Errorf("end claim %s: %w", c.name, err)
	}
	if rel == "" {
		// Crash: a work file without a message, which is swept.
		err = c.p.remove(c.work())
	} else if err = c.p.moveOwn(c.work(), Transport+"/"+rel); errors.Is(err, ErrGone) {
		err = nil // Crash: as before, or handed over.
	}
	if err != nil {
		return fmt.Errorf("end claim %s: %w", c.name, err)
	}
	c.dropMarker()
	c.Close()
	return nil
}

// Discard removes a message that is done with: all its recipients were dropped.
func (c *Claim) Discard() error {
	// Crash: the claim is stale and routed again, to the same end.
	if err := c.p.remove(c.path()); err != nil {
		return fmt.Errorf("discard %s: %w", c.name, err)
	}
	c.forget()
	err := c.p.remove(c.work())
	c.Close()
	return err
}

// SoftCopy links the message as postman/<ino>_<why>: it goes on, this copy is for
// the postmaster.
func (c *Claim) SoftCopy(why string) error {
	return c.p.copyToPostman(c.path(), c.name, why)
}

// copyToPostman gives a message its name as a copy. One that is there already is no error.
func (p *spool) copyToPostman(from string, n Name, why string) error {
	// Crash: the copy is there before the message moves on; the next try finds it.
	err := p.fs.Link(from, Postman+"/"+inodeName(n.Ino)+"_"+CauseWord(why))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("copy %s for the postmaster: %w", n, err)
	}
	return nil
}

// RemoveMarker has the message's marker removed when the message leaves router/.
func (c *Claim) RemoveMarker() { c.marked = true }

// Panicked gives a message back to router/ that has made this router panic, noting
// that first, or puts it into postman/ when that was the last of so many tries (M8).
// name is where the message is, and try the number of this one, 0 if it could not be
// noted. An error leaves it claimed; Release may follow.
func (c *Claim) Panicked(why string, now time.Time, tries int) (name string, try int, err error) {
	f, err := c.p.crashes.open(c.dir, c.name.Ino)
	if f != nil {
		defer func() { _ = f.Close() }() // a lock, and a line that is written
		try, err = c.p.crashes.add(f, Try{c.ID, c.name.Owner, now, why})
	}
	if err != nil {
		// Room on the disk may be what is missing: the message goes first.
		try = 0
	}
	c.marked = true
	if try >= tries {
		name, err = c.p.putAway(c.p.moveMine, c.path(), c.name.Ino)
		if err == nil {
			// Crash: a work file without its message, which is swept.
			err = c.p.remove(c.work())
			c.Close()
		}
		return name, try, err
	}
	return c.dir + "/" + inodeName(c.name.Ino), try, c.Release()
}

// Close closes the file; the claim stays, for the process's next start.
func (c *Claim) Close() {
	if !c.done {
		c.done = true
		// Opened for reading: close has nothing to lose.
		_ = c.File.Close()
	}
}
