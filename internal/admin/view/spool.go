// Package view reads a postoffice and returns what it holds as Go values: messages with the
// state of each recipient, why one waits and what happens to it next, its history, the files
// of each directory, alarms, and what a running scheduler answers. zmctl, zmweb and zmotlp
// print or serve these values; nothing is printed here.
//
// It writes nothing, takes no lock on a message, and keeps no state between calls, so a
// crash cannot harm anything.
//
// Diagnostics: ErrMoved means that a file went on to its next state while it was being read,
// ErrListing that a directory could not be listed while the others were, ErrNoScheduler that
// no scheduler answers. What is wrong with one message is its Problem, not an error.
package view

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
)

// Spool looks at a postoffice. It opens files for reading only, takes no lock on a
// message, and takes a name that went away for one that moved on. It serves one
// command and remembers what it learned of owners.
type Spool struct {
	PO     *postoffice.PostOffice
	FS     durable.FS
	Now    time.Time
	owners map[int]Owner
	roles  map[string]bool // programs that were looked for: do they run?
	locks  map[uint64]int  // inode → pid, of files that are locked; see lockHolders
	Seen   func()          // nil, or called for each file that is listed
	// resubmits is when routers try deferred mail again; the zero value: never.
	resubmits config.Resubmission
	settings  *config.Config // nil: not known
}

// With has the spool know what a postoffice's settings say of its mail.
func (s *Spool) With(settings *config.Config) *Spool {
	if settings != nil {
		// They were checked when they were read.
		s.settings = settings
		s.resubmits, _ = settings.Resubmission()
	}
	return s
}

func New(po *postoffice.PostOffice, now time.Time) *Spool {
	return &Spool{PO: po, FS: po.FS(), Now: now, owners: map[int]Owner{}, roles: map[string]bool{}}
}

// File is a name in one of the postoffice's directories.
type File struct {
	Dir  string // top directory: "queue"
	Name string // below it, with hash directories: "A/123-45"
	Info durable.Info
}

func (f File) Path() string { return f.Dir + "/" + f.Name }

// errMoved means that a file went on while we looked.
var ErrMoved = errors.New("it has moved on")

func moved(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrMoved
	}
	return err
}

// Stat describes a name; errMoved if it is not there.
func (s *Spool) Stat(dir, name string) (File, error) {
	info, err := s.FS.Stat(dir + "/" + name)
	if err != nil {
		return File{}, moved(err)
	}
	return File{dir, name, info}, nil
}

// Exists tells whether a path of the postoffice is there now.
func (s *Spool) Exists(name string) bool {
	_, err := s.FS.Stat(name)
	return err == nil
}

// RouterDirs are the directories that routers take mail from, router/ first.
func (s *Spool) RouterDirs() []string {
	dirs, err := s.PO.Router.Dirs()
	if err != nil {
		return []string{postoffice.Router} // listing that one tells what is wrong
	}
	return dirs
}

// List gives every name in a directory, those in hash directories of queue/ and
// transport/ with them, in no order. Hash directories themselves are not listed.
func (s *Spool) List(dir string) ([]File, error) {
	var list []File
	err := s.EachFile(dir, func(f File) { list = append(list, f) })
	return list, err
}

// EachFile is list that holds no more than a part of the directory.
func (s *Spool) EachFile(dir string, fn func(f File)) error {
	depth := 0
	if dir == postoffice.Queue || dir == postoffice.Transport {
		depth = 2
	}
	return s.eachBelow(dir, "", depth, fn)
}

func (s *Spool) eachBelow(dir, sub string, depth int, fn func(f File)) error {
	var deeper []string
	err := durable.ReadDirFunc(s.FS, path.Join(dir, sub), func(part []durable.Entry) error {
		for _, e := range part {
			if depth > 0 && isHashDir(e.Name) && e.Type.IsDir() {
				deeper = append(deeper, e.Name)
				continue
			}
			f, err := s.Stat(dir, path.Join(sub, e.Name))
			if errors.Is(err, ErrMoved) {
				continue
			}
			if err != nil {
				return err
			}
			if s.Seen != nil {
				s.Seen()
			}
			fn(f)
		}
		return nil
	})
	if err != nil && sub != "" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", path.Join(dir, sub), err)
	}
	for _, name := range deeper {
		if err := s.eachBelow(dir, path.Join(sub, name), depth-1, fn); err != nil {
			return err
		}
	}
	return nil
}

func isHashDir(s string) bool { return len(s) == 1 && s[0] >= 'A' && s[0] <= 'Z' }

// Open opens a file for reading; errMoved if it is not there.
func (s *Spool) Open(f File) (durable.File, error) {
	if !f.Info.Mode.IsRegular() {
		return nil, fmt.Errorf("open %s: not a regular file", f.Path())
	}
	h, err := s.FS.Open(f.Path(), os.O_RDONLY, 0)
	if err != nil {
		return nil, moved(err)
	}
	return h, nil
}

// maxSpec bounds what is read as a work specification. Bytes.
const maxSpec = 64 << 20

// Read reads a whole file of at most maxSpec bytes.
func (s *Spool) Read(f File) ([]byte, error) {
	h, err := s.Open(f)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	b, err := io.ReadAll(io.LimitReader(h, maxSpec+1))
	if err == nil && len(b) > maxSpec {
		err = fmt.Errorf("read %s: more than %d bytes", f.Path(), maxSpec)
	}
	return b, err
}

// Owner is a process that holds an owner number.
type Owner struct {
	Number int    `json:"number"`
	Says   string `json:"says"` // what its file says: "router pid 1234"; "" if it has none
	Alive  bool   `json:"alive"`
}

// Role is the program's name, "" if it is not known.
func (o Owner) Role() string { role, _, _ := strings.Cut(o.Says, " "); return role }

func (o Owner) String() string {
	who := "owner " + strconv.Itoa(o.Number)
	if o.Says != "" {
		who = o.Says
	}
	if !o.Alive {
		who += ", dead"
	}
	return who
}

// Owner looks at the process behind an owner number.
func (s *Spool) Owner(n int) Owner {
	if o, ok := s.owners[n]; ok {
		return o
	}
	o := Owner{Number: n}
	alive, err := s.PO.Owners.Alive(n)
	o.Alive = alive || err != nil // in doubt it is left alone, as the daemons do
	if f, err := s.Stat(postoffice.Owners, strconv.Itoa(n)); err == nil {
		if b, err := s.Read(f); err == nil {
			o.Says = human.Clean(strings.TrimSpace(string(b)))
		}
	}
	s.owners[n] = o
	return o
}

// WorksHere tells whether a process works in transport/, as transport agents do, also
// those of other programs that hold no owner number. In doubt it does.
func (s *Spool) WorksHere(pid int) bool {
	there, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return true
	}
	here, err := s.FS.Stat(postoffice.Transport)
	st, ok := there.Sys().(*syscall.Stat_t)
	return err != nil || !ok || st.Ino == here.Ino && uint64(st.Dev) == here.Dev
}

// EveryOwner lists the owners that have a file in owners/.
func (s *Spool) EveryOwner() ([]Owner, error) {
	files, err := s.List(postoffice.Owners)
	if err != nil {
		return nil, err
	}
	var all []Owner
	for _, f := range files {
		if n, ok := postoffice.ParseName(f.Name); ok && n.Owner == 0 && n.Ino <= postoffice.MaxOwner {
			all = append(all, s.Owner(int(n.Ino)))
		}
	}
	return all, nil
}

// Runs tells whether a program of that name is alive.
func (s *Spool) Runs(role string) bool {
	alive, known := s.roles[role]
	if !known {
		alive = s.looksAlive(role)
		s.roles[role] = alive
	}
	return alive
}

func (s *Spool) looksAlive(role string) bool {
	if all, err := s.EveryOwner(); err == nil {
		for _, o := range all {
			if o.Alive && o.Role() == role {
				return true
			}
		}
	}
	f, err := s.Stat(".", ".pid."+role)
	if err != nil {
		return false
	}
	_, held := s.Holder(f)
	return held
}

// Holder tells who holds a lock on a file, without touching the lock: trying it
// would make its owner's own try fail.
func (s *Spool) Holder(f File) (pid int, held bool) {
	if _, real := s.FS.(*durable.OS); !real {
		return 0, false // a disk of a test, whose locks the kernel does not know
	}
	if s.locks == nil {
		b, err := os.ReadFile("/proc/locks")
		if err != nil {
			b = nil
		}
		s.locks = LockHolders(b)
	}
	pid, held = s.locks[f.Info.Ino]
	return pid, held
}

// LockHolders reads /proc/locks (proc(5)): "1: FLOCK ADVISORY WRITE 708 08:01:1234
// 0 EOF". The device is left out of account: file systems with devices of their own
// (btrfs, overlay) show another one here than in stat(2).
func LockHolders(b []byte) map[uint64]int {
	holders := map[uint64]int{}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil {
			continue
		}
		if ino, err := strconv.ParseUint(f[5][strings.LastIndexByte(f[5], ':')+1:], 10, 64); err == nil {
			holders[ino] = pid
		}
	}
	return holders
}
