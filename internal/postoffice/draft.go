package postoffice

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// A draft is written in pieces of draftBuffer. A large one goes on in pieces of
// largeBuffer, for which the kernel needs a third less time, and is on its way to the
// disk while the rest of it comes. Bytes.
const (
	draftBuffer = 32 << 10
	largeBuffer = 256 << 10
	writeOutAt  = 4 << 20
)

// groupedSize is up to what size a draft shares its sync with others. Bytes.
const groupedSize = 256 << 10

// Draft is a message being written in public/. It is no message until Commit has
// returned without error. A Draft is used by one goroutine.
type Draft struct {
	p      *spool
	f      durable.File
	name   string // public/...
	buf    []byte
	pooled *[]byte // nil: buf is, too, see WriteOut
	size   int64   // bytes written to f
	out    int64   // of them, begun to be written out
	sum    uint32  // of those behind the first line
	err    error
	closed bool
	dir    string // a router directory, where Commit moves it
	// arrival is what Prepare sets the file's time to, if it is not zero.
	arrival time.Time
}

// Accepted is a message in router/ or, of a user who submits it, in public/.
type Accepted struct {
	ID   SpoolID
	Name string // router/<ino>, public/<number>
	Size int64  // bytes of the file
}

var (
	draftBuffers = buffers(draftBuffer)
	largeBuffers = buffers(largeBuffer)
	ownPID       = sync.OnceValue(os.Getpid)
)

// draftName returns a name in a directory that no other process uses and no user can foresee.
func draftName(dir, prefix string) string {
	b := make([]byte, 0, 64)
	b = append(append(append(b, dir...), '/'), prefix...)
	b = strconv.AppendInt(append(b, '.'), int64(ownPID()), 10)
	b = strconv.AppendInt(append(b, '.'), time.Now().UnixNano(), 36)
	b = strconv.AppendUint(append(b, '.'), rand.Uint64(), 36)
	return string(b)
}

func buffers(size int) *sync.Pool {
	return &sync.Pool{New: func() any { b := make([]byte, 0, size); return &b }}
}

// mode is that of a message file, with its execute bit when it is complete. Where the
// daemons have a user of their own they get at it by their group; it may be written to so
// that it may be linked (fs.protected_hardlinks).
func (p *spool) mode(complete bool) fs.FileMode {
	mode := fs.FileMode(0o600)
	if p.shared {
		mode = 0o660
	}
	if complete {
		mode |= 0o100
	}
	return mode
}

// NewDraft creates a file in public/. prefix starts its name, so that ls shows which
// program writes it; it must not start with a digit.
func (p *Submissions) NewDraft(prefix string) (*Draft, error) {
	return openDraft(p.spool, draftName(Public, prefix))
}

func openDraft(p *spool, name string) (*Draft, error) {
	// Crash: an empty file without execute bit, swept away when it is old; in imports/ it is
	// dropped by the next import of that queue.
	f, err := p.fs.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, p.mode(false))
	if err != nil {
		return nil, fmt.Errorf("create message: %w", err)
	}
	pooled := draftBuffers.Get().(*[]byte)
	d := &Draft{p: p, f: f, name: name, dir: p.routers().first(), buf: (*pooled)[:0], pooled: pooled}
	// The lock shows the sweep that the writer lives: between our chmod and our
	// rename the file looks like one that a dead submitter left.
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("create message: lock %s: %w", name, err), d.Abort())
	}
	d.buf = append(d.buf, octetsPrefix...)
	d.buf = append(d.buf, "0000000000000000 00000000\n"...)
	return d, nil
}

// Name returns the file's name without its directory, public/ or imports/.
func (d *Draft) Name() string { return path.Base(d.name) }

// Into has Commit move the message to a further router directory (M3). Where that is
// not there it goes to router/: no mail is refused because it could wait.
func (d *Draft) Into(dir string) {
	if rank, ok := routerRank(dir); ok && rank > 0 {
		d.dir = dir
	}
}

// Size returns how many bytes the file will have so far.
func (d *Draft) Size() int64 { return d.size + int64(len(d.buf)) }

// Write adds to the message file. After an error every further Write and Commit
// gives that error.
func (d *Draft) Write(b []byte) (int, error) {
	if d.closed {
		return 0, fs.ErrClosed
	}
	if d.err != nil {
		return 0, d.err
	}
	if d.pooled == nil {
		d.pooled = draftBuffers.Get().(*[]byte)
		d.buf = (*d.pooled)[:0]
	}
	if len(d.buf)+len(b) > cap(d.buf) {
		d.flush()
		if d.err == nil && len(b) >= cap(d.buf) {
			d.put(b)
			return len(b), d.err
		}
	}
	if d.err != nil {
		return 0, d.err
	}
	d.buf = append(d.buf, b...)
	return len(b), nil
}

// WriteOut is Write for a draft that will wait for more: all that was written goes to the
// file, and the draft has no buffer until the next Write.
func (d *Draft) WriteOut(b []byte) error {
	if d.closed {
		return fs.ErrClosed
	}
	d.put(d.buf)
	d.put(b)
	d.freeBuffer()
	return d.err
}

func (d *Draft) flush() {
	d.put(d.buf)
	d.buf = d.buf[:0]
	if d.size > groupedSize && d.pooled != nil && cap(d.buf) < largeBuffer {
		d.freeBuffer()
		d.pooled = largeBuffers.Get().(*[]byte)
		d.buf = (*d.pooled)[:0]
	}
}

func (d *Draft) freeBuffer() {
	if d.pooled == nil {
		return
	}
	if cap(*d.pooled) < largeBuffer {
		draftBuffers.Put(d.pooled)
	} else {
		largeBuffers.Put(d.pooled)
	}
	d.buf, d.pooled = nil, nil
}

func (d *Draft) put(b []byte) {
	if d.err != nil || len(b) == 0 {
		return
	}
	if _, err := d.f.Write(b); err != nil {
		d.err = fmt.Errorf("write message: %w", err)
		return
	}
	d.sum = d.summed(b)
	d.size += int64(len(b))
	if d.size-d.out >= writeOutAt {
		// A later fsync need not return this error again.
		if err := durable.WriteOut(d.f, d.out, d.size-d.out); err != nil {
			d.err = fmt.Errorf("write message: %w", err)
			return
		}
		d.out = d.size
	}
}

// summed returns the checksum if b comes next. The first line is in the first b.
func (d *Draft) summed(b []byte) uint32 {
	if d.size == 0 {
		b = b[octetsLine:]
	}
	return crc32.Update(d.sum, castagnoli(), b)
}

// complete writes what is buffered, and size and checksum into the first line.
func (d *Draft) complete() error {
	var digits [octetsDigits + 1 + octetsSum]byte
	number(digits[:octetsDigits], uint64(d.Size()), 10)
	digits[octetsDigits] = ' '
	number(digits[octetsDigits+1:], uint64(d.summed(d.buf)), 16)
	if d.size == 0 {
		copy(d.buf[len(octetsPrefix):], digits[:])
		d.flush()
		return d.err
	}
	d.flush()
	if d.err != nil {
		return d.err
	}
	if _, err := d.f.WriteAt(digits[:], int64(len(octetsPrefix))); err != nil {
		d.err = fmt.Errorf("write message: %w", err)
	}
	return d.err
}

// Commit makes the message durable and moves it to router/, or where Into says. When it returns nil
// the message is the pipeline's and may be acknowledged to the submitter; when it errs
// nothing is left behind. The draft is closed either way.
func (d *Draft) Commit() (Accepted, error) { return d.accept("accept message", d.commit) }

// accept ends a draft by one of the ways to accept it.
func (d *Draft) accept(what string, by func() (Accepted, error)) (Accepted, error) {
	a, err := by()
	if err != nil {
		return Accepted{}, errors.Join(fmt.Errorf("%s: %w", what, err), d.Abort())
	}
	// The message is accepted; an error of close(2) after fsync changes nothing.
	_ = d.close()
	return a, nil
}

// close closes the file and frees the buffer.
func (d *Draft) close() error {
	d.closed = true
	d.freeBuffer()
	return d.f.Close()
}

// harden completes the file and makes it durable, with a mode that has the execute bit.
func (d *Draft) harden(mode fs.FileMode) (info durable.Info, err error) {
	if err = d.complete(); err == nil {
		// Crash: with the execute bit on disk the sweep moves the file on if its size is
		// that of its first line; no submitter was answered yet, so both ends are right.
		err = d.f.Chmod(mode)
	}
	if err == nil {
		err = d.sync()
	}
	if err == nil {
		info, err = d.f.Stat()
	}
	if err == nil {
		err = d.written(info)
	}
	return info, err
}

func (d *Draft) commit() (Accepted, error) {
	mode := d.p.mode(true)
	if !d.p.submits {
		mode |= mark
	}
	info, err := d.harden(mode)
	if err != nil {
		return Accepted{}, err
	}
	a := Accepted{ID: IDOf(info), Size: info.Size}
	// Crash: until the directory is synced the file is under public/ or router/,
	// never neither; the sweep takes both, and what it finds in public/ to router/.
	if a.Name, err = d.handIn(info.Ino); err != nil {
		return Accepted{}, err
	}
	if err := d.p.syncDirs(Public, dirOf(a.Name)); err != nil {
		// The name may be lost with the power, the submitter must try again. A router
		// may have claimed the file meanwhile; then the message goes its way and the
		// answer is yes after all. Should it not go back, it is rather sent twice than
		// promised and lost.
		// Crash: in router/, or in public/ with the execute bit: a whole message that is
		// taken up, whose submitter tries again.
		if rerr := d.p.renameOwn(a.Name, d.name); !errors.Is(rerr, fs.ErrNotExist) {
			return Accepted{}, errors.Join(err, rerr)
		}
	}
	return a, nil
}

// handIn gives a complete draft the name under which a router finds it.
func (d *Draft) handIn(ino uint64) (string, error) {
	if d.p.submits {
		name := Public + "/" + submissionName(randomNumber(), d.dir)
		// Crash: see commit: PickUp takes the file under either name.
		return name, d.p.renameOwn(d.name, name)
	}
	name := d.dir + "/" + inodeName(ino)
	// Crash: see commit.
	err := d.p.renameMine(d.name, name)
	if err == nil {
		return name, nil
	}
	if errors.Is(err, fs.ErrNotExist) && d.dir != d.p.routers().first() {
		d.dir = d.p.routers().first()
	} else if !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	// Crash: see commit.
	return d.p.moveInMine(d.name, d.dir, ino, "")
}

// sync makes the file durable, with other drafts' if others wait for the disk too. They
// do not wait for a large one.
func (d *Draft) sync() error {
	if d.size > groupedSize {
		return d.f.Sync()
	}
	return d.p.group.Sync(d.f)
}

// written returns an error if the kernel has dropped a part of the synced file. A slow
// sender's draft is written in the background meanwhile, of which fsync need not report an
// error.
func (d *Draft) written(info durable.Info) error {
	if durable.Unwritten(d.p.fs, info) {
		return &fs.PathError{Op: "write back", Path: d.name, Err: unix.EIO}
	}
	return nil
}

// CommitFrozen makes the message durable and holds it as freezer/<ino>.<cause>, where no
// router takes it from until an operator thaws it (M13). As with Commit, nil means that the
// message is the pipeline's; when it errs nothing is left behind.
func (d *Draft) CommitFrozen(cause string) (Accepted, error) {
	return d.accept("freeze message", func() (Accepted, error) { return d.commitFrozen(cause) })
}

func (d *Draft) commitFrozen(cause string) (Accepted, error) {
	if err := d.complete(); err != nil {
		return Accepted{}, err
	}
	// Crash: without its execute bit the file is an unfinished draft, and swept; no one was
	// told. With it a sweep would take the message to router/, so it gets that at the end.
	if err := d.f.Sync(); err != nil {
		return Accepted{}, err
	}
	info, err := d.f.Stat()
	if err != nil {
		return Accepted{}, err
	}
	a := Accepted{ID: IDOf(info), Name: Freezer + "/" + inodeName(info.Ino) + "." + CauseWord(cause), Size: info.Size}
	// Crash: under public/, as before, or in freezer/, whole; no submitter was answered.
	if err := d.p.moveMine(d.name, a.Name); err != nil {
		return Accepted{}, err
	}
	// What Commit leaves to a sweep no one would do here: a rename that the power takes
	// back leaves a draft. So both directories are synced, whatever SYNC says.
	err = errors.Join(d.p.fs.SyncDir(Freezer), d.p.fs.SyncDir(Public))
	if err == nil {
		// Crash: in freezer/ with the mode of a draft, which is no matter there: whose name
		// begins with a number is a message.
		err = d.f.Chmod(d.p.mode(true))
	}
	if err != nil {
		// Crash: in freezer/ as a message that is offered again, or in public/, swept.
		return Accepted{}, errors.Join(err, d.p.renameOwn(a.Name, d.name))
	}
	return a, nil
}

// Abort removes the draft. It does nothing after a Commit that succeeded.
func (d *Draft) Abort() error {
	if d.closed {
		return nil
	}
	// Crash: a file without execute bit that is swept away, or one with it that
	// holds a complete message whose submitter got a temporary error.
	return errors.Join(d.withdraw(), d.close())
}

// withdraw makes the file one that no process takes up: it removes it or, where that
// fails, takes its execute bit, so that a sweep removes it later. Its submitter was answered
// that nothing was accepted, so both are tried twice; on a disk that refuses all of it
// the message may arrive beside its repetition.
func (d *Draft) withdraw() (err error) {
	for range 2 {
		// Crash: see Abort; without its bit the draft is swept when it is old.
		rerr := d.p.remove(d.name)
		if rerr == nil {
			return nil
		}
		cerr := d.f.Chmod(d.p.mode(false))
		err = errors.Join(rerr, cerr)
		if cerr == nil {
			return err
		}
	}
	return err
}

// Content returns what was written so far, without the first line. It can be read until the
// draft is committed or aborted.
func (d *Draft) Content() (*io.SectionReader, error) {
	if d.closed {
		return nil, fs.ErrClosed
	}
	d.flush()
	if d.err != nil {
		return nil, d.err
	}
	return io.NewSectionReader(d.f, int64(octetsLine), d.size-int64(octetsLine)), nil
}

// Drop removes a draft whose message is taken and not to be delivered. It gives the
// spool ID that the message would have had, so that its account has a name for it.
func (d *Draft) Drop() (SpoolID, error) {
	d.flush()
	if d.err != nil {
		return SpoolID{}, errors.Join(d.err, d.Abort())
	}
	info, err := d.f.Stat()
	if err != nil {
		return SpoolID{}, errors.Join(fmt.Errorf("drop message: %w", err), d.Abort())
	}
	return IDOf(info), d.Abort()
}

// SetArrival gives the message a time of arrival of before, for a copy that is to be no
// younger than what it was made of. It is that time and up to a second more, by chance:
// a spool ID, inode number and time, must not come again when the number does.
func (d *Draft) SetArrival(t time.Time) {
	d.arrival = t.Add(time.Duration(rand.Int64N(int64(time.Second))))
}

// Prepare makes the draft durable under its name in public/ without submitting it.
// SubmitPrepared does that, also in a later process: reports are recorded in
// between, so that a restart neither loses nor repeats them.
func (d *Draft) Prepare() error {
	err := d.complete()
	if err == nil && !d.arrival.IsZero() {
		// Crash: no one knows the file's name yet.
		err = d.f.SetModTime(d.arrival)
	}
	if err == nil {
		err = d.f.Sync()
	}
	if err == nil {
		var info durable.Info
		if info, err = d.f.Stat(); err == nil {
			err = d.written(info)
		}
	}
	if dir := path.Dir(d.name); err == nil && dir != Imports {
		// Crash: the name must be there when the record that names it is.
		err = d.p.fs.SyncDir(dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("prepare message: %w", err), d.Abort())
	}
	return d.close()
}
