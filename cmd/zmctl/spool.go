package main

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

// spool looks at a postoffice. It opens files for reading only, takes no lock on a
// message, and takes a name that went away for one that moved on. It serves one
// command and remembers what it learned of owners.
type spool struct {
	po     *postoffice.PostOffice
	fs     durable.FS
	now    time.Time
	owners map[int]owner
	roles  map[string]bool // programs that were looked for: do they run?
	locks  map[uint64]int  // inode → pid, of files that are locked; see lockHolders
	bar    *progress       // steps with each file that is looked at
	// resubmits is when routers try deferred mail again; the zero value: never.
	resubmits config.Resubmission
}

// by has the spool know what a postoffice's settings say of its mail.
func (s *spool) by(settings *config.Config) *spool {
	if settings != nil {
		// They were checked when they were read.
		s.resubmits, _ = settings.Resubmission()
	}
	return s
}

func newSpool(po *postoffice.PostOffice, now time.Time) *spool {
	return &spool{po: po, fs: po.FS(), now: now, owners: map[int]owner{}, roles: map[string]bool{}}
}

// file is a name in one of the postoffice's directories.
type file struct {
	Dir  string // top directory: "queue"
	Name string // below it, with hash directories: "A/123-45"
	Info durable.Info
}

func (f file) path() string { return f.Dir + "/" + f.Name }

// errMoved means that a file went on while we looked.
var errMoved = errors.New("it has moved on")

func moved(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errMoved
	}
	return err
}

// stat describes a name; errMoved if it is not there.
func (s *spool) stat(dir, name string) (file, error) {
	info, err := s.fs.Stat(dir + "/" + name)
	if err != nil {
		return file{}, moved(err)
	}
	return file{dir, name, info}, nil
}

// exists tells whether a path of the postoffice is there now.
func (s *spool) exists(name string) bool {
	_, err := s.fs.Stat(name)
	return err == nil
}

// routerDirs are the directories that routers take mail from, router/ first.
func (s *spool) routerDirs() []string {
	dirs, err := s.po.RouterDirs()
	if err != nil {
		return []string{postoffice.Router} // listing that one tells what is wrong
	}
	return dirs
}

// list gives every name in a directory, those in hash directories of queue/ and
// transport/ with them, in no order. Hash directories themselves are not listed.
func (s *spool) list(dir string) ([]file, error) {
	var list []file
	err := s.eachFile(dir, func(f file) { list = append(list, f) })
	return list, err
}

// eachFile is list that holds no more than a part of the directory.
func (s *spool) eachFile(dir string, fn func(f file)) error {
	depth := 0
	if dir == postoffice.Queue || dir == postoffice.Transport {
		depth = 2
	}
	return s.eachBelow(dir, "", depth, fn)
}

func (s *spool) eachBelow(dir, sub string, depth int, fn func(f file)) error {
	var deeper []string
	err := durable.ReadDirFunc(s.fs, path.Join(dir, sub), func(part []durable.Entry) error {
		for _, e := range part {
			if depth > 0 && isHashDir(e.Name) && e.Type.IsDir() {
				deeper = append(deeper, e.Name)
				continue
			}
			f, err := s.stat(dir, path.Join(sub, e.Name))
			if errors.Is(err, errMoved) {
				continue
			}
			if err != nil {
				return err
			}
			s.bar.step()
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

// open opens a file for reading; errMoved if it is not there.
func (s *spool) open(f file) (durable.File, error) {
	if !f.Info.Mode.IsRegular() {
		return nil, fmt.Errorf("open %s: not a regular file", f.path())
	}
	h, err := s.fs.Open(f.path(), os.O_RDONLY, 0)
	if err != nil {
		return nil, moved(err)
	}
	return h, nil
}

// maxSpec bounds what is read as a work specification. Bytes.
const maxSpec = 64 << 20

// read reads a whole file of at most maxSpec bytes.
func (s *spool) read(f file) ([]byte, error) {
	h, err := s.open(f)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	b, err := io.ReadAll(io.LimitReader(h, maxSpec+1))
	if err == nil && len(b) > maxSpec {
		err = fmt.Errorf("read %s: more than %d bytes", f.path(), maxSpec)
	}
	return b, err
}

// owner is a process that holds an owner number.
type owner struct {
	Number int    `json:"number"`
	Says   string `json:"says"` // what its file says: "router pid 1234"; "" if it has none
	Alive  bool   `json:"alive"`
}

// role is the program's name, "" if it is not known.
func (o owner) role() string { role, _, _ := strings.Cut(o.Says, " "); return role }

func (o owner) String() string {
	who := "owner " + strconv.Itoa(o.Number)
	if o.Says != "" {
		who = o.Says
	}
	if !o.Alive {
		who += ", dead"
	}
	return who
}

// owner looks at the process behind an owner number.
func (s *spool) owner(n int) owner {
	if o, ok := s.owners[n]; ok {
		return o
	}
	o := owner{Number: n}
	alive, err := s.po.OwnerAlive(n)
	o.Alive = alive || err != nil // in doubt it is left alone, as the daemons do
	if f, err := s.stat(postoffice.Owners, strconv.Itoa(n)); err == nil {
		if b, err := s.read(f); err == nil {
			o.Says = human.Clean(strings.TrimSpace(string(b)))
		}
	}
	s.owners[n] = o
	return o
}

// worksHere tells whether a process works in transport/, as transport agents do, also
// those of other programs that hold no owner number. In doubt it does.
func (s *spool) worksHere(pid int) bool {
	there, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return true
	}
	here, err := s.fs.Stat(postoffice.Transport)
	st, ok := there.Sys().(*syscall.Stat_t)
	return err != nil || !ok || st.Ino == here.Ino && uint64(st.Dev) == here.Dev
}

// everyOwner lists the owners that have a file in owners/.
func (s *spool) everyOwner() ([]owner, error) {
	files, err := s.list(postoffice.Owners)
	if err != nil {
		return nil, err
	}
	var all []owner
	for _, f := range files {
		if n, ok := postoffice.ParseName(f.Name); ok && n.Owner == 0 && n.Ino <= postoffice.MaxOwner {
			all = append(all, s.owner(int(n.Ino)))
		}
	}
	return all, nil
}

// runs tells whether a program of that name is alive.
func (s *spool) runs(role string) bool {
	alive, known := s.roles[role]
	if !known {
		alive = s.looksAlive(role)
		s.roles[role] = alive
	}
	return alive
}

func (s *spool) looksAlive(role string) bool {
	if all, err := s.everyOwner(); err == nil {
		for _, o := range all {
			if o.Alive && o.role() == role {
				return true
			}
		}
	}
	f, err := s.stat(".", ".pid."+role)
	if err != nil {
		return false
	}
	_, held := s.holder(f)
	return held
}

// holder tells who holds a lock on a file, without touching the lock: trying it
// would make its owner's own try fail.
func (s *spool) holder(f file) (pid int, held bool) {
	if _, real := s.fs.(*durable.OS); !real {
		return 0, false // a disk of a test, whose locks the kernel does not know
	}
	if s.locks == nil {
		b, err := os.ReadFile("/proc/locks")
		if err != nil {
			b = nil
		}
		s.locks = lockHolders(b)
	}
	pid, held = s.locks[f.Info.Ino]
	return pid, held
}

// lockHolders reads /proc/locks (proc(5)): "1: FLOCK ADVISORY WRITE 708 08:01:1234
// 0 EOF". The device is left out of account: file systems with devices of their own
// (btrfs, overlay) show another one here than in stat(2).
func lockHolders(b []byte) map[uint64]int {
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
