// Package verified is what is known of recipients at next hops: the answers to address
// verification, kept on disk between starts (docs/relay-domains.md):
//
//	c := verified.Open(po.FS(), verified.Options{Log: log})
//	e, ok, err := c.Get(key)
//	err = c.Put(verified.Entry{Key: key, OK: true, Probed: now, Code: "2.1.5", Text: "Ok"})
//
// It owns the file verify/cache: a line for each answer, appended and synced, the last one of
// an address counts. Programs share it: each appends under a lock of the file, and reads what
// the others have appended. When most lines are superseded the file is written anew.
//
// What survives a crash: every answer whose Put has returned. The line that was being written
// may be cut or be zeros: it has a checksum, and the next writer ends it. An answer that is
// lost is asked again, so no mail depends on the file.
//
// Diagnostics: errors of Get, Put and Forget are those of the file system; the caller goes on
// without the cache. Lines that cannot be read are left out and logged once as
// verify-cache-damaged; a file that is gone is an empty one.
package verified

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
)

// Dir is the directory in the postoffice, File the cache in it.
const (
	Dir  = postoffice.Verify
	File = Dir + "/cache"
	next = Dir + "/cache.new"
)

// Entry is an answer about a recipient.
type Entry struct {
	Key    string // channel, host and address, as the caller compares them
	OK     bool   // the next hop takes it
	Probed time.Time
	Code   string // of the reply, enhanced: 5.1.1
	Text   string // one line
	gone   bool   // it was forgotten
}

// Options of a Cache.
type Options struct {
	Most int // entries; 0: DefaultMost. Above it the oldest go
	Log  *slog.Logger
}

// DefaultMost bounds the entries.
const DefaultMost = 100_000

// Cache is the answers. Many goroutines and programs may use one file.
type Cache struct {
	o  Options
	fs durable.FS

	mu      sync.Mutex
	entries map[string]Entry
	ino     uint64 // of the file that was read
	read    int64  // bytes of it
	lines   int    // of it
	torn    bool   // it does not end with a line end
	damaged bool   // logged
}

// Open returns the cache of a postoffice; nothing is read yet.
func Open(disk durable.FS, o Options) *Cache {
	if o.Most <= 0 {
		o.Most = DefaultMost
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Cache{o: o, fs: disk, entries: map[string]Entry{}}
}

// Get returns the last answer about a key.
func (c *Cache) Get(key string) (Entry, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.refresh()
	e, ok := c.entries[key]
	return e, ok, err
}

// Entries returns all answers, in the order of their keys.
func (c *Cache) Entries() ([]Entry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.refresh()
	list := make([]Entry, 0, len(c.entries))
	for _, e := range c.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return list, err
}

// refresh reads what has come since the last call.
func (c *Cache) refresh() error {
	info, err := c.fs.Stat(File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.forgetFile()
		return nil
	case err != nil:
		return err
	case info.Ino == c.ino && info.Size == c.read:
		return nil
	case !info.Mode.IsRegular():
		return &fs.PathError{Op: "open", Path: File, Err: errors.New("not a regular file")}
	}
	f, err := c.fs.Open(File, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return c.load(f)
}

func (c *Cache) forgetFile() {
	c.entries, c.ino, c.read, c.lines, c.torn = map[string]Entry{}, 0, 0, 0, false
}

// maxFile bounds what is read of the file: no program of ours lets it grow so far.
const maxFile = 256 << 20

// load reads the rest of an open file, or all of another one.
func (c *Cache) load(f durable.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Ino != c.ino || info.Size < c.read || c.torn {
		c.forgetFile()
		c.ino = info.Ino
	}
	text, err := io.ReadAll(io.NewSectionReader(f, c.read, min(info.Size, maxFile)-c.read))
	if err != nil {
		return err
	}
	c.read += int64(len(text))
	bad := 0
	for line := range bytes.Lines(text) {
		if c.torn = line[len(line)-1] != '\n'; c.torn {
			break // a writer is at it, or has died
		}
		c.lines++
		switch e, state := parse(line); state {
		case good:
			if e.gone {
				delete(c.entries, e.Key)
			} else {
				c.entries[e.Key] = e
			}
		case unreadable:
			bad++
		}
	}
	if bad > 0 && !c.damaged {
		c.damaged = true
		c.o.Log.Error("verify-cache-damaged", "file", File, "lines", bad, "kept", len(c.entries),
			"advice", "the answers of these lines are asked again; the file is written anew with the next answer")
	}
	return nil
}

// Put keeps an answer.
func (c *Cache) Put(e Entry) error { return c.write(e) }

// Forget forgets the answers that match, and returns how many.
func (c *Cache) Forget(match func(Entry) bool) (int, error) {
	c.mu.Lock()
	if err := c.refresh(); err != nil {
		c.mu.Unlock()
		return 0, err
	}
	var list []Entry
	for _, e := range c.entries {
		if match(e) {
			e.gone = true
			list = append(list, e)
		}
	}
	c.mu.Unlock()
	if len(list) == 0 {
		return 0, nil
	}
	return len(list), c.write(list...)
}

// write appends lines, under the lock of the file that has the name now.
func (c *Cache) write(list ...Entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.lock()
	if err != nil {
		return err
	}
	defer f.Close() // gives the lock back; what was written is synced
	if err := c.load(f); err != nil {
		return err
	}
	var b []byte
	if c.torn {
		// Crash: as before; the next writer ends the line.
		b = append(b, tornMark, '\n')
	}
	for _, e := range list {
		b = e.append(b)
	}
	// Crash: none of the lines, or some, the last of them cut or zeros. It has no checksum
	// that fits; the next writer ends it, and what it was about is asked again.
	if _, err := f.Append(b); err != nil {
		return err
	}
	// Crash: before this the lines may be missing, which costs another question.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := c.load(f); err != nil {
		return err
	}
	if c.lines > 1000+2*len(c.entries) || len(c.entries) > c.o.Most || c.damaged {
		return c.rewrite()
	}
	return nil
}

// lock opens the file, made if it is not there, with its lock.
func (c *Cache) lock() (durable.File, error) {
	for {
		// Crash: an empty file, which is an empty cache. Its name is not synced: without it the
		// answers are asked again.
		f, err := c.fs.Open(File, os.O_RDWR|os.O_CREATE, 0o640)
		if err != nil {
			return nil, err
		}
		if err := f.WaitLock(); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// It may have been written anew while we waited.
		open, err := f.Stat()
		named, nerr := c.fs.Stat(File)
		if err == nil && nerr == nil && open.Ino == named.Ino {
			return f, nil
		}
		if cerr := f.Close(); err != nil || cerr != nil || nerr != nil && !errors.Is(nerr, fs.ErrNotExist) {
			return nil, errors.Join(err, nerr, cerr)
		}
	}
}

// rewrite replaces the file by one with the entries alone. The lock of the file is held: those
// who wait for it find another file behind the name.
func (c *Cache) rewrite() error {
	list := make([]Entry, 0, len(c.entries))
	for _, e := range c.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return b.Probed.Compare(a.Probed) })
	if len(list) > c.o.Most {
		list = list[:c.o.Most*9/10]
	}
	var b []byte
	for _, e := range slices.Backward(list) {
		b = e.append(b)
	}
	// One was left by a program that was killed. Crash: as before.
	if err := c.fs.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Crash: a file cache.new, which is never read.
	f, err := c.fs.Open(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		// Crash: before this the new file may be empty, and the rename must not make it the
		// cache.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		// Crash: the old file or the new one, whole.
		err = c.fs.Rename(next, File)
	}
	if err != nil {
		return errors.Join(err, c.fs.Remove(next))
	}
	c.forgetFile()
	c.damaged = false
	return c.refresh()
}

// tornMark is the last byte of a line that a writer has left unfinished; xtext never has it.
const tornMark = '='

// append adds the entry's line: checksum, state, time, code, key and text, each one word.
func (e *Entry) append(b []byte) []byte {
	state := "no"
	switch {
	case e.gone:
		state = "forget"
	case e.OK:
		state = "ok"
	}
	code := e.Code
	if code == "" {
		code = "-"
	}
	line := fmt.Sprintf("%s %d %s %s %s", state, e.Probed.Unix(), code, word(e.Key), word(e.Text))
	return fmt.Appendf(b, "%08x %s\n", crc32.ChecksumIEEE([]byte(line)), line)
}

// word writes text as one word.
func word(s string) string {
	if s == "" {
		return "-"
	}
	return address.EncodeXText(s)
}

// state is what a line is.
type state uint8

const (
	good       state = iota
	torn             // a crash left it
	unreadable       // something else has changed it
)

// parse reads a line with its end.
func parse(line []byte) (Entry, state) {
	text := strings.TrimSuffix(string(line), "\n")
	bad := unreadable
	// What a crash leaves of a line: a part, zeros, nothing.
	if text == "" || strings.HasSuffix(text, string(tornMark)) || strings.Contains(text, "\x00") {
		bad = torn
	}
	sum, rest, _ := strings.Cut(text, " ")
	f := strings.Split(rest, " ")
	n, err := strconv.ParseUint(sum, 16, 32)
	if err != nil || len(sum) != 8 || len(f) != 5 || uint32(n) != crc32.ChecksumIEEE([]byte(rest)) {
		return Entry{}, bad
	}
	seconds, err := strconv.ParseInt(f[1], 10, 64)
	key, kerr := address.DecodeXText(f[3])
	said, terr := address.DecodeXText(f[4])
	if errors.Join(err, kerr, terr) != nil || f[0] != "ok" && f[0] != "no" && f[0] != "forget" {
		return Entry{}, unreadable
	}
	if said == "-" {
		said = ""
	}
	return Entry{Key: key, OK: f[0] == "ok", gone: f[0] == "forget", Probed: time.Unix(seconds, 0), Code: strings.TrimPrefix(f[2], "-"), Text: said}, good
}
