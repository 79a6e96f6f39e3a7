package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// sight is a message file that was seen in the postoffice.
type sight struct {
	dir, name string // name below dir, with hash directories
	id        postoffice.SpoolID
	// number is the inode number that the file's name says: another one than its own
	// after a copy or a restore.
	number uint64
}

func (s *sight) path() string { return s.dir + "/" + s.name }

// named returns the spool ID by the file's name.
func (s *sight) named() postoffice.SpoolID {
	return postoffice.SpoolID{Ino: s.number, MTime: s.id.MTime}
}

// sights are the messages of a postoffice.
type sights struct {
	byID    map[postoffice.SpoolID]*sight
	byInode map[uint64][]*sight // by the inode number and by that of the name
	all     []*sight
	seen    func() // of Patience
}

// find returns the message with a spool ID, nil if it was not seen.
func (s *sights) find(id postoffice.SpoolID) *sight { return s.byID[id] }

func (s *sights) add(x *sight) {
	if s.all = append(s.all, x); s.seen != nil {
		s.seen()
	}
	s.byInode[x.id.Ino] = append(s.byInode[x.id.Ino], x)
	if x.number != x.id.Ino {
		s.byInode[x.number] = append(s.byInode[x.number], x)
		if s.byID[x.named()] == nil {
			s.byID[x.named()] = x
		}
	}
	// The first one: files put aside may be links of a message that went on.
	if s.byID[x.id] == nil {
		s.byID[x.id] = x
	}
}

// look lists the messages, with a call of seen for each, directory by directory in the
// order in which they go through them: one that moves on meanwhile is met again.
func look(po *postoffice.PostOffice, seen func()) (*sights, error) {
	s := &sights{seen: seen, byID: map[postoffice.SpoolID]*sight{}, byInode: map[uint64][]*sight{}}
	routers, err := po.Router.Dirs()
	if err != nil {
		return nil, err
	}
	flat := append(po.Submissions.Inboxes(), routers...)
	aside := []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman, postoffice.Quarantine, postoffice.Removed}
	for _, dir := range flat {
		if err := s.list(po.FS(), dir); err != nil {
			return nil, err
		}
	}
	err = po.Queue.ListMessages(func(name string) error { return s.stat(po.FS(), postoffice.Queue, name) })
	if err != nil {
		return nil, err
	}
	for _, dir := range aside {
		if err := s.list(po.FS(), dir); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *sights) list(f durable.FS, dir string) error {
	entries, err := f.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	for _, e := range entries {
		if _, ok := numberIn(dir, e.Name); !ok {
			continue
		}
		if err := s.stat(f, dir, e.Name); err != nil {
			return err
		}
	}
	return nil
}

// numberIn reads the inode number of a message's name; false: it is not that of the
// only copy of a message.
func numberIn(dir, name string) (uint64, bool) {
	switch dir {
	case postoffice.Public, postoffice.Quarantine:
		return 0, true
	case postoffice.Removed:
		word, rest, _ := strings.Cut(name, ".")
		id, err := postoffice.ParseSpoolID(word)
		return id.Ino, err == nil && rest != "spec" && !strings.HasPrefix(rest, postoffice.Postman+".")
	case postoffice.Deferred, postoffice.Freezer:
		name, _, _ = strings.Cut(name, ".")
	case postoffice.Postman:
		name = strings.TrimSuffix(name, postoffice.Renumbered)
	}
	n, ok := postoffice.ParseName(name)
	return n.Ino, ok
}

func (s *sights) stat(f durable.FS, dir, name string) error {
	x := &sight{dir: dir, name: name}
	info, err := f.Stat(x.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	if !info.Mode.IsRegular() || dir == postoffice.Public && info.Mode&0o100 == 0 {
		return nil
	}
	x.id = postoffice.IDOf(info)
	if x.number, _ = numberIn(dir, name); x.number == 0 {
		x.number = info.Ino
	}
	s.add(x)
	return nil
}

// there reports whether the file is still what it was.
func (x *sight) there(f durable.FS) bool {
	info, err := f.Stat(x.path())
	return err == nil && postoffice.IDOf(info) == x.id
}

// head counts the recipients that a message's envelope names, one if they stand in the
// header alone. entered: whoever accepted it entered it.
func (x *sight) head(f durable.FS) (n int64, entered bool, err error) {
	h, err := f.Open(x.path(), 0, 0)
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	m, err := envelope.Read(h)
	if syntax := (*envelope.SyntaxError)(nil); errors.As(err, &syntax) {
		return 1, false, nil // in postman/, for an operator
	}
	if err != nil {
		return 0, false, err
	}
	return max(int64(len(m.Recipients)), 1), m.External || m.ErrorMsg, nil
}

// specification counts the recipients of a message in queue/, and those without a final
// outcome. A message that has no specification has those of its envelope, all open.
func (x *sight) specification(po *postoffice.PostOffice) (n, open int64, err error) {
	raw, err := readSpec(po, x.name)
	if errors.Is(err, postoffice.ErrGone) {
		n, _, err = x.head(po.FS())
		return n, n, err
	}
	if err != nil {
		return 0, 0, err
	}
	spec, err := workspec.Parse(raw)
	if err != nil {
		return 1, 1, nil // zmctl check reports what is wrong with it
	}
	for _, r := range spec.All() {
		n++
		if r.Tag != workspec.TagOK && r.Tag != workspec.TagFailed {
			open++
		}
	}
	return n, open, nil
}

func readSpec(po *postoffice.PostOffice, name string) ([]byte, error) {
	h, err := po.FS().Open(postoffice.Transport+"/"+name, 0, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, postoffice.ErrGone
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(h)
	return b, errors.Join(err, h.Close())
}
