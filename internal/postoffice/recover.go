package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// Recovered is one thing that recovery did; each is to be logged.
type Recovered struct {
	Action string // constant word: see docs/log.md "recovered"
	Name   string // path below the postoffice
	Detail string
	ID     SpoolID // zero if it is not known
}

// report lists what recovery did.
type report []Recovered

// add enters what was done with a name, if anything was, or the error. A file that another
// process has moved meanwhile is no error.
func (l *report) add(name string, r *Recovered, err error) {
	if err != nil && !errors.Is(err, ErrGone) {
		r = &Recovered{Action: Unreadable, Name: name, Detail: err.Error()}
	}
	if r != nil {
		*l = append(*l, *r)
	}
}

// Actions of Recovered.Action.
const (
	TakenIn    = "accepted"    // a dead submitter's whole message moved to router/
	Unclaimed  = "unclaimed"   // a dead router's claim given back
	SetAside   = "set-aside"   // a message that has ended too many routers put into postman/
	HandedOver = "handed-over" // a dead router's second rename done
	Rerouted   = "rerouted"    // a message without specification given back to router/
	Swept      = "swept"       // a leftover work file or draft removed
	Withdrawn  = "withdrawn"   // a copy of a message whose submitter has taken it back
	Incomplete = "incomplete"  // a message in public/ that lost bytes; left there
	Completed  = "completed"   // a specification whose message is gone
	MoveEnded  = "rehashed"    // an interrupted change of hash depth finished
	Unreadable = "unreadable"  // an error; the file is left alone
)

// foreignGrace is how long a name may stay in queue/ without a specification if its
// owner may live: only a running router makes that state, for a moment.
const foreignGrace = time.Minute

// RouterRecovery is how RouterQueue.Recover decides.
type RouterRecovery struct {
	// Complete reports whether a work file is a whole specification.
	Complete func(spec []byte) bool
	Now      time.Time
	// Tries is how many routers a message may end before it is put into postman/; 0:
	// DefaultTries.
	Tries int
}

// Recover resumes from what dead submitters and dead routers left: in public/, in
// claims, work files and markers. Any number of routers may call it at once; it goes
// on after an error with one file and returns the first error with a directory.
func (p *RouterQueue) Recover(c RouterRecovery) ([]Recovered, error) {
	if c.Tries <= 0 {
		c.Tries = DefaultTries
	}
	done, err := p.submissions.recoverPublic()
	return done, errors.Join(err, p.recoverClaims(c, &done))
}

// recoverClaims looks at the router directories for claims and work files of dead
// owners, and for markers of messages that are gone.
func (p *RouterQueue) recoverClaims(c RouterRecovery, done *report) error {
	dirs, err := p.routers().all()
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	dead := p.deadOwners()
	for _, dir := range dirs {
		entries, lerr := p.fs.ReadDir(dir)
		if lerr != nil {
			err = errors.Join(err, fmt.Errorf("recover: %w", lerr))
		}
		for _, e := range entries {
			r, rerr := p.recoverEntry(dir, e, entries, dead, c)
			done.add(dir+"/"+e.Name, r, rerr)
		}
	}
	return err
}

// recoverEntry looks at one name in a router directory.
func (p *RouterQueue) recoverEntry(dir string, e durable.Entry, all []durable.Entry, dead func(n int) bool, c RouterRecovery) (*Recovered, error) {
	if ino, ok := TriesMarker(e.Name); ok {
		return p.crashes.sweep(dir, ino, all)
	}
	if ino, stamp, ok := parsePickup(e.Name); ok {
		return p.submissions.recoverPickup(dir, e.Name, ino, stamp)
	}
	base, work := strings.CutPrefix(e.Name, "..")
	n, ok := ParseName(base)
	switch {
	case e.Type != 0 && e.Type != fs.ModeIrregular:
		return p.recoverForeign(dir + "/" + e.Name)
	case !ok || n.Owner == 0 || !dead(n.Owner):
		return nil, nil
	case work:
		return p.recoverWork(dir, n, c.Complete)
	}
	return p.recoverClaim(dir, n, c.Now, c.Tries)
}

// recoverForeign puts away what is no regular file and a user's, from when an earlier version
// let users make names there.
func (p *RouterQueue) recoverForeign(name string) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	if err != nil || info.Mode.IsRegular() || p.trusts(info.UID) {
		return nil, gone(err)
	}
	return p.putAside(name, "foreign", untrusted(name, info).Error())
}

// deadOwners asks for each owner once. One that cannot be looked at counts as alive.
func (p *RouterQueue) deadOwners() func(n int) bool {
	known := map[int]bool{}
	return func(n int) bool {
		dead, ok := known[n]
		if !ok {
			alive, err := p.owners.Alive(n)
			dead = err == nil && !alive
			known[n] = dead
		}
		return dead
	}
}

// recoverWork decides about router/..I-P of a dead owner.
func (p *RouterQueue) recoverWork(dir string, n Name, complete func([]byte) bool) (*Recovered, error) {
	work := dir + "/.." + n.String()
	claimed, err := p.exists(dir + "/" + n.String())
	if err != nil || claimed {
		return nil, err // the claim is given back first; next time
	}
	rel, err := p.tree(Queue).seek(n)
	if err != nil {
		return nil, err
	}
	if rel == "" {
		// The message went back to router/ or is done: this is a leftover.
		// Crash: there or not; nothing needs it.
		return &Recovered{Action: Swept, Name: work, Detail: "its message is not in queue/"}, p.remove(work)
	}
	// Beside a specification it is a leftover: the message must not be routed once more.
	if spec, err := p.tree(Transport).seek(n); err != nil {
		return nil, err
	} else if spec != "" {
		// Crash: there or not; nothing needs it.
		return &Recovered{Action: Swept, Name: work, Detail: "its message has a specification"}, p.remove(work)
	}
	b, err := p.readWork(work)
	if disbelief := (*UntrustedError)(nil); errors.As(err, &disbelief) {
		// The next look finds the message without a work file and routes it again.
		return p.putAside(work, "foreign", err.Error())
	}
	if err != nil {
		return nil, err
	}
	if complete(b) {
		// Crash: as before, or handed over.
		if err := p.moveOwn(work, Transport+"/"+rel); err != nil {
			return nil, err
		}
		return &Recovered{Action: HandedOver, Name: Transport + "/" + rel, Detail: "owner " + strconv.Itoa(n.Owner) + " is dead"}, nil
	}
	if err := p.requeue(rel); err != nil {
		return nil, err
	}
	return &Recovered{Action: Rerouted, Name: Queue + "/" + rel, Detail: "its work file is not complete"}, p.remove(work)
}

// readWork reads a work file that is to be believed.
func (p *RouterQueue) readWork(name string) ([]byte, error) {
	f, err := p.openRead(name)
	if errors.Is(err, unix.ELOOP) {
		return nil, &UntrustedError{Name: name, Mode: fs.ModeSymlink}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = p.checkTrust(name, info)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// recoverClaim returns router/I-P of a dead owner to router/I, or where else it was claimed,
// to be routed again from the start, and notes in its marker that this owner died with it.
// After the last of so many tries it is put away instead.
func (p *RouterQueue) recoverClaim(dir string, n Name, now time.Time, tries int) (*Recovered, error) {
	from := dir + "/" + n.String()
	info, err := p.fs.Stat(from)
	if err != nil || !info.Mode.IsRegular() {
		return nil, gone(err)
	}
	ino := info.Ino // it may be a copy, and its name another file's number
	if IsRandom(n.Ino) {
		ino = n.Ino
	}
	f, ferr := p.crashes.open(dir, ino)
	if ferr == nil && f == nil {
		return nil, nil // another router is at it
	}
	if f != nil {
		// The lock keeps two routers from counting one death twice.
		defer func() { _ = f.Close() }()
	}
	if info, err = p.fs.Stat(from); err != nil {
		return nil, gone(err) // the one who had the lock before has given it back
	}
	id, try := IDOf(info), 0
	if ferr == nil {
		why := "owner " + strconv.Itoa(n.Owner) + " died with it"
		try, ferr = p.crashes.add(f, Try{id, n.Owner, now, why})
	}
	if ferr == nil && try >= tries {
		to, err := p.putAway(p.move, from, ino)
		if err != nil {
			return nil, err
		}
		return &Recovered{Action: SetAside, Name: to, ID: id,
			Detail: fmt.Sprintf("%d routers ended with it, the last was owner %d", try, n.Owner)}, nil
	}
	// Crash: the stale claim, whose owner's death is then counted twice, or router/I.
	// The work file stays for recoverWork.
	to, err := p.moveIn(from, dir, ino, "")
	if err != nil {
		return nil, err
	}
	detail := fmt.Sprintf("owner %d is dead; try %d of %d", n.Owner, try, tries)
	if ferr != nil {
		detail = fmt.Sprintf("owner %d is dead; not noted: %v", n.Owner, ferr)
	}
	return &Recovered{Action: Unclaimed, Name: to, ID: id, Detail: detail}, nil
}

// putAway moves a claim that has ended too many routers to postman/, and the marker
// away. Should the name be taken there, it goes to deferred/.
func (p *RouterQueue) putAway(move func(from, to string) error, from string, ino uint64) (to string, err error) {
	to = Postman + "/" + inodeName(ino)
	// Crash: the claim, which is a dead owner's and counted once more, or the message
	// put away; the marker alone is swept.
	err = move(from, to)
	if errors.Is(err, ErrOccupied) {
		to = Deferred + "/" + inodeName(ino) + "." + WhyCrash
		err = move(from, to)
	}
	if err != nil {
		return "", fmt.Errorf("put %s away: %w", from, err)
	}
	p.crashes.forget(dirOf(from), ino)
	return to, p.syncDirs(dirOf(from), dirOf(to))
}

// Recover resumes from what an interrupted hand-over, rehash or finish left in
// queue/ and transport/. Only the scheduler calls it, between its own changes.
// Specifications whose message is gone are returned as Completed with their name
// below transport/ for the caller to look at and Finish.
func (p *DeliveryQueue) Recover(now time.Time) ([]Recovered, error) {
	var done report
	err := p.tree(Queue).list(func(name string) error {
		r, err := p.recoverQueued(name, now)
		done.add(Queue+"/"+name, r, err)
		return nil
	}, nil)
	if err != nil {
		return done, err
	}
	err = p.tree(Transport).list(func(name string) error {
		r, err := p.recoverSpec(name)
		done.add(Transport+"/"+name, r, err)
		return nil
	}, nil)
	return done, err
}

// RecoverMessages gives those of some messages in queue/ that have no specification
// anywhere back to the router. Only the scheduler calls it, between its own changes.
func (p *DeliveryQueue) RecoverMessages(names []string, now time.Time) []Recovered {
	var done report
	for _, name := range names {
		r, err := p.recoverQueued(name, now)
		done.add(Queue+"/"+name, r, err)
	}
	return done
}

// recoverQueued gives a message that has no specification anywhere back to the
// router. The order of the looks matters: a router that is between its two renames
// still has its work file; that is another's to decide; then transport/ is looked at
// last, so that a rename from router/.. to transport/ cannot slip between. So a living
// owner is no reason to leave the message: it may be the specification that somebody
// has removed to have the message routed again.
func (p *DeliveryQueue) recoverQueued(name string, now time.Time) (*Recovered, error) {
	if ok, err := p.exists(Transport + "/" + name); err != nil || ok {
		return nil, err
	}
	n, _ := ParseName(name)
	handed := n.Owner == 0 // by a foreign router, whose work file may have any name
	if !handed {
		alive, err := p.owners.Alive(n.Owner)
		if err != nil {
			return nil, err
		}
		handed = alive
	}
	if handed {
		info, err := p.StatMessage(name)
		if err != nil || apart(now, info.CTime) < foreignGrace {
			return nil, err
		}
	}
	if work, err := p.routers().findWork(n); err != nil || work != "" {
		return nil, err
	}
	if spec, err := p.tree(Transport).seek(n); err != nil || spec != "" {
		return nil, err
	}
	if err := p.requeue(name); err != nil {
		return nil, err
	}
	return &Recovered{Action: Rerouted, Name: Queue + "/" + name, Detail: "it has no work specification"}, nil
}

// recoverSpec looks at a specification whose message is not beside it.
func (p *DeliveryQueue) recoverSpec(name string) (*Recovered, error) {
	if ok, err := p.exists(Queue + "/" + name); err != nil || ok {
		return nil, err
	}
	n, _ := ParseName(name)
	rel, err := p.tree(Queue).seek(n)
	if err != nil {
		return nil, err
	}
	if rel == "" {
		return &Recovered{Action: Completed, Name: name, Detail: "its message is gone"}, nil
	}
	// Crash: see Rehash.
	if err := p.moveOwn(Transport+"/"+name, Transport+"/"+rel); err != nil {
		return nil, err
	}
	return &Recovered{Action: MoveEnded, Name: Transport + "/" + rel, Detail: "from " + name}, nil
}
