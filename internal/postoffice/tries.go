package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// A message that ends each router that routes it would stop all mail for ever: it
// is the oldest after every start. So a router that gives a dead one's claim back,
// or that has caught a panic of its own, first adds a line to router/.tries.I. A
// message that has such a marker is routed after all others and alone; after so many
// lines it is put into postman/ (M8). Every router ignores the name, ZMailer's too.

// triesPrefix starts a marker's name in router/.
const triesPrefix = ".tries."

// DefaultTries is how many routers a message may end before it is put away.
const DefaultTries = 5

// maxWhy bounds what one line of a marker says, in bytes.
const maxWhy = 200

// Try is one line of a marker: a router that ended, or panicked, while it had the
// message.
type Try struct {
	ID    SpoolID
	Owner int
	Time  time.Time // to the second
	Why   string    // one line
}

// append writes the line.
func (t *Try) append(b []byte) []byte {
	why := []byte(t.Why)
	if len(why) > maxWhy {
		why = why[:maxWhy]
	}
	for i, c := range why {
		if c < ' ' || c == 0x7f {
			why[i] = ' '
		}
	}
	return fmt.Appendf(b, "%s %d %s %s\n", t.ID, t.Owner, t.Time.UTC().Format(time.RFC3339), why)
}

// ParseTries reads a marker. Lines that are none, as one torn by a loss of power, are
// passed over.
func ParseTries(b []byte) []Try {
	var list []Try
	for line := range strings.Lines(string(b)) {
		line, whole := strings.CutSuffix(line, "\n")
		f := strings.SplitN(line, " ", 4)
		if !whole || len(f) < 4 {
			continue
		}
		id, err := ParseSpoolID(f[0])
		owner, oerr := strconv.Atoi(f[1])
		at, terr := time.Parse(time.RFC3339, f[2])
		if err != nil || oerr != nil || terr != nil || owner < 0 {
			continue
		}
		list = append(list, Try{ID: id, Owner: owner, Time: at, Why: f[3]})
	}
	return list
}

// count is how many lines are about one message.
func count(list []Try, id SpoolID) int {
	n := 0
	for i := range list {
		if list[i].ID == id {
			n++
		}
	}
	return n
}

// TriesMarker is the inode number in a marker's name; name is its last element.
func TriesMarker(name string) (ino uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, triesPrefix)
	if !ok {
		return 0, false
	}
	return decimal(rest)
}

// marker is beside its message: in router/, or in a further router directory.
func marker(dir string, ino uint64) string { return dir + "/" + triesPrefix + inodeName(ino) }

// tries reads the marker of a message in a router directory; number is the one in the
// message's name. Lines of another message that had the number before are left out, and so
// is a marker that is not ours: anybody may make files in router/.
func (p *PostOffice) tries(dir string, number uint64, id SpoolID) ([]Try, error) {
	f, err := p.openRead(marker(dir, number))
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read tries of %s: %w", id, err)
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read tries of %s: %w", id, err)
	}
	if !p.ours(info) {
		return nil, nil
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read tries of %s: %w", id, err)
	}
	var list []Try
	for _, t := range ParseTries(b) {
		if t.ID == id {
			list = append(list, t)
		}
	}
	return list, nil
}

// ours reports whether a router wrote a marker.
func (p *PostOffice) ours(info durable.Info) bool {
	return info.Mode.IsRegular() && info.Nlink == 1 && p.trusts(info.UID)
}

// openMarker opens a marker for append and locks it, making it if need be. nil, nil:
// another router has the lock.
func (p *PostOffice) openMarker(dir string, ino uint64) (durable.File, error) {
	name := marker(dir, ino)
	for {
		if info, err := p.fs.Stat(name); err == nil && !p.ours(info) {
			// Somebody else's file would be believed, or be written to under another name.
			// Crash: no marker: no tries, as before.
			if err := p.remove(name); err != nil {
				return nil, err
			}
		}
		// Crash: an empty marker, which counts for nothing and is swept.
		f, err := p.fs.Open(name, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, durable.LockMode)
		if err != nil {
			return nil, err
		}
		free, err := f.TryLock()
		if err != nil || !free {
			return nil, errors.Join(err, f.Close())
		}
		// Whoever had the lock may have removed the file between our open and our lock.
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		named, err := p.fs.Stat(name)
		if err == nil && named.Ino == mine.Ino && p.ours(mine) {
			return f, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, f.Close())
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// noteTry adds a line to an open marker and tells how many there are for the message.
func (p *PostOffice) noteTry(f durable.File, t Try) (int, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	b := make([]byte, info.Size)
	if n, err := f.ReadAt(b, 0); err != nil && n < len(b) {
		return 0, err
	}
	line := t.append(nil)
	if len(b) > 0 && b[len(b)-1] != '\n' {
		line = append([]byte{'\n'}, line...)
	}
	// Crash: the line or a part of it, which counts for nothing. Without a sync the
	// power takes it along: the message is then tried once more than it should be.
	if _, err := f.Write(line); err != nil {
		return 0, err
	}
	return count(ParseTries(append(b, line...)), t.ID), nil
}

// forgetTries removes the marker of a message that has left router/. If that fails,
// or the power goes first, it is swept.
func (p *PostOffice) forgetTries(dir string, ino uint64) { _ = p.fs.Remove(marker(dir, ino)) }

// Tried has the message's marker removed when the message leaves router/.
func (c *Claim) Tried() { c.tried = true }

// Panicked gives a message back to router/ that has made this router panic, noting
// that first, or puts it into postman/ when that was the last of so many tries (M8).
// name is where the message is, and try the number of this one, 0 if it could not be
// noted. An error leaves it claimed; Release may follow.
func (c *Claim) Panicked(why string, now time.Time, tries int) (name string, try int, err error) {
	f, err := c.p.openMarker(c.dir, c.name.Ino)
	if f != nil {
		defer func() { _ = f.Close() }() // a lock, and a line that is written
		try, err = c.p.noteTry(f, Try{c.ID, c.name.Owner, now, why})
	}
	if err != nil {
		// Room on the disk may be what is missing: the message goes first.
		try = 0
	}
	c.tried = true
	if try >= tries {
		name, err = c.p.putAway(c.path(), c.name.Ino)
		if err == nil {
			// Crash: a work file without its message, which is swept.
			err = c.p.remove(c.work())
			c.close()
		}
		return name, try, err
	}
	return c.dir + "/" + c.inode(), try, c.Release()
}

// putAway moves a claim that has ended too many routers to postman/, and the marker
// away. Should the name be taken there, it goes to deferred/.
func (p *PostOffice) putAway(from string, ino uint64) (to string, err error) {
	to = Postman + "/" + strconv.FormatUint(ino, 10)
	// Crash: the claim, which is a dead owner's and counted once more, or the message
	// put away; the marker alone is swept.
	err = p.move(from, to)
	if errors.Is(err, ErrOccupied) {
		to = Deferred + "/" + strconv.FormatUint(ino, 10) + ".crash"
		err = p.move(from, to)
	}
	if err != nil {
		return "", fmt.Errorf("put %s away: %w", from, err)
	}
	p.forgetTries(dirOf(from), ino)
	return to, p.syncDirs(dirOf(from), dirOf(to))
}

// giveBack gives router/I-P of a dead owner back as router/I, or where else it was
// claimed, to be routed again from the start, and notes in its marker that this owner died with it. After the last of
// so many tries it is put away instead.
func (p *PostOffice) giveBack(dir string, n Name, now time.Time, tries int) (*Recovered, error) {
	from := dir + "/" + n.String()
	info, err := p.fs.Stat(from)
	if err != nil || !info.Mode.IsRegular() {
		return nil, p.gone(err)
	}
	ino := info.Ino // it may be a copy, and its name another file's number
	if IsRandom(n.Ino) {
		ino = n.Ino
	}
	f, ferr := p.openMarker(dir, ino)
	if ferr == nil && f == nil {
		return nil, nil // another router is at it
	}
	if f != nil {
		// The lock keeps two routers from counting one death twice.
		defer func() { _ = f.Close() }()
	}
	if info, err = p.fs.Stat(from); err != nil {
		return nil, p.gone(err) // the one who had the lock before has given it back
	}
	id, try := IDOf(info), 0
	if ferr == nil {
		why := "owner " + strconv.Itoa(n.Owner) + " died with it"
		try, ferr = p.noteTry(f, Try{id, n.Owner, now, why})
	}
	if ferr == nil && try >= tries {
		to, err := p.putAway(from, ino)
		if err != nil {
			return nil, err
		}
		return &Recovered{Action: SetAside, Name: to, ID: id,
			Detail: fmt.Sprintf("%d routers ended with it, the last was owner %d", try, n.Owner)}, nil
	}
	// Crash: the stale claim, whose owner's death is then counted twice, or router/I.
	// The work file stays for recoverWork.
	to, err := p.moveIn(from, dir, ino, "")
	if err != nil {
		return nil, err
	}
	detail := fmt.Sprintf("owner %d is dead; try %d of %d", n.Owner, try, tries)
	if ferr != nil {
		detail = fmt.Sprintf("owner %d is dead; not noted: %v", n.Owner, ferr)
	}
	return &Recovered{Action: Unclaimed, Name: to, ID: id, Detail: detail}, nil
}

// gone makes ErrGone of a file that is not there.
func (p *PostOffice) gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// sweepTries removes a marker whose message is not in router/, or is another one that
// was given the inode number. listed are the names in its directory at the first look.
func (p *PostOffice) sweepTries(dir string, ino uint64, listed []durable.Entry) (*Recovered, error) {
	kept, err := p.keepsTries(dir, ino, listed)
	if err != nil || kept {
		return nil, err
	}
	// A name that was renamed during the look may have been missed: look again.
	if listed, err = p.fs.ReadDir(dir); err != nil {
		return nil, err
	}
	if kept, err = p.keepsTries(dir, ino, listed); err != nil || kept {
		return nil, err
	}
	f, err := p.openMarker(dir, ino)
	if err != nil || f == nil {
		return nil, err // somebody writes a line just now
	}
	// The lock keeps a line that another router adds from going with the file.
	defer func() { _ = f.Close() }()
	// Crash: there or not; it says nothing about any message.
	if err := p.remove(marker(dir, ino)); err != nil {
		return nil, err
	}
	return &Recovered{Action: Swept, Name: marker(dir, ino), Detail: "its message is not in " + dir + "/"}, nil
}

// keepsTries tells whether one of the listed files is what a marker is about.
func (p *PostOffice) keepsTries(dir string, ino uint64, listed []durable.Entry) (bool, error) {
	for _, e := range listed {
		if n, ok := ParseName(e.Name); !ok || n.Ino != ino {
			continue
		}
		info, err := p.fs.Stat(dir + "/" + e.Name)
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil // it has just been moved; the next round tells
		}
		if err != nil {
			return false, err
		}
		tries, err := p.tries(dir, ino, IDOf(info))
		if err != nil || len(tries) > 0 {
			return true, err
		}
	}
	return false, nil
}
