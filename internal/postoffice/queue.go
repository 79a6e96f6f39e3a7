package postoffice

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"zmailer/internal/disk/durable"
)

// DeliveryQueue is queue/ and transport/: messages that are routed, and their work
// specifications.
type DeliveryQueue struct {
	*spool
	owners *OwnerTable
}

// OpenSpec opens transport/name. ErrGone: it was finished or moved.
func (p *DeliveryQueue) Open(name string) (*Spec, error) {
	return openSpecAt(p.spool, Transport+"/"+name, name)
}

// OpenMessage opens queue/name. ErrGone: there is none.
func (p *DeliveryQueue) OpenMessage(name string) (durable.File, durable.Info, error) {
	return openMessage(p.spool, name)
}

func openMessage(p *spool, name string) (durable.File, durable.Info, error) {
	f, err := p.openRead(Queue + "/" + name)
	if err != nil {
		return nil, durable.Info{}, fmt.Errorf("open message %s: %w", name, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, durable.Info{}, errors.Join(fmt.Errorf("open message %s: %w", name, err), f.Close())
	}
	return f, info, nil
}

// StatMessage describes queue/name. ErrGone: there is none.
func (p *DeliveryQueue) StatMessage(name string) (durable.Info, error) {
	info, err := p.fs.Stat(Queue + "/" + name)
	return info, gone(err)
}

// List calls fn for every specification's name below transport/, hashed or not, until fn
// errs.
func (p *DeliveryQueue) List(fn func(name string) error) error {
	return p.tree(Transport).list(fn, nil)
}

// ListMessages is List for queue/.
func (p *DeliveryQueue) ListMessages(fn func(name string) error) error {
	return p.tree(Queue).list(fn, nil)
}

// ListTransportAndNotes is ListTransport, and calls note with the names that may be those of
// notes (ParseNote) or of copies that were left (ParseCopy).
func (p *DeliveryQueue) ListWithNotes(fn, note func(name string) error) error {
	return p.tree(Transport).list(fn, note)
}

// HashDirs calls fn for every hash directory in a directory below transport/, "" for
// itself.
func (p *DeliveryQueue) HashDirs(sub string, fn func(name string)) error {
	return durable.ReadDirFunc(p.fs, path.Join(Transport, sub), func(part []durable.Entry) error {
		for _, e := range part {
			if e.Type.IsDir() && isHashDir(e.Name) {
				fn(e.Name)
			}
		}
		return nil
	})
}

// Place returns where a specification of that name belongs at the configured depth.
func (p *DeliveryQueue) Place(name string) string { return p.place(name) }

func (p *spool) place(name string) string {
	n, ok := ParseName(name)
	if !ok {
		return name
	}
	return p.placeOf(n)
}

// Rehash moves message and specification to their place at the configured depth
// and returns the new name (M21). Only the scheduler calls it, for a message that
// no agent works on.
func (p *DeliveryQueue) Rehash(name string) (string, error) {
	to := p.place(name)
	if to == name {
		return name, nil
	}
	// A copy that somebody has put there must not part the message from its specification.
	if taken, err := p.exists(Transport + "/" + to); err != nil || taken {
		return name, fmt.Errorf("rehash %s: %s: %w", name, to, cmp.Or(err, ErrOccupied))
	}
	// Crash: the message is in its new place, the specification in its old one;
	// DeliveryQueue.Recover looks for the message at every depth and finishes the move.
	if err := p.moveOwn(Queue+"/"+name, Queue+"/"+to); err != nil && !errors.Is(err, ErrGone) {
		return name, fmt.Errorf("rehash %s: %w", name, err)
	}
	if err := p.moveOwn(Transport+"/"+name, Transport+"/"+to); err != nil {
		return name, fmt.Errorf("rehash %s: %w", name, err)
	}
	return to, nil
}

// Reunite looks for the message of a specification that is alone, at every hash
// depth, and moves the specification to it. It gives the new name. ErrGone: there is no
// such message. ErrOccupied: the message has another specification beside it.
func (p *DeliveryQueue) Reunite(name string) (string, error) {
	n, _ := ParseName(name)
	rel, err := p.tree(Queue).seek(n)
	if err != nil {
		return "", err
	}
	if rel == "" || rel == name {
		return "", fmt.Errorf("find the message of %s: %w", name, ErrGone)
	}
	// Crash: see Rehash.
	if err := p.moveOwn(Transport+"/"+name, Transport+"/"+rel); err != nil {
		return "", fmt.Errorf("move %s to its message: %w", name, err)
	}
	return rel, nil
}

// Finish removes a message whose recipients are all final and reported.
func (p *DeliveryQueue) Finish(name string) error { return p.finish(name, false) }

// FinishOld is Finish for a message of which something was delivered long ago: where
// names keep no order, a loss of power could leave it without its specification, to be
// routed again to all its recipients.
func (p *DeliveryQueue) FinishOld(name string) error { return p.finish(name, true) }

func (p *DeliveryQueue) finish(name string, inOrder bool) error {
	// The open file keeps the inode number from being given to a new message, whose
	// specification would get the name that is still to be removed.
	f, err := p.openRead(Queue + "/" + name)
	if err != nil && !errors.Is(err, ErrGone) {
		return fmt.Errorf("finish %s: %w", name, err)
	}
	if f != nil {
		// Opened for reading: close has nothing to lose.
		defer func() { _ = f.Close() }()
	}
	// Crash: the specification alone, which says that the message was finishing.
	if err := p.remove(Queue + "/" + name); err != nil {
		return fmt.Errorf("finish %s: %w", name, err)
	}
	if inOrder {
		// Crash: as before, and the specification cannot go first.
		if err := p.syncDir(dirOf(Queue + "/" + name)); err != nil {
			return fmt.Errorf("finish %s: %w", name, err)
		}
	}
	// Crash: nothing is left.
	if err := p.remove(Transport + "/" + name); err != nil {
		return fmt.Errorf("finish %s: %w", name, err)
	}
	return nil
}

// Reroute gives a message whose specification is not complete back to the router.
func (p *DeliveryQueue) Reroute(name string) error {
	// Crash: queue/ alone, which goes back to router/ too.
	if err := p.remove(Transport + "/" + name); err != nil {
		return fmt.Errorf("route %s again: %w", name, err)
	}
	return p.requeue(name)
}

func (p *spool) requeue(name string) error {
	n, _ := ParseName(name)
	if _, err := p.moveIn(Queue+"/"+name, p.routers().first(), n.Ino, ""); err != nil {
		return fmt.Errorf("route %s again: %w", name, err)
	}
	return nil
}

// CopyToPostman links queue/name as postman/<ino>_<why>, for the postmaster.
func (p *DeliveryQueue) CopyToPostman(name, why string) error {
	n, _ := ParseName(name)
	return p.copyToPostman(Queue+"/"+name, n, why)
}

// notePrefix begins the name of an empty file in transport/, beside the specification
// that it names: an operator's command has changed that, and the scheduler is to read it
// again. The scheduler removes the note then.
const notePrefix = "look."

// NoteChange asks the scheduler to read transport/name again.
func (p *DeliveryQueue) NoteChange(name string) error {
	// Crash: with the note the scheduler looks now, without it when an attempt for the
	// message finds that it has changed.
	f, err := p.fs.Open(path.Join(Transport, path.Dir(name), notePrefix+path.Base(name)), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("note a change of %s: %w", name, gone(err))
	}
	return f.Close()
}

// ParseNote returns the name, below transport/, of the specification that a note there
// is about. ok is false for names that are no notes.
func ParseNote(name string) (about string, ok bool) {
	return aboutSpec(notePrefix, name)
}

// DropNote removes the note about transport/name, if there is one.
func (p *DeliveryQueue) DropNote(name string) error {
	// Crash: it is looked at once more.
	if err := p.remove(path.Join(Transport, path.Dir(name), notePrefix+path.Base(name))); err != nil {
		return fmt.Errorf("drop the note about %s: %w", name, err)
	}
	return nil
}

// AskStart asks the scheduler to try a host now, whatever it waits for, by a file in
// transport/ with a T line and no recipients (M14, docs/workspec.md). It is for who
// cannot reach the scheduler's query socket: one that does not run finds the file when
// it starts. host is one word.
func (p *DeliveryQueue) AskStart(host string) error {
	if host == "" || strings.ContainsAny(host, " \t\r\n\x00") {
		return fmt.Errorf("ask for the start of %q: it is not one word", host)
	}
	if err := p.askStart(host); err != nil {
		return fmt.Errorf("ask for the start of %s: %w", host, err)
	}
	return nil
}

func (p *DeliveryQueue) askStart(host string) error {
	name := draftName(Public, "start")
	// Crash: a draft, swept when it is old; no submitter was answered that the host is started.
	f, err := p.fs.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte("T " + host + "\n"))
	info, serr := f.Stat()
	if err = errors.Join(err, serr, f.Close()); err == nil {
		// Crash: as before, or the whole request. It is not synced: what it asks for is
		// asked again.
		err = p.moveMine(name, Transport+"/"+inodeName(info.Ino))
	}
	if err != nil {
		return errors.Join(err, p.remove(name))
	}
	return nil
}

// IsGone reports whether there is no specification of that name.
func (p *DeliveryQueue) IsGone(name string) (bool, error) {
	there, err := p.exists(Transport + "/" + name)
	if err != nil {
		return false, fmt.Errorf("look for specification %s: %w", name, err)
	}
	return !there, nil
}
