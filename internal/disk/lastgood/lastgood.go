// Package lastgood keeps the last content of each table, key and certificate that a program
// could use, and what it cannot use now. A daemon that is started while a file is wrong goes on
// with the copy, and an alarm names the file and the reason.
//
// It owns the directory lastgood/PROGRAM in the postoffice: a file for each path that the
// program reads, named by a hash of the path. NAME is the copy, a line of JSON and the content;
// NAME.bad is why the file cannot be used now, or why a server that the program asks gives no
// answer; and NAME.answer, beside the copy of zmailer.conf, the answer to the last reload. Only the
// daemons' user may read them, because keys and passwords are among them.
//
// What survives a crash: each file is whole or absent. Several processes of one program may
// write the same one: each write replaces it as a whole, with what was read from the same path.
// A copy that is damaged counts as none. What is noted about a server counts while the process that
// noted it runs: it holds a lock on the note.
//
// Diagnostics: no error reaches the caller. A copy that cannot be written is logged once as
// copy-trouble: the program goes on, and has no copy if the file turns bad.
package lastgood

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/config"
)

// Dir is the directory in the postoffice.
const Dir = "lastgood"

const (
	badSuffix = ".bad"
	// mostCopy bounds a copy that is read. Bytes.
	mostCopy = 80 << 20
	// mostBad bounds a reason.
	mostBad = 4 << 10
)

// head is the first line of a copy.
type head struct {
	Path  string    `json:"path"`
	Time  time.Time `json:"time"`
	UID   uint32    `json:"uid"`
	Sum   string    `json:"sha256"`
	Until time.Time `json:"until,omitzero"` // the end of a certificate
}

// bad is the content of a .bad file.
type bad struct {
	Path   string    `json:"path"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
	Held   bool      `json:"held,omitempty"` // an older content is used
	// Away: it is no file, and the note holds as long as the process that has written it: that holds a
	// lock on the note.
	Away   bool   `json:"away,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// held is a note of Away, locked.
type held struct {
	file  durable.File
	since time.Time
}

// Store is the directory of one program. It implements config.Keeper.
type Store struct {
	fs      durable.FS
	dir     string
	program string
	now     func() time.Time
	log     *slog.Logger
	opener  Opener       // nil: files are opened by this process alone
	after   atomic.Int64 // OutageAfter

	mu    sync.Mutex
	sums  map[string]string // of the copies as they were written or found, by path
	until map[string]time.Time
	wrong map[string]string // the reasons that were written, by path
	away  map[string]held   // the notes of Away that were written, by path
	seen  map[string]bool   // names that this process has used
	said  bool
}

// Use opens the store of a program and has the loaders of settings use it. It is called before
// the program gives its privileges up. Without a postoffice or zmailer.conf there is none.
func Use(settings *config.Config, program string, log *slog.Logger) *Store {
	if settings.File == "" {
		return nil
	}
	s, err := Open(settings.PostOffice(), program, log)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("copy-trouble", "dir", filepath.Join(settings.PostOffice(), Dir, program), "reason", err, "advice", "a table that turns bad has no copy for the next start")
		}
		return nil
	}
	s.after.Store(int64(settings.OutageAfter()))
	settings.SetKeeper(s)
	return s
}

// Open opens the store in a postoffice, and makes what is missing for its owner.
func Open(postoffice, program string, log *slog.Logger) (*Store, error) {
	disk, err := durable.NewOS(postoffice)
	if err != nil {
		return nil, err
	}
	// Root is here before it is the daemons' user, who may have put links in the place of these
	// directories. What root makes is that user's.
	disk.Inherit()
	disk.Beneath()
	for _, dir := range []string{Dir, Dir + "/" + program} {
		// Crash: the directory is there, or it is made the next time.
		if err := disk.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(err, disk.Close())
		}
	}
	return New(disk, program, time.Now, log), nil
}

// Root is the store of root's programs: the zmailer.conf with which they could be started last. Its
// files belong to root, who goes by no copy that DAEMONUSER could have written: settings name
// programs to run and files to write.
const Root = "root"

// OpenRoot opens the store Root for root, and returns nil for others or if that is not possible.
func OpenRoot(postoffice string, log *slog.Logger) *Store {
	if os.Geteuid() != 0 {
		return nil
	}
	dirs, err := Open(postoffice, Root, log) // which makes the directories
	if err != nil {
		return nil // who serves a postoffice reports that
	}
	_ = dirs.Close() // nothing was written
	disk, err := durable.NewOS(postoffice)
	if err != nil {
		return nil
	}
	// Nothing is given away here, unlike in Open. DAEMONUSER can take names away or put others in
	// their place, and then there is no copy.
	disk.Beneath()
	return New(disk, Root, time.Now, log)
}

// Approve saves, for root, a zmailer.conf that was checked and is going to be used.
func Approve(settings *config.Config, log *slog.Logger) {
	if settings.File == "" {
		return
	}
	if s := OpenRoot(settings.PostOffice(), log); s != nil {
		s.Good(settings.File, settings.Source(), 0, nil)
		_ = s.Close() // what was written is synced
	}
}

// New returns a store in a directory that is there.
func New(disk durable.FS, program string, now func() time.Time, log *slog.Logger) *Store {
	return &Store{fs: disk, dir: Dir + "/" + program, program: program, now: now, log: log,
		sums: map[string]string{}, until: map[string]time.Time{}, wrong: map[string]string{}, away: map[string]held{}, seen: map[string]bool{}}
}

// Close closes the postoffice's directory.
func (s *Store) Close() error {
	if c, ok := s.fs.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func name(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:12])
}

// Good implements config.Keeper.
func (s *Store) Good(path string, text []byte, uid uint32, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := name(path)
	first := !s.seen[n]
	s.seen[n] = true
	delete(s.wrong, path)
	s.remove(n + badSuffix) // which another process of this program may have written
	s.over(path)
	if text == nil {
		delete(s.sums, path)
		if first {
			s.remove(n)
		}
		return
	}
	sum := sha256.Sum256(text)
	h := head{Path: path, Time: s.now(), UID: uid, Sum: hex.EncodeToString(sum[:]), Until: s.until[path]}
	if _, known := s.sums[path]; !known {
		if old, err := s.head(n); err == nil && old.Path == path && old.UID == uid && old.Until.Equal(h.Until) {
			s.sums[path] = old.Sum
		}
	}
	if s.sums[path] == h.Sum {
		return
	}
	line, err := json.Marshal(h)
	if err == nil {
		var f durable.File
		if f, err = s.write(n, append(append(line, '\n'), text...), false); err == nil {
			err = f.Close()
		}
	}
	if err == nil {
		s.sums[path] = h.Sum
	}
	s.trouble(err)
}

// Expires implements config.Keeper: it is called before Good.
func (s *Store) Expires(path string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.until[path].Equal(at) {
		s.until[path] = at
		delete(s.sums, path) // it is compared again
	}
}

// Names implements config.Keeper.
func (s *Store) Names(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[name(path)] = true
}

// Bad implements config.Keeper.
func (s *Store) Bad(path string, reason error, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := name(path)
	s.seen[n] = true
	text := reason.Error()
	if s.wrong[path] == text {
		return
	}
	b := bad{Path: path, Since: s.now(), Reason: text[:min(len(text), mostBad/2)], Held: held}
	f, err := s.note(n, b)
	if err == nil {
		err = f.Close()
		s.wrong[path] = text
	}
	s.trouble(err)
}

// note writes a .bad file, and returns it open.
func (s *Store) note(n string, b bad) (durable.File, error) {
	line, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	return s.write(n+badSuffix, append(line, '\n'), b.Away)
}

// OutageAfter implements config.Keeper.
func (s *Store) OutageAfter() time.Duration { return time.Duration(s.after.Load()) }

// Away implements config.Keeper. The open file of the note has a lock, by which readers know that this
// process runs: whatever ends it ends the alarm.
func (s *Store) Away(what string, since time.Time, reason error, remedy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := name(what)
	s.seen[n] = true
	if h, ok := s.away[what]; ok && h.since.Before(since) {
		since = h.since // the settings were read again meanwhile
	}
	text := reason.Error()
	f, err := s.note(n, bad{Path: what, Since: since, Reason: text[:min(len(text), mostBad/2)], Away: true, Remedy: remedy})
	if err == nil {
		s.over(what)
		s.away[what] = held{f, since}
	}
	s.trouble(err)
}

// over gives up the lock on a note of Away. s.mu is held.
func (s *Store) over(path string) {
	if h, ok := s.away[path]; ok {
		delete(s.away, path)
		_ = h.file.Close() // nothing is written to it any more
	}
}

// Last implements config.Keeper.
func (s *Store) Last(path string) *config.Kept { return s.last(path, false) }

// lastSettings returns the copy of a zmailer.conf; nil: no copy was saved, or this process is root and
// another user could have written it.
func (s *Store) lastSettings(path string) *config.Kept { return s.last(path, os.Geteuid() == 0) }

// last returns a copy. ofRoot: only one that root alone can have written.
func (s *Store) last(path string, ofRoot bool) *config.Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, info, err := readFile(s.fs, s.dir+"/"+name(path), mostCopy)
	if err != nil || ofRoot && (info.UID != 0 || info.Mode&0o022 != 0) {
		return nil
	}
	h, text, err := parse(b)
	if err != nil || h.Path != path {
		return nil
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != h.Sum {
		s.log.Warn("copy-trouble", "dir", s.dir, "file", path, "reason", "the copy is damaged", "advice", "correct the file itself")
		return nil
	}
	return &config.Kept{Text: text, UID: h.UID, Time: h.Time}
}

// Only removes what is about other files than these, which are all that settings name: for a
// program whose processes each read only some of them.
func (s *Store) Only(files []string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	clear(s.seen)
	named := map[string]bool{}
	for _, file := range files {
		s.seen[name(file)], named[file] = true, true
	}
	// One that is named again later is noted again.
	maps.DeleteFunc(s.wrong, func(file, _ string) bool { return !named[file] })
	maps.DeleteFunc(s.sums, func(file, _ string) bool { return !named[file] })
	s.mu.Unlock()
	s.Settle()
}

// Opener opens files that this process may not read, as a *keys.Client does.
type Opener interface {
	Open(path string) (*os.File, error)
	AttachFor(cmd *exec.Cmd, path string) (done func(), err error)
}

// OpenBy has keys that this process may not read opened by an Opener. It is called before any file is
// read.
func (s *Store) OpenBy(o Opener) {
	if s != nil {
		s.opener = o
	}
}

// OpenBy is Store.OpenBy for what Use has returned; where it keeps no copies, files are opened all the
// same.
func OpenBy(settings *config.Config, s *Store, o Opener) {
	s.OpenBy(o)
	if s == nil {
		settings.SetKeeper(NoCopies{o})
	}
}

// Attach implements config.Keeper.
func (s *Store) Attach(cmd *exec.Cmd, path string) (done func(), err error) {
	if s.opener == nil {
		return func() {}, nil
	}
	return s.opener.AttachFor(cmd, path)
}

// Open implements config.Keeper.
func (s *Store) Open(path string) (*os.File, error) {
	if s.opener == nil {
		return nil, config.ErrNotHanded
	}
	return s.opener.Open(path)
}

// Settle removes what is about files that this process has not read: settings no longer name
// them. It is called when all have been read.
func (s *Store) Settle() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return // the next start tries again
	}
	for _, e := range list {
		n := strings.TrimSuffix(strings.TrimSuffix(e.Name, badSuffix), answerSuffix)
		if strings.HasPrefix(n, ".") && s.abandoned(n) || !strings.HasPrefix(n, ".") && !s.seen[n] {
			s.remove(e.Name)
		}
	}
}

// rereads begins a reading of all files and settings again. Its end is done or, if what was read is
// not used, forgotten.
func (s *Store) rereads() (before map[string]bool) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.seen = s.seen, map[string]bool{}
	return before
}

// forgets has what was seen before a reading counted again.
func (s *Store) forgets(before map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.seen, before)
}

// settleBad removes notes about what was not read or named since rereads. The copies remain until the
// next start.
func (s *Store) settleBad(before map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range before {
		if !s.seen[n] {
			s.remove(n + badSuffix)
		}
	}
	maps.DeleteFunc(s.wrong, func(path, _ string) bool { return !s.seen[name(path)] })
	for path := range s.away {
		if !s.seen[name(path)] {
			s.over(path)
		}
	}
	maps.Copy(s.seen, before)
}

// abandoned reports whether a file that is being written was left by a process that was killed:
// keys are not to lie around.
func (s *Store) abandoned(file string) bool {
	const longest = time.Hour
	info, err := s.fs.Stat(s.dir + "/" + file)
	return err == nil && s.now().Sub(info.ModTime) > longest
}

func (s *Store) remove(file string) {
	// Crash: it is there again, and removed by the next one who finds it.
	if err := s.fs.Remove(s.dir + "/" + file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.trouble(err)
	}
}

func (s *Store) trouble(err error) {
	if err == nil || s.said {
		return
	}
	s.said = true
	s.log.Warn("copy-trouble", "dir", s.dir, "reason", err, "advice", "a table that turns bad has no copy for the next start")
}

// answer notes what zmctl waits for. It is not synced: after a loss of power no one waits for it.
func (s *Store) answer(file string, a Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line, err := json.Marshal(a)
	if err != nil {
		s.trouble(err)
		return
	}
	tmp := s.temporary(file)
	f, err := s.create(tmp, line)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		// Crash: the answer before, this one, or an empty file, which counts as none.
		err = s.fs.Rename(tmp, s.dir+"/"+file)
	}
	s.trouble(err)
}

func (s *Store) temporary(file string) string {
	return fmt.Sprintf("%s/.%s.%d", s.dir, file, os.Getpid())
}

// create makes a file whose name no one reads. It is open.
func (s *Store) create(tmp string, content []byte) (durable.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if s.program == Root {
		// DAEMONUSER may have made the name: a fifo, or a link to another file of root's.
		flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	}
	f, err := s.fs.Open(tmp, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(content); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// write replaces a file, and returns it open; lock has it locked before it has its name.
func (s *Store) write(file string, content []byte, lock bool) (durable.File, error) {
	tmp := s.temporary(file)
	f, err := s.create(tmp, content)
	if err != nil {
		return nil, errors.Join(err, s.fs.Remove(tmp))
	}
	if lock {
		_, err = f.TryLock() // no one else has opened it
	}
	// Crash: a name that begins with a dot, which no one reads.
	err = errors.Join(err, f.Sync())
	if err == nil {
		// Crash: the old content or the new one, each whole.
		err = s.fs.Rename(tmp, s.dir+"/"+file)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), s.fs.Remove(tmp))
	}
	// Crash: before this the old content may be there.
	if err := s.fs.SyncDir(s.dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// head reads the first line of a copy.
func (s *Store) head(file string) (head, error) {
	b, _, err := readFile(s.fs, s.dir+"/"+file, mostCopy)
	if err != nil {
		return head{}, err
	}
	h, _, err := parse(b)
	return h, err
}

// parse splits a copy.
func parse(b []byte) (h head, text []byte, err error) {
	line, text, _ := bytes.Cut(b, []byte("\n"))
	return h, text, json.Unmarshal(line, &h)
}

// readFile reads a file, and describes what it has read.
func readFile(disk durable.FS, file string, most int64) ([]byte, durable.Info, error) {
	f, err := disk.Open(file, os.O_RDONLY, 0)
	if err != nil {
		return nil, durable.Info{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, info, err
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	return b, info, err
}

// readNote reads a .bad file. lives: the process that wrote a note of Away runs.
func readNote(disk durable.FS, file string) (w bad, lives bool, err error) {
	f, err := disk.Open(file, os.O_RDONLY, 0)
	if err != nil {
		return w, false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostBad*2))
	if err != nil {
		return w, false, err
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	if err := json.Unmarshal(line, &w); err != nil || !w.Away {
		return w, false, err
	}
	free, err := f.TryShare()
	return w, !free, err
}

// Finding is a file that needs an operator.
type Finding struct {
	Program string
	Path    string
	Since   time.Time
	Reason  string    // why it cannot be used; "": it is a certificate that ends
	Held    bool      // an older content is used
	Away    bool      // it is no file, but something that the program asks, and that gives no answer
	Remedy  string    // what an operator does; "": what the reason says
	Until   time.Time // the end of a certificate
}

// Warning is how long before its end a certificate is a finding.
const Warning = 14 * 24 * time.Hour

// Findings returns what all programs of a postoffice have noted, sorted by program and path.
// Files that cannot be read are left out.
func Findings(disk durable.FS, now time.Time) (all []Finding) {
	programs, err := disk.ReadDir(Dir)
	if err != nil {
		return nil
	}
	for _, p := range programs {
		list, err := disk.ReadDir(Dir + "/" + p.Name)
		if err != nil {
			continue
		}
		for _, e := range list {
			if f, ok := finding(disk, p.Name, e.Name, now); ok {
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return strings.Compare(a.Program+"\x00"+a.Path+"\x00"+a.Reason, b.Program+"\x00"+b.Path+"\x00"+b.Reason)
	})
	return all
}

func finding(disk durable.FS, program, file string, now time.Time) (f Finding, ok bool) {
	if strings.HasPrefix(file, ".") {
		return f, false
	}
	if strings.HasSuffix(file, badSuffix) {
		w, lives, err := readNote(disk, Dir+"/"+program+"/"+file)
		f = Finding{Program: program, Path: w.Path, Since: w.Since, Reason: w.Reason, Held: w.Held, Away: w.Away, Remedy: w.Remedy}
		return f, err == nil && (lives || !w.Away)
	}
	b, _, err := readFile(disk, Dir+"/"+program+"/"+file, mostBad*2)
	if err != nil {
		return f, false
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	var h head
	if err := json.Unmarshal(line, &h); err != nil || h.Until.IsZero() || h.Until.Sub(now) >= Warning {
		return f, false
	}
	return Finding{Program: program, Path: h.Path, Since: h.Until.Add(-Warning), Until: h.Until}, true
}
