package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"zmailer/internal/postoffice"
)

// messages gives every message that waits for something, oldest first: in router/,
// queue/ and transport/, deferred/ and freezer/, and the only copies in postman/.
// What cannot be listed is told by err beside the rest.
func (s *spool) messages() ([]*message, error) {
	var all []*message
	var errs []error
	add := func(m *message, err error) {
		switch {
		case errors.Is(err, errMoved):
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, m)
		}
	}
	for _, dir := range []string{postoffice.Router, postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		files, err := s.list(dir)
		errs = append(errs, err)
		for _, f := range files {
			if kind := s.kind(f); kind.state != "" && kind.state != stateCopy {
				add(s.loadKind(f, kind))
			}
		}
	}
	names, err := s.queuedNames()
	errs = append(errs, err)
	for _, n := range names {
		add(s.loadQueued(n))
	}
	slices.SortStableFunc(all, func(a, b *message) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Name, b.Name))
	})
	return all, errors.Join(errs...)
}

// queuedNames are the names that stand in queue/, transport/ or both.
func (s *spool) queuedNames() ([]postoffice.Name, error) {
	seen := map[postoffice.Name]bool{}
	var names []postoffice.Name
	var errs []error
	for _, dir := range []string{postoffice.Queue, postoffice.Transport} {
		files, err := s.list(dir)
		errs = append(errs, err)
		for _, f := range files {
			n, ok := postoffice.ParseName(f.Name)
			if ok && f.Info.Mode.IsRegular() && !seen[n] {
				seen[n] = true
				names = append(names, n)
			}
		}
	}
	return names, errors.Join(errs...)
}

// kind is what a name means in its directory.
type kind struct {
	state string // of the message; "" if it is none
	name  postoffice.Name
	work  bool   // router/..I-P
	why   string // behind the inode number
}

// kind reads the name of a file that is not in queue/ or transport/.
func (s *spool) kind(f file) kind {
	if !f.Info.Mode.IsRegular() {
		return kind{}
	}
	if f.Dir == postoffice.Public {
		if f.Info.Mode&0o100 != 0 {
			return kind{state: stateAccepted}
		}
		return kind{state: stateWriting}
	}
	base := f.Name
	var k kind
	switch f.Dir {
	case postoffice.Router:
		base, k.work = strings.CutPrefix(base, "..")
	case postoffice.Deferred, postoffice.Freezer:
		base, k.why, _ = strings.Cut(base, ".")
	case postoffice.Postman:
		var soft bool
		if base, k.why, soft = strings.Cut(base, "_"); soft {
			k.state = stateCopy
		}
	}
	n, ok := postoffice.ParseName(base)
	if !ok || n.Owner != 0 && f.Dir != postoffice.Router || k.work && n.Owner == 0 {
		return kind{}
	}
	k.name = n
	switch {
	case k.work || k.state != "":
	case f.Dir == postoffice.Router && n.Owner != 0:
		k.state = stateClaimed
	case f.Dir == postoffice.Router:
		k.state = stateAccepted
	case f.Dir == postoffice.Deferred:
		k.state = stateDeferred
	case f.Dir == postoffice.Freezer:
		k.state = stateFrozen
	case f.Dir == postoffice.Postman:
		k.state = stateSetAside
	}
	return k
}

func (s *spool) loadKind(f file, k kind) (*message, error) {
	m, err := s.loadFile(f, k.state)
	if err != nil {
		return nil, err
	}
	m.Why = clean(k.why)
	if k.name.Owner != 0 {
		o := s.owner(k.name.Owner)
		m.Owner = &o
		work, err := s.stat(postoffice.Router, ".."+k.name.String())
		if err == nil {
			m.Files = append(m.Files, work.path())
		}
	}
	return m, nil
}

// byID finds a message by its spool ID, in every directory. Files whose inode
// number is the ID's but whose time is not are other messages: they are told.
func (s *spool) byID(id postoffice.SpoolID) (found *message, others []postoffice.SpoolID, err error) {
	note := func(m *message) {
		switch {
		case m.id == id:
			found = m
		case m.message.Dir == "" && found == nil:
			// Finishing: the file whose time would tell is unlinked already.
			found = m
		case m.id.Ino == id.Ino:
			others = append(others, m.id)
		}
	}
	var errs []error
	for _, dir := range []string{postoffice.Public, postoffice.Router, postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		files, err := s.list(dir)
		errs = append(errs, err)
		for _, f := range files {
			k := s.kind(f)
			if k.state == "" || f.Info.Ino != id.Ino || found != nil && k.state == stateCopy {
				continue
			}
			m, err := s.loadKind(f, k)
			if err == nil {
				note(m)
			} else if !errors.Is(err, errMoved) {
				errs = append(errs, err)
			}
		}
	}
	names, err := s.queuedNames()
	errs = append(errs, err)
	for _, n := range names {
		if n.Ino != id.Ino {
			continue
		}
		m, err := s.loadQueued(n)
		if err == nil {
			note(m)
		} else if !errors.Is(err, errMoved) {
			errs = append(errs, err)
		}
	}
	return found, others, errors.Join(errs...)
}
