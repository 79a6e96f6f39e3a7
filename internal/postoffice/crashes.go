package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
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

// crashMarkers are the files .tries.I in the router directories.
type crashMarkers struct{ *spool }

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

// TriesMarker returns the inode number in a marker's name; name is its last element.
func TriesMarker(name string) (ino uint64, ok bool) { return numberAfter(triesPrefix, name) }

// marker is beside its message: in router/, or in a further router directory.
func marker(dir string, ino uint64) string { return dir + "/" + triesPrefix + inodeName(ino) }

// of reads the marker of a message in a router directory; number is the one in the
// message's name. Lines of another message that had the number before are left out, and so
// is a marker that is not ours: anybody may make files in router/.
func (p *crashMarkers) of(dir string, number uint64, id SpoolID) ([]Try, error) {
	b, err := p.read(marker(dir, number))
	if err != nil && !errors.Is(err, ErrGone) {
		return nil, fmt.Errorf("read tries of %s: %w", id, err)
	}
	return slices.DeleteFunc(ParseTries(b), func(t Try) bool { return t.ID != id }), nil
}

// read reads a marker; of one that is not ours it reads nothing.
func (p *crashMarkers) read(name string) ([]byte, error) {
	f, err := p.openRead(name)
	if err != nil {
		return nil, err
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !p.ours(info) {
		return nil, err
	}
	return io.ReadAll(f)
}

// ours reports whether a router wrote a marker.
func (p *crashMarkers) ours(info durable.Info) bool {
	return info.Mode.IsRegular() && info.Nlink == 1 && p.trusts(info.UID)
}

// open opens a marker for append and locks it, making it if need be. nil, nil:
// another router has the lock.
func (p *crashMarkers) open(dir string, ino uint64) (durable.File, error) {
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

// add adds a line to an open marker and returns how many there are for the message.
func (p *crashMarkers) add(f durable.File, t Try) (int, error) {
	b, err := readFile(f)
	if err != nil {
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
	n := 0
	for _, had := range ParseTries(append(b, line...)) {
		if had.ID == t.ID {
			n++
		}
	}
	return n, nil
}

// forget removes the marker of a message that has left router/. If that fails,
// or the power goes first, it is swept.
func (p *crashMarkers) forget(dir string, ino uint64) { _ = p.fs.Remove(marker(dir, ino)) }

// sweep removes a marker whose message is not in router/, or is another one that
// was given the inode number. listed are the names in its directory at the first look.
func (p *crashMarkers) sweep(dir string, ino uint64, listed []durable.Entry) (*Recovered, error) {
	kept, err := p.keeps(dir, ino, listed)
	if err != nil || kept {
		return nil, err
	}
	// A name that was renamed during the look may have been missed: look again.
	if listed, err = p.fs.ReadDir(dir); err != nil {
		return nil, err
	}
	if kept, err = p.keeps(dir, ino, listed); err != nil || kept {
		return nil, err
	}
	f, err := p.open(dir, ino)
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

// keeps reports whether one of the listed files is what a marker is about.
func (p *crashMarkers) keeps(dir string, ino uint64, listed []durable.Entry) (bool, error) {
	for _, e := range listed {
		if n, ok := ParseName(e.Name); !ok || n.Ino != ino {
			continue
		}
		info, err := p.fs.Stat(dir + "/" + e.Name)
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil // it has just been moved; the next round decides
		}
		if err != nil {
			return false, err
		}
		tries, err := p.of(dir, ino, IDOf(info))
		if err != nil || len(tries) > 0 {
			return true, err
		}
	}
	return false, nil
}
