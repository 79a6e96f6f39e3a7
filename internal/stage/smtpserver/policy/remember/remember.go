// Package remember keeps facts about clients for days: a bounded number of keys, each with the
// times at which it was seen first and last, and a count. greylisting and the early-talker
// test use it.
//
// It owns the file of each Table in clients/ of the postoffice (docs/spool.md). One process
// writes it. Lines are appended some seconds after a change and synced; when most lines are
// superseded the file is written anew under another name and renamed. A crash loses the changes
// of the last seconds: those clients are tested once more.
//
// Diagnostics: there are no errors for the caller. A file that is damaged, cannot be read or
// cannot be written is logged as clients-trouble; what can be read is used, and the table goes
// on in memory. clients-recovered follows when a write succeeds.
package remember

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
)

const (
	// Dir is the directory of the postoffice.
	Dir = "clients"

	header = "zmailer remember 1\n"
	// flushDelay is how long changes wait for others, so that they share a sync.
	flushDelay = 2 * time.Second
	// slack is how many superseded lines a file may have beside as many as there are keys.
	slack = 1000
	// sample is how many entries are looked at to find the one that is forgotten for a new
	// one.
	sample = 16
	// longestLine bounds a line of the file. Bytes.
	longestLine = 128
)

// Key identifies a fact: a hash of what it is about.
type Key [16]byte

// Entry is what is known. Times are in seconds since 1970.
type Entry struct {
	First, Last int64
	Count       uint32
	// Group is what the entry shares with others of the same origin, a hash of the client's
	// network; 0: nothing. When the table is full, the largest groups lose entries first.
	Group uint32
}

// Config defines a Table.
type Config struct {
	FS   durable.FS    // of the postoffice; nil: nothing is kept on disk
	Name string        // of the file in Dir
	Most int           // entries
	Keep time.Duration // after Last
	Now  func() time.Time
	Log  *slog.Logger
	// Keeper raises alarms about the file; may be nil.
	Keeper config.Keeper
}

// Table is a set of facts. It may be used by many goroutines.
type Table struct {
	c       Config
	trouble logging.Trouble
	outage  *config.Outage

	mu      sync.Mutex
	kept    map[Key]Entry
	groups  map[uint32]int
	dirty   map[Key]struct{} // changed since the last write
	lines   int              // of the file
	anew    bool             // the file has to be written as a whole
	timer   *time.Timer      // nil: no write is due
	closed  bool
	writing sync.Mutex // held by the one write
}

// Open reads the file. What is in it and too old is forgotten.
func Open(c Config) *Table {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	t := &Table{c: c, outage: config.NewOutage(c.Keeper, config.Backend{Name: Dir + "/" + c.Name, AtOnce: true, Remedy: "see clients-trouble in the log: the disk, or the owner of " + Dir + "/"}), kept: map[Key]Entry{}, groups: map[uint32]int{}, dirty: map[Key]struct{}{}}
	if c.FS != nil {
		if err := t.load(); err != nil {
			t.anew = true
			t.outage.Failed(err)
			t.trouble.Begin(c.Log, "clients-trouble", "file", t.name(), "reason", err,
				"advice", "clients that it held are tested again")
		}
	}
	return t
}

func (t *Table) name() string { return Dir + "/" + t.c.Name }

// Get returns what is known; false: nothing, or it is too old.
func (t *Table) Get(k Key) (Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.kept[k]
	if !ok || t.isOld(e) {
		return Entry{}, false
	}
	return e, true
}

// isOld reports whether an entry has expired. One from the future, after the clock was set
// back, counts as seen now.
func (t *Table) isOld(e Entry) bool { return t.c.Now().Unix()-e.Last > int64(t.c.Keep/time.Second) }

// Limit changes how many entries are kept, and for how long.
func (t *Table) Limit(most int, keep time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.Most, t.c.Keep = most, keep
}

// Len returns how many entries there are, expired ones included.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.kept)
}

// Put sets what is known. It is on the disk some seconds later.
func (t *Table) Put(k Key, e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.kept[k]; !ok && len(t.kept) >= t.c.Most {
		t.forgetOne()
	}
	t.set(k, e)
	t.changed(k)
}

// Drop forgets what is known.
func (t *Table) Drop(k Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.kept[k]; ok {
		t.forget(k)
		t.changed(k)
	}
}

// changed has a key be written. t.mu is held.
func (t *Table) changed(k Key) {
	if t.c.FS == nil || t.closed {
		return
	}
	t.dirty[k] = struct{}{}
	if t.timer == nil {
		t.timer = time.AfterFunc(flushDelay, t.due)
	}
}

func (t *Table) set(k Key, e Entry) {
	if old, ok := t.kept[k]; ok {
		t.leave(old.Group)
	}
	t.kept[k] = e
	if e.Group != 0 {
		t.groups[e.Group]++
	}
}

func (t *Table) forget(k Key) {
	t.leave(t.kept[k].Group)
	delete(t.kept, k)
}

func (t *Table) leave(group uint32) {
	if group == 0 {
		return
	}
	if t.groups[group]--; t.groups[group] == 0 {
		delete(t.groups, group)
	}
}

// forgetOne makes room: of some entries taken at random one that has expired, else that of the
// largest group, else the one seen longest ago. So a client that makes up entries replaces its
// own.
func (t *Table) forgetOne() {
	var worst Key
	var found Entry
	n := 0
	for k, e := range t.kept {
		if t.isOld(e) {
			t.drop(k)
			return
		}
		if n == 0 || t.groups[e.Group] > t.groups[found.Group] || t.groups[e.Group] == t.groups[found.Group] && e.Last < found.Last {
			worst, found = k, e
		}
		if n++; n == sample {
			break
		}
	}
	if n > 0 {
		t.drop(worst)
	}
}

func (t *Table) drop(k Key) {
	t.forget(k)
	if t.c.FS != nil {
		t.dirty[k] = struct{}{}
	}
}

// Close writes what was not written yet. Nothing is kept after that.
func (t *Table) Close() {
	t.mu.Lock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	due := len(t.dirty) > 0
	t.mu.Unlock()
	if due {
		t.Flush()
	}
	t.writing.Lock() // the one that is under way ends
	defer t.writing.Unlock()
}

// due writes what has changed, if the table is still in use.
func (t *Table) due() {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if !closed {
		t.Flush()
	}
}

// Flush writes what has changed.
func (t *Table) Flush() {
	if t.c.FS == nil {
		return
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	keys := t.dirty
	t.dirty = map[Key]struct{}{}
	anew := t.anew || t.lines+len(keys) > 2*len(t.kept)+slack
	var b []byte
	lines := 0
	if anew {
		b = make([]byte, 0, len(header)+90*len(t.kept))
		b = append(b, header...)
		for k, e := range t.kept {
			if !t.isOld(e) {
				b = appendLine(b, k, e)
				lines++
			} else {
				t.forget(k)
			}
		}
	} else {
		for k := range keys {
			b = appendLine(b, k, t.kept[k]) // one that was forgotten is zero
		}
		lines = t.lines + len(keys)
	}
	t.mu.Unlock()
	var err error
	if anew {
		err = t.rewrite(b)
	} else {
		err = t.append(b)
	}
	t.mu.Lock()
	if t.anew = err != nil; err == nil {
		t.lines = lines // after an error the next write is of everything
	} else if !t.closed {
		if t.timer == nil {
			t.timer = time.AfterFunc(30*flushDelay, t.due)
		}
	}
	t.mu.Unlock()
	if err != nil {
		t.outage.Failed(err)
		t.trouble.Begin(t.c.Log, "clients-trouble", "file", t.name(), "reason", err,
			"advice", "what is learned about clients now is lost at the next restart")
		return
	}
	t.outage.Answers()
	t.trouble.End(t.c.Log, "clients-recovered", "file", t.name())
}

// append adds lines to the file.
func (t *Table) append(b []byte) error {
	f, err := t.c.FS.Open(t.name(), os.O_WRONLY, 0)
	if err != nil {
		return err // also if someone has removed it: all of it is written then
	}
	_, err = f.Append(b)
	if err == nil {
		// Crash: before this a reader finds any part of the lines, or zeros in their place. It
		// skips what is no line with its sum, and writes the file anew.
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// rewrite replaces the file.
func (t *Table) rewrite(b []byte) error {
	draft := t.name() + ".new"
	f, err := t.c.FS.Open(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		// Crash: the old file is in place; the draft is overwritten by the next one.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	// Crash: a reader finds the old file or the new one, each whole.
	if err := t.c.FS.Rename(draft, t.name()); err != nil {
		return err
	}
	// Crash: before this the old file may be back. Lines that are appended to the new one
	// could be lost with it; after this they are not.
	return t.c.FS.SyncDir(Dir)
}

// appendLine writes an entry as a line: the key, the times, the count, the group and a sum.
func appendLine(b []byte, k Key, e Entry) []byte {
	start := len(b)
	b = hex.AppendEncode(b, k[:])
	for _, n := range []int64{e.First, e.Last, int64(e.Count), int64(e.Group)} {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	sum := crc32.ChecksumIEEE(b[start:])
	return fmt.Appendf(b, " %08x\n", sum)
}

// errLine is a line that cannot be used.
var errLine = errors.New("not a line of this file")

func parseLine(line []byte) (k Key, e Entry, err error) {
	text, sum, ok := cutLast(line)
	want, serr := strconv.ParseUint(string(sum), 16, 32)
	if !ok || serr != nil || uint32(want) != crc32.ChecksumIEEE(text) {
		return k, e, errLine
	}
	f := strings.Split(string(text), " ")
	if len(f) != 5 || len(f[0]) != 2*len(k) {
		return k, e, errLine
	}
	if _, err := hex.Decode(k[:], []byte(f[0])); err != nil {
		return k, e, errLine
	}
	var n [4]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(f[i+1], 10, 64); err != nil || n[i] < 0 {
			return k, e, errLine
		}
	}
	return k, Entry{n[0], n[1], uint32(n[2]), uint32(n[3])}, nil
}

func cutLast(line []byte) (before, after []byte, ok bool) {
	i := bytes.LastIndexByte(line, ' ')
	if i < 0 {
		return nil, nil, false
	}
	return line[:i], line[i+1:], true
}

// load reads the file. Its error says what was lost; what could be read is there.
func (t *Table) load() error {
	f, err := t.c.FS.Open(t.name(), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.anew = true
		return nil
	}
	if err != nil {
		return err
	}
	// No more than Table can have written.
	b, err := io.ReadAll(io.LimitReader(f, int64(len(header)+longestLine*(2*t.c.Most+2*slack))))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	rest, ok := bytes.CutPrefix(b, []byte(header))
	if !ok && len(b) > 0 {
		return fmt.Errorf("it does not begin with %q", strings.TrimSpace(header))
	}
	bad := 0
	for line := range bytes.Lines(rest) {
		t.lines++
		end := bytes.TrimSuffix(line, []byte{'\n'})
		k, e, err := parseLine(end)
		if err != nil || len(end) == len(line) {
			bad++
			continue
		}
		if _, known := t.kept[k]; e == (Entry{}) || t.isOld(e) {
			if known {
				t.forget(k)
			}
			continue
		} else if !known && len(t.kept) >= t.c.Most {
			t.anew = true // it was written with a larger bound
			continue
		}
		t.set(k, e)
	}
	if len(b) == 0 {
		t.anew = true
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d lines are damaged, as a loss of power leaves them", bad, t.lines)
	}
	return nil
}
