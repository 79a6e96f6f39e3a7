package postoffice

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"
)

// Recovered is one thing that recovery did; each is to be logged.
type Recovered struct {
	Action string // constant word: see docs/log.md "recovered"
	Name   string // path below the postoffice
	Detail string
}

// Actions of Recovered.Action.
const (
	TakenIn    = "accepted"    // a dead submitter's whole message moved to router/
	Unclaimed  = "unclaimed"   // a dead router's claim given back
	HandedOver = "handed-over" // a dead router's second rename done
	Rerouted   = "rerouted"    // a message without specification given back to router/
	Swept      = "swept"       // a leftover work file or draft removed
	Incomplete = "incomplete"  // a message in public/ that lost bytes; left there
	Completed  = "completed"   // a specification whose message is gone
	MoveEnded  = "rehashed"    // an interrupted change of hash depth finished
	Unreadable = "unreadable"  // an error; the file is left alone
)

// foreignGrace is how long a name without owner may stay in one of the two states
// that only a running router makes.
const foreignGrace = time.Minute

// RecoverRouter takes up what dead submitters and dead routers left: in public/, in
// claims and in work files. complete tells whether a work file is a whole
// specification. Any number of routers may call it at once; it goes on after an
// error with one file and returns the first error with a directory.
func (p *PostOffice) RecoverRouter(complete func(spec []byte) bool) ([]Recovered, error) {
	var done []Recovered
	err := errors.Join(p.recoverPublic(&done), p.recoverClaims(complete, &done))
	return done, err
}

// recoverPublic moves whole messages of dead submitters to router/.
func (p *PostOffice) recoverPublic(done *[]Recovered) error {
	entries, err := p.fs.ReadDir(Public)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	for _, e := range entries {
		name := Public + "/" + e.Name
		info, err := p.fs.Stat(name)
		if err != nil || !info.Mode.IsRegular() || info.Mode&0o100 == 0 {
			continue
		}
		r, err := p.acceptLeft(name)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Unreadable, name, err.Error()}
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
	ok, err := whole(f)
	if err != nil {
		return nil, err
	}
	if !ok {
		return &Recovered{Incomplete, name, fmt.Sprintf("%d bytes, not what its first line says; its submitter was never answered", info.Size)}, nil
	}
	to := Router + "/" + strconv.FormatUint(info.Ino, 10)
	// Crash: public/ or router/, see Commit.
	if err := p.move(name, to); err != nil {
		return nil, err
	}
	return &Recovered{TakenIn, to, "from " + name}, nil
}

// recoverClaims looks at router/ for claims and work files of dead owners.
func (p *PostOffice) recoverClaims(complete func([]byte) bool, done *[]Recovered) error {
	entries, err := p.fs.ReadDir(Router)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	alive := map[int]bool{}
	dead := func(n Name) bool {
		a, known := alive[n.Owner]
		if !known {
			var err error
			if a, err = p.OwnerAlive(n.Owner); err != nil {
				a = true
			}
			alive[n.Owner] = a
		}
		return !a
	}
	for _, e := range entries {
		base, work := strings.CutPrefix(e.Name, "..")
		n, ok := ParseName(base)
		if !ok || n.Owner == 0 || !dead(n) {
			continue
		}
		var r *Recovered
		var err error
		if work {
			r, err = p.recoverWork(n, complete)
		} else {
			r, err = p.unclaim(n)
		}
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Unreadable, Router + "/" + e.Name, err.Error()}
		}
		if r != nil {
			*done = append(*done, *r)
		}
	}
	return nil
}

// unclaim gives router/I-P back as router/I: it is routed again from the start.
func (p *PostOffice) unclaim(n Name) (*Recovered, error) {
	from := Router + "/" + n.String()
	to := Router + "/" + strconv.FormatUint(n.Ino, 10)
	// Crash: stale claim or router/I. The work file stays for recoverWork.
	if err := p.move(from, to); err != nil {
		return nil, err
	}
	return &Recovered{Unclaimed, to, "owner " + strconv.Itoa(n.Owner) + " is dead"}, nil
}

// recoverWork decides about router/..I-P of a dead owner.
func (p *PostOffice) recoverWork(n Name, complete func([]byte) bool) (*Recovered, error) {
	work := Router + "/.." + n.String()
	claimed, err := p.exists(Router + "/" + n.String())
	if err != nil || claimed {
		return nil, err // the claim is given back first; next time
	}
	rel, err := p.findQueued(n)
	if err != nil {
		return nil, err
	}
	if rel == "" {
		// The message went back to router/ or is done: this is a leftover.
		return &Recovered{Swept, work, "its message is not in queue/"}, p.remove(work)
	}
	b, err := p.readAll(work)
	if err != nil {
		return nil, err
	}
	if complete(b) {
		// Crash: as before, or handed over.
		if err := p.move(work, Transport+"/"+rel); err != nil {
			return nil, err
		}
		return &Recovered{HandedOver, Transport + "/" + rel, "owner " + strconv.Itoa(n.Owner) + " is dead"}, nil
	}
	if err := p.requeue(rel); err != nil {
		return nil, err
	}
	return &Recovered{Rerouted, Queue + "/" + rel, "its work file is not complete"}, p.remove(work)
}

// findQueued looks for a message in queue/ at every depth; "" if it is not there.
func (p *PostOffice) findQueued(n Name) (string, error) {
	for levels := 0; levels <= 2; levels++ {
		rel := n.String()
		if h := HashDir(n.Ino, levels); h != "" {
			rel = h + "/" + rel
		}
		ok, err := p.exists(Queue + "/" + rel)
		if err != nil {
			return "", err
		}
		if ok {
			return rel, nil
		}
	}
	return "", nil
}

func (p *PostOffice) readAll(name string) ([]byte, error) {
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// RecoverQueue takes up what an interrupted hand-over, rehash or finish left in
// queue/ and transport/. Only the scheduler calls it, between its own changes.
// Specifications whose message is gone are returned as Completed with their name
// below transport/ for the caller to look at and Finish.
func (p *PostOffice) RecoverQueue(now time.Time) ([]Recovered, error) {
	var done []Recovered
	err := p.ListQueue(func(name string) error {
		r, err := p.recoverQueued(name, now)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Unreadable, Queue + "/" + name, err.Error()}
		}
		if r != nil {
			done = append(done, *r)
		}
		return nil
	})
	if err != nil {
		return done, err
	}
	err = p.ListTransport(func(name string) error {
		r, err := p.recoverSpec(name)
		if err != nil && !errors.Is(err, ErrGone) {
			r = &Recovered{Unreadable, Transport + "/" + name, err.Error()}
		}
		if r != nil {
			done = append(done, *r)
		}
		return nil
	})
	return done, err
}

// recoverQueued gives a message that has no specification anywhere back to the
// router. The order of the looks matters: a live router is between its two renames;
// a work file is another's to decide; then transport/ is looked at last, so that a
// rename from router/.. to transport/ cannot slip between.
func (p *PostOffice) recoverQueued(name string, now time.Time) (*Recovered, error) {
	if ok, err := p.exists(Transport + "/" + name); err != nil || ok {
		return nil, err
	}
	n, _ := ParseName(name)
	if n.Owner != 0 {
		if alive, err := p.OwnerAlive(n.Owner); err != nil || alive {
			return nil, err
		}
	} else if info, err := p.StatMessage(name); err != nil || now.Sub(info.CTime) < foreignGrace {
		return nil, err
	}
	for _, other := range p.places(n) {
		if ok, err := p.exists(other); err != nil || ok {
			return nil, err
		}
	}
	if err := p.requeue(name); err != nil {
		return nil, err
	}
	return &Recovered{Rerouted, Queue + "/" + name, "it has no work specification"}, nil
}

// places are the names that a message's specification may have, the work file first.
func (p *PostOffice) places(n Name) []string {
	list := []string{Router + "/.." + n.String()}
	for levels := 0; levels <= 2; levels++ {
		list = append(list, path.Join(Transport, HashDir(n.Ino, levels), n.String()))
	}
	return list
}

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
		return &Recovered{Completed, name, "its message is gone"}, nil
	}
	// Crash: see Rehash.
	if err := p.move(Transport+"/"+name, Transport+"/"+rel); err != nil {
		return nil, err
	}
	return &Recovered{MoveEnded, Transport + "/" + rel, "from " + name}, nil
}
