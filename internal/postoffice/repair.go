package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"zmailer/internal/disk/durable"
)

// Repair mends what recovery does not: names that are not the inode number, as after
// a copy or a restore, and what only an operator could have made. It works as a router
// does, under an owner number of its own: what it leaves when it dies is a claim or a
// hand-over of a dead owner, which any router takes up and which the next repair
// finishes (K7). Its methods may be called in any order.
type Repair struct {
	p       *PostOffice
	owner   *Owner
	release func() error // of the scheduler's lock; nil: a scheduler lives
}

// ErrBusy means that a live process works on what was to be mended.
var ErrBusy = errors.New("a live process has it")

// BeginRepair starts a repair. It takes the scheduler's lock if that is free, so that
// none starts meanwhile; Exclusive reports whether it did.
func (p *PostOffice) BeginRepair() (*Repair, error) {
	r := &Repair{p: p}
	release, err := p.Owners.Exclusive("scheduler")
	if err != nil && !errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("repair: %w", err)
	}
	r.release = release
	if r.owner, err = p.Owners.takeUnused("repair"); err != nil {
		if r.release != nil {
			err = errors.Join(err, r.release())
		}
		return nil, fmt.Errorf("repair: %w", err)
	}
	return r, nil
}

// Exclusive reports whether no scheduler runs, so queue/ and transport/ may be changed.
func (r *Repair) Exclusive() bool { return r.release != nil }

// End gives the lock and the owner number back.
func (r *Repair) End() error {
	err := r.owner.Release()
	if r.release != nil {
		err = errors.Join(err, r.release())
	}
	return err
}

// RenumberQueued names a message in queue/ and its work specification after the
// message's inode number, at the configured hash depth. message is its path below the
// postoffice, spec that of the specification: in transport/, or router/..I-P of a
// hand-over that a dead router did not finish. rewrite gives the specification's
// bytes for the new name. to is that name below both directories. ErrBusy: an agent
// has the specification. ErrGone: a file went away.
func (r *Repair) RenumberQueued(message, spec string, rewrite func(spec []byte, name string) ([]byte, error)) (to string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("renumber %s: %w", message, err)
		}
	}()
	p := r.p
	if r.release == nil {
		return "", ErrBusy
	}
	info, err := r.statRegular(message)
	if err != nil {
		return "", err
	}
	// No agent may set a lock in what is about to be replaced.
	old, _, err := p.openFree(spec, durable.File.TryLock)
	if err == nil && old == nil {
		err = ErrBusy
	}
	if err != nil {
		return "", err
	}
	// Opened for reading: close has nothing to lose. The lock is held to the end.
	defer func() { _ = old.Close() }()
	bytes, err := readFile(old)
	if err != nil {
		return "", err
	}
	name := Name{Ino: info.Ino, Owner: r.owner.n}
	if bytes, err = rewrite(bytes, name.String()); err != nil {
		return "", err
	}
	if was, ok := ParseName(message); ok {
		p.renumber(info, was.Ino)
	}
	to = p.place(name.String())
	work := p.routers().first() + "/.." + name.String()
	if err := r.writeNew(work, bytes); err != nil {
		return "", err
	}
	// Crash: message and work file are a hand-over that any router finishes; the old
	// specification has lost its message and names the recipients as they were.
	if err := p.moveOwn(message, Queue+"/"+to); err != nil {
		return "", errors.Join(err, p.remove(work))
	}
	if err := p.syncDir(dirOf(Queue + "/" + to)); err != nil {
		return "", err
	}
	// Crash: as before, or without the old specification, which nothing needs now.
	if err := p.remove(spec); err != nil {
		return "", err
	}
	// Crash: the hand-over, or both in place under the new number.
	if err := p.moveOwn(work, Transport+"/"+to); err != nil {
		return "", err
	}
	return to, p.syncDir(dirOf(Transport + "/" + to))
}

// statRegular describes a path that must be a regular file.
func (r *Repair) statRegular(name string) (durable.Info, error) {
	info, err := r.p.fs.Stat(name)
	if err == nil && !info.Mode.IsRegular() {
		err = errors.New("not a regular file")
	}
	return info, gone(err)
}

func readFile(f durable.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, info.Size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return nil, err
	}
	return b, nil
}

// writeNew makes a file with this content, durable with its name.
func (r *Repair) writeNew(name string, content []byte) error {
	// Crash: a work file whose message is not in queue/, which is swept.
	f, err := r.p.fs.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = r.p.syncDir(dirOf(name))
	}
	if err != nil {
		return errors.Join(err, r.p.remove(name))
	}
	return nil
}

// HandOver puts router/..I-P of a dead router into transport/ beside its message, rel
// below queue/.
func (r *Repair) HandOver(work, rel string) error {
	// Crash: as before, or handed over.
	if err := r.p.moveOwn(work, Transport+"/"+rel); err != nil {
		return fmt.Errorf("hand over %s: %w", work, err)
	}
	return nil
}

// Requeue gives a message, wherever it is, to the routers under its inode number. It
// is claimed on the way, so that names which go round in a circle do not meet: Place
// then gives the claim back.
func (r *Repair) Requeue(name string) (claim string, err error) {
	if r.release == nil && strings.HasPrefix(name, Queue+"/") {
		return "", fmt.Errorf("requeue %s: %w", name, ErrBusy)
	}
	info, err := r.statRegular(name)
	if err == nil {
		claim = r.p.routers().first() + "/" + Name{Ino: info.Ino, Owner: r.owner.n}.String()
		if was, ok := ParseName(name); ok {
			r.p.renumber(info, was.Ino)
		}
		// Crash: the old name, or a dead owner's claim that a router gives back.
		err = r.p.moveOwn(name, claim)
	}
	if err != nil {
		return "", fmt.Errorf("requeue %s: %w", name, err)
	}
	return claim, nil
}

// Drop removes a specification or work file that another one has replaced, or that
// was never finished.
func (r *Repair) Drop(name string) error {
	if r.release == nil && strings.HasPrefix(name, Transport+"/") {
		return fmt.Errorf("drop %s: %w", name, ErrBusy)
	}
	// Crash: there or not; a message without it goes back to router/.
	if err := r.p.remove(name); err != nil {
		return fmt.Errorf("drop %s: %w", name, err)
	}
	return nil
}

// Unclaim gives a claim of Requeue back as router/I.
func (r *Repair) Unclaim(claim string) error {
	n, ok := ParseName(claim)
	if !ok {
		return fmt.Errorf("give back %s: not a claim", claim)
	}
	// Crash: the claim or router/I.
	if _, err := r.p.moveInMine(claim, r.p.routers().first(), n.Ino, ""); err != nil {
		return fmt.Errorf("give back %s: %w", claim, err)
	}
	return nil
}

// Renumbered ends a name that RenumberAside could not give its final form yet.
const Renumbered = ".renumbered"

// RenumberAside names a file in deferred/, freezer/ or postman/ after its inode
// number; what follows the number stays. If another file has that name still,
// it gets Renumbered behind it, and again is true: call it again when the others are
// renamed.
func (r *Repair) RenumberAside(name string) (to string, again bool, err error) {
	info, err := r.statRegular(name)
	if err != nil {
		return "", false, fmt.Errorf("renumber %s: %w", name, err)
	}
	base := strings.TrimSuffix(path.Base(name), Renumbered)
	was, numbered := asideNumber(base)
	to = path.Dir(name) + "/" + inodeName(info.Ino) + strings.TrimLeft(base, "0123456789")
	if to == name {
		return to, false, nil
	}
	if numbered {
		r.p.renumber(info, was)
	}
	// Crash: the old name, the new one, or one that the next repair takes for it.
	err = r.p.move(name, to)
	if errors.Is(err, ErrOccupied) {
		again = true
		if to += Renumbered; to == name {
			return to, again, nil
		}
		err = r.p.move(name, to)
	}
	if err != nil {
		return "", false, fmt.Errorf("renumber %s: %w", name, err)
	}
	if numbered {
		r.p.Aside.carryReasons(path.Dir(name), was, IDOf(info))
	}
	return to, again, nil
}

// MarkDead makes a file in owners/ for a number that has none, so that whatever bears it
// counts as a dead owner's and is taken over, and not as that of a process which
// happens to have the pid.
func (r *Repair) MarkDead(n int) error {
	f, err := r.p.fs.Open(ownerFile(n), os.O_WRONLY|os.O_CREATE|os.O_EXCL, durable.LockMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		// Crash: an empty file says the same.
		_, err = f.Write(fmt.Appendf(nil, "dead, by repair\n"))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("mark owner %d: %w", n, err)
	}
	return nil
}

// SetMode gives a directory of the postoffice, or a hash directory in one, the mode it
// is made with.
func (r *Repair) SetMode(dir string) error {
	top, _, _ := strings.Cut(dir, "/")
	if _, _, ok := Mode(top); !ok {
		return fmt.Errorf("set mode of %s: no directory of a postoffice", dir)
	}
	mode := r.p.ModeOf(top)
	if top != dir {
		mode = modeOfHash
	}
	if err := r.p.setMode(dir, mode); err != nil {
		return fmt.Errorf("set mode of %s: %w", dir, err)
	}
	return nil
}
