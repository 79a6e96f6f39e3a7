package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
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

// RouterRecovery is how RecoverRouter decides.
type RouterRecovery struct {
	// Complete tells whether a work file is a whole specification.
	Complete func(spec []byte) bool
	Now      time.Time
	// Tries is how many routers a message may end before it is put into postman/; 0:
	// DefaultTries.
	Tries int
}

// RecoverRouter takes up what dead submitters and dead routers left: in public/, in
// claims, work files and markers. Any number of routers may call it at once; it goes
// on after an error with one file and returns the first error with a directory.
func (p *PostOffice) RecoverRouter(c RouterRecovery) ([]Recovered, error) {
	if c.Tries <= 0 {
		c.Tries = DefaultTries
	}
	var done []Recovered
	err := errors.Join(p.recoverPublic(&done), p.recoverClaims(c, &done))
	return done, err
}

// recoverPublic moves whole messages of dead daemons to router/. PickUp copies those of
// users.
func (p *PostOffice) recoverPublic(done *[]Recovered) error {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	for _, e := range entries {
		name := Public + "/" + e.Name
		info, err := p.fs.Stat(name)
		if err != nil || info.Mode&0o100 == 0 || info.Mode&mark == 0 || p.believe(name, info) != nil {
			continue
		}
		r, err := p.acceptLeft(name)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Action: Unreadable, Name: name, Detail: err.Error()}
		}
		if r != nil {
			*done = append(*done, *r)
		}
	}
	return nil
}

func (p *PostOffice) acceptLeft(name string) (*Recovered, error) {
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	free, err := f.TryLock()
	if err != nil || !free {
		return nil, err // its writer lives
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	// The name may be another file's by now.
	if err := p.believe(name, info); err != nil || info.Mode&mark == 0 {
		return nil, err
	}
	ok, err := whole(f)
	if err != nil {
		return nil, err
	}
	if !ok {
		return &Recovered{Action: Incomplete, Name: name, Detail: fmt.Sprintf("%d bytes, not what its first line says; its submitter was never answered", info.Size)}, nil
	}
	// Crash: a whole file or one that has lost bytes, here still. Its writer may have
	// died before its own fsync; in router/ nobody would expect that.
	if err := f.Sync(); err != nil {
		return nil, err
	}
	// Crash: public/ or router/, see Commit.
	to, err := p.moveIn(name, p.RouterDir(), info.Ino, "")
	if err != nil {
		return nil, err
	}
	return &Recovered{Action: TakenIn, Name: to, Detail: "from " + name}, nil
}

// recoverClaims looks at the router directories for claims and work files of dead
// owners, and for markers of messages that are gone.
func (p *PostOffice) recoverClaims(c RouterRecovery, done *[]Recovered) error {
	dirs, err := p.RouterDirs()
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	dead := p.deadOwners()
	for _, dir := range dirs {
		err = errors.Join(err, p.recoverClaimsIn(dir, dead, c, done))
	}
	return err
}

func (p *PostOffice) recoverClaimsIn(dir string, dead func(n int) bool, c RouterRecovery, done *[]Recovered) error {
	entries, err := p.fs.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	for _, e := range entries {
		r, err := p.recoverEntry(dir, e, entries, dead, c)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Action: Unreadable, Name: dir + "/" + e.Name, Detail: err.Error()}
		}
		if r != nil {
			*done = append(*done, *r)
		}
	}
	return nil
}

// recoverEntry looks at one name in a router directory.
func (p *PostOffice) recoverEntry(dir string, e durable.Entry, all []durable.Entry, dead func(n int) bool, c RouterRecovery) (*Recovered, error) {
	if ino, ok := TriesMarker(e.Name); ok {
		return p.sweepTries(dir, ino, all)
	}
	if ino, stamp, ok := parsePickup(e.Name); ok {
		return p.recoverPickup(dir, e.Name, ino, stamp)
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
	return p.giveBack(dir, n, c.Now, c.Tries)
}

// recoverForeign puts away what is no regular file and a user's, from when an earlier version
// let users make names there.
func (p *PostOffice) recoverForeign(name string) (*Recovered, error) {
	info, err := p.fs.Stat(name)
	if err != nil || info.Mode.IsRegular() || p.trusts(info.UID) {
		return nil, p.gone(err)
	}
	to, err := p.Quarantine(name, "foreign")
	if err != nil {
		return nil, err
	}
	why := &DisbeliefError{Name: name, UID: info.UID, Nlink: info.Nlink, Mode: info.Mode}
	return &Recovered{Action: Quarantined, Name: to, Detail: why.Error()}, nil
}

// deadOwners asks for each owner once. One that cannot be looked at counts as alive.
func (p *PostOffice) deadOwners() func(n int) bool {
	known := map[int]bool{}
	return func(n int) bool {
		dead, ok := known[n]
		if !ok {
			alive, err := p.OwnerAlive(n)
			dead = err == nil && !alive
			known[n] = dead
		}
		return dead
	}
}

// recoverWork decides about router/..I-P of a dead owner.
func (p *PostOffice) recoverWork(dir string, n Name, complete func([]byte) bool) (*Recovered, error) {
	work := dir + "/.." + n.String()
	claimed, err := p.exists(dir + "/" + n.String())
	if err != nil || claimed {
		return nil, err // the claim is given back first; next time
	}
	rel, err := p.findQueued(n)
	if err != nil {
		return nil, err
	}
	if rel == "" {
		// The message went back to router/ or is done: this is a leftover.
		// Crash: there or not; nothing needs it.
		return &Recovered{Action: Swept, Name: work, Detail: "its message is not in queue/"}, p.remove(work)
	}
	// Beside a specification it is a leftover: the message must not be routed once more.
	if spec, err := p.seek(Transport, n); err != nil {
		return nil, err
	} else if spec != "" {
		// Crash: there or not; nothing needs it.
		return &Recovered{Action: Swept, Name: work, Detail: "its message has a specification"}, p.remove(work)
	}
	b, err := p.readWork(work)
	if disbelief := (*DisbeliefError)(nil); errors.As(err, &disbelief) {
		// The next look finds the message without a work file and routes it again.
		to, qerr := p.Quarantine(work, "foreign")
		return &Recovered{Action: Quarantined, Name: to, Detail: err.Error()}, qerr
	}
	if err != nil {
		return nil, err
	}
	if complete(b) {
		// Crash: as before, or handed over.
		if err := p.move(work, Transport+"/"+rel); err != nil {
			return nil, err
		}
		return &Recovered{Action: HandedOver, Name: Transport + "/" + rel, Detail: "owner " + strconv.Itoa(n.Owner) + " is dead"}, nil
	}
	if err := p.requeue(rel); err != nil {
		return nil, err
	}
	return &Recovered{Action: Rerouted, Name: Queue + "/" + rel, Detail: "its work file is not complete"}, p.remove(work)
}

// findQueued looks for a message in queue/; "" if it is not there.
func (p *PostOffice) findQueued(n Name) (string, error) { return p.seek(Queue, n) }

// readWork reads a work file that is to be believed.
func (p *PostOffice) readWork(name string) ([]byte, error) {
	f, err := p.openRead(name)
	if errors.Is(err, unix.ELOOP) {
		return nil, &DisbeliefError{Name: name, Mode: fs.ModeSymlink}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = p.believe(name, info)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

func (p *PostOffice) readAll(name string) ([]byte, error) {
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// readInto is readAll that uses the memory of b, which grows when it is too small.
func (p *PostOffice) readInto(b []byte, name string) ([]byte, error) {
	f, err := p.openRead(name)
	if err != nil {
		return b, err
	}
	defer f.Close()
	for b = b[:0]; ; {
		b = slices.Grow(b, 4<<10)
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// RecoverQueue takes up what an interrupted hand-over, rehash or finish left in
// queue/ and transport/. Only the scheduler calls it, between its own changes.
// Specifications whose message is gone are returned as Completed with their name
// below transport/ for the caller to look at and Finish.
func (p *PostOffice) RecoverQueue(now time.Time) ([]Recovered, error) {
	var done []Recovered
	err := p.ListQueue(func(name string) error {
		done = append(done, p.RecoverMessages([]string{name}, now)...)
		return nil
	})
	if err != nil {
		return done, err
	}
	err = p.ListTransport(func(name string) error {
		r, err := p.recoverSpec(name)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Action: Unreadable, Name: Transport + "/" + name, Detail: err.Error()}
		}
		if r != nil {
			done = append(done, *r)
		}
		return nil
	})
	return done, err
}

// RecoverMessages gives those of some messages in queue/ that have no specification
// anywhere back to the router. Only the scheduler calls it, between its own changes.
func (p *PostOffice) RecoverMessages(names []string, now time.Time) (done []Recovered) {
	for _, name := range names {
		r, err := p.recoverQueued(name, now)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Action: Unreadable, Name: Queue + "/" + name, Detail: err.Error()}
		}
		if r != nil {
			done = append(done, *r)
		}
	}
	return done
}

// recoverQueued gives a message that has no specification anywhere back to the
// router. The order of the looks matters: a router that is between its two renames
// still has its work file; that is another's to decide; then transport/ is looked at
// last, so that a rename from router/.. to transport/ cannot slip between. So a living
// owner is no reason to leave the message: it may be the specification that somebody
// has removed to have the message routed again.
func (p *PostOffice) recoverQueued(name string, now time.Time) (*Recovered, error) {
	if ok, err := p.exists(Transport + "/" + name); err != nil || ok {
		return nil, err
	}
	n, _ := ParseName(name)
	handed := n.Owner == 0 // by a foreign router, whose work file may have any name
	if !handed {
		alive, err := p.OwnerAlive(n.Owner)
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
	if work, err := p.findWork(n); err != nil || work != "" {
		return nil, err
	}
	if spec, err := p.seek(Transport, n); err != nil || spec != "" {
		return nil, err
	}
	if err := p.requeue(name); err != nil {
		return nil, err
	}
	return &Recovered{Action: Rerouted, Name: Queue + "/" + name, Detail: "it has no work specification"}, nil
}

// apart is the time between two times. A file's time that is far ahead of the clock is
// from before the clock was set back, and no younger than one that is as far behind.
func apart(a, b time.Time) time.Duration { return a.Sub(b).Abs() }

// recoverSpec looks at a specification whose message is not beside it.
func (p *PostOffice) recoverSpec(name string) (*Recovered, error) {
	if ok, err := p.exists(Queue + "/" + name); err != nil || ok {
		return nil, err
	}
	n, _ := ParseName(name)
	rel, err := p.findQueued(n)
	if err != nil {
		return nil, err
	}
	if rel == "" {
		return &Recovered{Action: Completed, Name: name, Detail: "its message is gone"}, nil
	}
	// Crash: see Rehash.
	if err := p.move(Transport+"/"+name, Transport+"/"+rel); err != nil {
		return nil, err
	}
	return &Recovered{Action: MoveEnded, Name: Transport + "/" + rel, Detail: "from " + name}, nil
}
