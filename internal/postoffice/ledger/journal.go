package ledger

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// Config says who writes.
type Config struct {
	Role string // program, one word
	Log  *slog.Logger
	Now  func() time.Time // nil: time.Now
	Boot func() string    // nil: BootID
	// Limit is the size in bytes from which on Keep begins another journal; 0: 4 MB.
	Limit int64
}

const (
	defaultLimit = 4 << 20
	// lookEvery is how often a process that writes looks whether the journal was renamed,
	// and how long after the last line it lets go of it.
	lookEvery = 10 * time.Second
)

// Journal is a process's way to write into the ledger. The file is opened when the
// first line is to be written and held by a shared flock. Its methods may be used by
// many goroutines, and on a nil Journal, which writes nothing. Errors of lines are logged
// and not given: no one's mail waits for them.
type Journal struct {
	po *postoffice.PostOffice
	c  Config

	mu      sync.Mutex
	open    *handle // nil: no file
	buf     []byte
	begun   bool // the process has a line that says open, durable
	used    bool // since the last look
	timer   *time.Timer
	trouble error // of the last try; logged when it came first
	closed  bool
}

// handle is an open journal. One that is pinned stays open when the journal goes on.
type handle struct {
	f    durable.File
	ino  uint64
	pins int
	left bool // closed when the last pin is gone
}

// New makes the Journal of a process in a postoffice.
func New(po *postoffice.PostOffice, c Config) *Journal {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Boot == nil {
		// Read now: when the journal is opened no descriptor may be left for it.
		boot := BootID()
		c.Boot = func() string { return boot }
	}
	if c.Limit == 0 {
		c.Limit = defaultLimit
	}
	return &Journal{po: po, c: c}
}

// Routed enters what the router is about to hand over: n recipients. entered: whoever
// accepted the message enters it too.
func (j *Journal) Routed(id postoffice.SpoolID, n int, entered bool) {
	_ = j.write(Line{Verb: Routed, ID: id, N: int64(n), Entered: entered})
}

// Moved enters that the message with the inode number from has become id: a copy has
// taken its place.
func (j *Journal) Moved(id postoffice.SpoolID, from uint64) {
	_ = j.write(Line{Verb: Moved, ID: id, From: from})
}

// Done enters what became of a message whose files are about to be removed.
func (j *Journal) Done(id postoffice.SpoolID, o Outcomes) { j.DoneUnreported(id, o, 0) }

// DoneUnreported is Done for a message of whose failed recipients so many are in no report.
func (j *Journal) DoneUnreported(id postoffice.SpoolID, o Outcomes, unreported int64) {
	_ = j.write(Line{Verb: Done, ID: id, End: o, Unreported: unreported})
}

// DoneAll is Done for several messages, in one write.
func (j *Journal) DoneAll(ends iter.Seq2[postoffice.SpoolID, Outcomes]) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.ready() {
		return
	}
	j.begin()
	for id, o := range ends {
		j.add(Line{Verb: Done, ID: id, End: o})
	}
	j.flush(j.open)
}

// Gone enters a message that left without an end: n recipients, why in one word.
func (j *Journal) Gone(id postoffice.SpoolID, n int, why string) {
	_ = j.write(Line{Verb: Gone, ID: id, N: int64(n), Why: why})
}

// Half enters what became of a message of which the specification alone is left, with
// the recipients that were open in Gone. The message is the one that had the inode
// number when the specification was written last.
func (j *Journal) Half(ino uint64, written time.Time, o Outcomes) {
	_ = j.write(Line{Verb: Half, ID: postoffice.SpoolID{Ino: ino, MTime: written.UnixNano()}, End: o})
}

// Accepting is a message whose acceptance is under way.
type Accepting struct {
	j *Journal
	h *handle
}

// Accepting is called before a message is moved to router/, so that its line goes into
// a journal that is read before those which the next stages write to.
func (j *Journal) Accepting() Accepting {
	if j == nil {
		return Accepting{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.ready() {
		return Accepting{}
	}
	j.open.pins++
	return Accepting{j, j.open}
}

// In enters that the message was accepted for n recipients.
func (a Accepting) In(id postoffice.SpoolID, n int) {
	if a.j == nil {
		return
	}
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	a.j.put(a.h, Line{Verb: In, ID: id, N: int64(n)})
	a.j.unpin(a.h)
}

// Abandon ends it: the message was not accepted.
func (a Accepting) Abandon() {
	if a.j == nil {
		return
	}
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	a.j.unpin(a.h)
}

// SubmitPrepared submits public/file, which is prepared, and enters that it was accepted
// for n recipients.
func (j *Journal) SubmitPrepared(po *postoffice.PostOffice, file string, n int) (postoffice.Accepted, error) {
	accepting := j.Accepting()
	a, err := po.Submissions.SubmitPrepared(file)
	if err != nil {
		accepting.Abandon()
		return a, err
	}
	// Crash: the router's line replaces this one.
	accepting.In(a.ID, n)
	return a, nil
}

// unpin closes the handle if it was the last use of it. j.mu is held.
func (j *Journal) unpin(h *handle) {
	if h.pins--; h.pins == 0 && h.left {
		j.complain(h.f.Close())
	}
}

// write appends a line. Its error was logged.
func (j *Journal) write(l Line) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ready() {
		j.put(j.open, l)
	}
	return j.trouble
}

// put appends a line in one write(2). j.mu is held.
func (j *Journal) put(h *handle, l Line) {
	j.begin()
	j.add(l)
	j.flush(h)
}

// begin begins what flush appends in one write(2). j.mu is held from here to there.
func (j *Journal) begin() { j.buf = j.buf[:0] }

func (j *Journal) add(l Line) {
	l.Time = j.c.Now().UnixMilli()
	j.buf = l.Append(j.buf)
}

func (j *Journal) flush(h *handle) {
	j.used = true
	// Crash: the lines, the first ones, none, or the beginning of one; a reader passes over
	// that. A power loss may take lines until base is synced.
	_, err := h.f.Write(j.buf)
	j.complain(err)
}

// ready opens the journal if need be; false: it cannot be, which was logged. j.mu is held.
func (j *Journal) ready() bool {
	if j.open != nil {
		return true
	}
	if j.closed {
		return false
	}
	h, err := j.openFile()
	j.complain(err)
	if err != nil {
		return false
	}
	j.open = h
	j.put(h, Line{Verb: Open, Role: j.c.Role, PID: int64(os.Getpid()), Boot: j.c.Boot()})
	j.used = false
	if !j.begun {
		// Crash: with this line durable, the next boot knows that lines may be lost.
		err := errors.Join(h.f.Sync(), j.po.FS().SyncDir(postoffice.Ledger))
		j.complain(err)
		j.begun = err == nil
	}
	if j.timer == nil {
		j.timer = time.AfterFunc(lookEvery, j.tick)
	} else {
		j.timer.Reset(lookEvery)
	}
	return true
}

// openFile opens and shares the file that bears the journal's name.
func (j *Journal) openFile() (*handle, error) {
	const tries = 100
	for range tries {
		h, err := j.tryOpen()
		if h != nil || err != nil {
			return h, err
		}
	}
	return nil, fmt.Errorf("open ledger: the journal was renamed %d times meanwhile", tries)
}

// tryOpen is one try; nil if the file was renamed meanwhile. Whoever closes a journal
// renames it, then locks it: a file that has the name after we share it is not closed.
func (j *Journal) tryOpen() (h *handle, err error) {
	f, err := durable.OpenLocking(j.po.FS(), journalName, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		if eerr := j.po.Ensure(postoffice.Ledger); eerr != nil {
			return nil, errors.Join(err, eerr)
		}
		// Crash: an empty journal.
		if f, err = durable.OpenLocking(j.po.FS(), journalName, os.O_WRONLY|os.O_APPEND); err != nil {
			return nil, err
		}
	}
	defer func() {
		if h == nil {
			err = errors.Join(err, f.Close())
		}
	}()
	shared, err := f.TryShare()
	if err != nil || !shared {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if named, err := j.po.FS().Stat(journalName); err != nil || named.Ino != info.Ino {
		return nil, nil // the next try finds an error
	}
	// A last line that was torn gets no end of its own: "in S1A1 12" may be left of one with
	// 123 in it, and with its end would count. Ours is joined to it; ParseLine finds it there.
	return &handle{f: f, ino: info.Ino}, nil
}

// complain logs the first of several errors in a row, and their end. j.mu is held.
func (j *Journal) complain(err error) {
	switch {
	case err != nil && j.trouble == nil:
		j.c.Log.Error("ledger-trouble", "reason", err, "advice", "mail goes on; zmctl check --ledger lists what is missing")
	case err == nil && j.trouble != nil:
		j.c.Log.Info("ledger-recovered")
	}
	j.trouble = err
}

// tick lets go of a journal that was renamed, or of one that was not used for a while.
func (j *Journal) tick() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open == nil || j.closed {
		return
	}
	if !j.used && j.open.pins == 0 {
		j.release()
		return
	}
	j.used = false
	j.look()
	j.timer.Reset(lookEvery)
}

// look goes on to the file that has the journal's name now. j.mu is held.
func (j *Journal) look() {
	if info, err := j.po.FS().Stat(journalName); err == nil && info.Ino == j.open.ino {
		return
	}
	old := j.open
	j.open = nil
	if old.pins > 0 {
		old.left = true
	} else {
		j.complain(old.f.Close())
	}
	j.ready()
}

// release lets go of the file. j.mu is held.
func (j *Journal) release() {
	j.complain(j.open.f.Close())
	j.open = nil
	j.timer.Stop()
}

// Close ends writing.
func (j *Journal) Close() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.begun && j.ready() && j.open.pins == 0 {
		// Crash: with the line that follows, all before it is durable. Without this sync that line
		// could be on the disk alone, and the next boot would take lines that are missing for mail
		// that was lost. After an error it is not written: the next boot knows that lines may be
		// missing.
		if err := j.open.f.Sync(); err != nil {
			j.complain(err)
		} else {
			j.put(j.open, Line{Verb: Close, Role: j.c.Role, PID: int64(os.Getpid())})
		}
		j.release()
	}
	j.closed = true
}

// Keep keeps the ledger small: it begins another journal when this one is large, and
// folds those that no one writes any more. Only the scheduler calls it, at its looks.
func (j *Journal) Keep() error {
	if j == nil {
		return nil
	}
	f := j.po.FS()
	if info, err := f.Stat(journalName); err == nil && info.Size >= j.limit() {
		if err := rotate(f); err != nil {
			return err
		}
		j.mu.Lock()
		if j.open != nil {
			j.look()
		}
		j.mu.Unlock()
	}
	_, err := fold(j.po)
	if err != nil {
		return fmt.Errorf("fold ledger: %w", err)
	}
	return nil
}

// limit grows with a large base, which is written whole each time.
func (j *Journal) limit() int64 {
	info, err := j.po.FS().Stat(baseName)
	if err != nil || info.Size < defaultLimit {
		return j.c.Limit
	}
	return max(j.c.Limit, info.Size)
}
