package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
)

// Last parts of names in removed/. A message is there as SPOOLID.queue with its
// specification SPOOLID.spec, or, if it was not routed yet, as SPOOLID.router,
// SPOOLID.deferred.WHY, SPOOLID.freezer.CAUSE, SPOOLID.postman or
// SPOOLID.postman.WHY.
const (
	removedMessage = "queue"
	removedSpec    = "spec"
)

// RemovedMessage is a message in removed/.
type RemovedMessage struct {
	ID   SpoolID
	Name string // of the message in removed/
	From string // the directory that it was in
	Why  string // that stood in its name there
	Spec string // name of its specification in removed/, "" if it was not routed
	Info durable.Info
	// Since is when it was removed, by the change times of its files.
	Since time.Time
}

// RemovedArea is removed/. A message that an operator removed is kept there for a while, so
// that it can be put back.
type RemovedArea struct{ *spool }

// Shelve puts a message away that is finished because an operator removed its last open
// recipients: queue/name and transport/name become removed/ID.queue and
// removed/ID.spec. The caller holds the specification's flock. It may be called again
// after an error, and for a specification whose message is put away already. found is
// false, and nothing is changed, if there is no message to keep.
func (p *RemovedArea) Shelve(name string, id SpoolID) (found bool, err error) {
	if err := p.ensure(Removed); err != nil {
		return false, fmt.Errorf("put away %s: %w", name, err)
	}
	kept := removedName(id, removedMessage)
	// Crash: the specification alone. All of its recipients are final and its history
	// says removed, so the next look puts it away too.
	err = p.moveOwn(Queue+"/"+name, kept)
	if errors.Is(err, ErrGone) {
		there, serr := p.exists(kept)
		if serr != nil || !there {
			return false, serr
		}
		err = nil
	}
	if err == nil {
		// Without this a power loss may bring queue/name back and not transport/name, and
		// the message would be routed and delivered.
		err = p.syncBoth(dirOf(Queue+"/"+name), Removed)
	}
	if err == nil {
		// Crash: as before, or both are in removed/.
		err = p.moveOwn(Transport+"/"+name, removedName(id, removedSpec))
	}
	if err == nil {
		err = p.syncDirs(dirOf(Transport+"/"+name), Removed)
	}
	if err != nil {
		return true, fmt.Errorf("put away %s: %w", name, err)
	}
	return true, nil
}

// Unshelve puts a message back that Shelve put away, under the name in queue/ and
// transport/ that belongs to base, the last element of its former name, and gives
// that. Its specification must have open recipients by now.
func (p *RemovedArea) Unshelve(id SpoolID, base string) (name string, err error) {
	name = p.place(base)
	// Crash: the specification alone, with open recipients and a history that says
	// restored: the scheduler takes its message out of removed/, as UnshelveMessage does.
	if err := p.moveOwn(removedName(id, removedSpec), Transport+"/"+name); err != nil {
		return "", fmt.Errorf("put back %s: %w", id, err)
	}
	// The message must not be back in queue/ without it: it would be routed again.
	if err := p.syncBoth(Removed, dirOf(Transport+"/"+name)); err != nil {
		return "", fmt.Errorf("put back %s: %w", id, err)
	}
	return name, p.UnshelveMessage(id, name)
}

// UnshelveMessage does the second half of Unshelve. ErrGone: the message is not in
// removed/, nor in queue/.
func (p *RemovedArea) UnshelveMessage(id SpoolID, name string) error {
	// Crash: in removed/ or in queue/.
	err := p.moveOwn(removedName(id, removedMessage), Queue+"/"+name)
	if errors.Is(err, ErrGone) {
		// A scheduler that has seen the specification was faster.
		if there, serr := p.exists(Queue + "/" + name); serr == nil && there {
			return nil
		}
	}
	if err == nil {
		err = p.syncBoth(Removed, dirOf(Queue+"/"+name))
	}
	if err != nil {
		return fmt.Errorf("put back %s: %w", id, err)
	}
	return nil
}

func removedName(id SpoolID, last string) string { return Removed + "/" + id.String() + "." + last }

// PutAway moves a message that is not routed, dir/name in router/, deferred/, freezer/
// or postman/, to removed/. ErrGone: it has moved on, or is another message by now. Of
// many that are put aside the names are made durable once, by Sync.
func (p *RemovedArea) PutAway(dir, name string, id SpoolID) error {
	last, err := awayName(dir, name)
	if err == nil {
		err = p.ensure(Removed)
	}
	if err == nil {
		_, err = p.same(dir, name, id)
	}
	if err == nil {
		// Crash: where it was, or in removed/.
		err = p.moveOwn(dir+"/"+name, removedName(id, last))
	}
	if err == nil && IsRouterDir(dir) {
		// A power loss must not bring it back to where it would be routed.
		err = p.syncBoth(dir, Removed)
	}
	if err != nil {
		return fmt.Errorf("remove %s/%s: %w", dir, name, err)
	}
	return nil
}

// Sync makes durable what PutAway moved out of a directory. Before that a power loss
// may bring messages back to where they wait for an operator.
func (p *RemovedArea) Sync(dir string) error {
	if err := p.syncBoth(dir, Removed); err != nil {
		return fmt.Errorf("sync %s and %s: %w", dir, Removed, err)
	}
	return nil
}

// awayName returns the last part of a name in removed/ for dir/name.
func awayName(dir, name string) (string, error) {
	base, why, _ := strings.Cut(name, ".")
	if dir == Postman {
		base, why, _ = strings.Cut(name, "_")
	}
	_, ok := decimal(base)
	switch {
	case !ok:
	case IsRouterDir(dir) && why == "", dir == Postman && why == "":
		return dir, nil
	case dir == Deferred, dir == Freezer, dir == Postman:
		return dir + "." + why, nil
	}
	return "", errors.New("not the name of a message")
}

// PutBack moves a message that PutAway moved to where it was, and gives its name.
func (p *RemovedArea) PutBack(m RemovedMessage) (string, error) {
	if ok, err := p.exists(m.From); IsRouterDir(m.From) && err == nil && !ok {
		m.From = p.routers().first() // that directory was removed
	}
	to := m.From + "/" + inodeName(m.Info.Ino)
	switch {
	case m.Spec != "" || m.From == Queue:
		return "", fmt.Errorf("put back %s: it has a specification", m.ID)
	case m.From == Postman && m.Why != "":
		to += "_" + m.Why
	case m.Why != "":
		to += "." + m.Why
	}
	// Crash: in removed/ or where it was.
	err := p.move(Removed+"/"+m.Name, to)
	if err == nil {
		err = p.syncBoth(Removed, m.From)
	}
	if err != nil {
		return "", fmt.Errorf("put back %s: %w", m.ID, err)
	}
	return to, nil
}

// Find returns the message in removed/ with a spool ID, nil if there is none.
func (p *RemovedArea) Find(id SpoolID) (*RemovedMessage, error) {
	var name string
	if _, err := p.fs.Stat(removedName(id, removedMessage)); err == nil {
		name = path.Base(removedName(id, removedMessage))
	} else {
		prefix := id.String() + "."
		err := durable.ReadDirFunc(p.fs, Removed, func(part []durable.Entry) error {
			for _, e := range part {
				if m, ok := parseRemoved(e.Name); ok && strings.HasPrefix(e.Name, prefix) {
					name = m.Name
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look into removed: %w", err)
		}
	}
	m, ok := parseRemoved(name)
	if !ok {
		return nil, nil
	}
	err := p.describe(&m)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look into removed: %w", err)
	}
	return &m, nil
}

// describe fills in what the files say of a message.
func (p *RemovedArea) describe(m *RemovedMessage) (err error) {
	if m.Info, err = p.fs.Stat(Removed + "/" + m.Name); err != nil {
		return err
	}
	m.Since = m.Info.CTime
	if m.From == Queue {
		spec, err := p.fs.Stat(removedName(m.ID, removedSpec))
		if err == nil {
			m.Spec, m.Since = path.Base(removedName(m.ID, removedSpec)), later(m.Since, spec.CTime)
		}
	}
	return nil
}

// List lists the messages in removed/. One of which only the specification is
// there is not listed.
func (p *RemovedArea) List() ([]RemovedMessage, error) {
	entries, err := p.fs.ReadDir(Removed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list removed: %w", err)
	}
	var list []RemovedMessage
	for _, e := range entries {
		m, ok := parseRemoved(e.Name)
		if !ok {
			continue
		}
		if err = p.describe(&m); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return list, fmt.Errorf("list removed: %w", err)
		}
		list = append(list, m)
	}
	return list, nil
}

// parseRemoved reads the name of a message in removed/.
func parseRemoved(name string) (m RemovedMessage, ok bool) {
	id, rest, _ := strings.Cut(name, ".")
	var err error
	if m.ID, err = ParseSpoolID(id); err != nil {
		return m, false
	}
	m.Name = name
	m.From, m.Why, _ = strings.Cut(rest, ".")
	switch {
	case m.From == removedMessage, IsRouterDir(m.From):
		return m, m.Why == ""
	case m.From == Deferred, m.From == Freezer, m.From == Postman:
		return m, true
	}
	return m, false
}

// OpenSpec opens removed/ID.spec. ErrGone: it is not there.
func (p *RemovedArea) OpenSpec(id SpoolID) (*Spec, error) {
	return openSpecAt(p.spool, removedName(id, removedSpec), id.String())
}

// Sweep drops what has been in removed/ for longer than keep, and gives what it
// dropped. A message that is being put back is left.
func (p *RemovedArea) Sweep(now time.Time, keep time.Duration) ([]RemovedMessage, error) {
	list, err := p.List()
	if err != nil {
		return nil, err
	}
	var done []RemovedMessage
	for _, m := range list {
		if now.Sub(m.Since) < keep {
			continue
		}
		ok, err := p.drop(m)
		if err != nil {
			return done, fmt.Errorf("drop removed %s: %w", m.ID, err)
		}
		if ok {
			done = append(done, m)
		}
	}
	return done, nil
}

func (p *RemovedArea) drop(m RemovedMessage) (bool, error) {
	switch {
	case m.Spec != "":
		// Crash: the message without its specification, dropped at the next sweep.
		err := p.fs.Remove(Removed + "/" + m.Spec)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // it is being put back
		}
		if err != nil {
			return false, err
		}
	case m.From == Queue:
		// Its specification may be in transport/: on its way here or back.
		used := false
		err := p.tree(Transport).list(func(name string) error {
			n, _ := ParseName(name)
			used = used || n.Ino == m.Info.Ino
			return nil
		}, nil)
		if err != nil || used {
			return false, err
		}
	}
	// Crash: there or gone.
	return true, p.remove(Removed + "/" + m.Name)
}
