package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// A user's message is his file: he can write to it at any time, and so can whoever he has
// given a descriptor. So nothing believes it. PickUp copies it into a file of the daemons
// in four steps, each of which a crash may follow:
//
//  1. router/.pickup.I.T is written and synced; I and T are the inode number and the time of
//     the user's file. Its lock shows that the process which writes it lives.
//  2. The user's file is removed: from now on the copy is the message.
//  3. The copy gets its name in the router directory.
//
// A copy whose user's file is still there is thrown away and made again; one whose user's
// file is gone, and which is whole, is the message (recoverPickup).

// pickupPrefix starts the name of a copy that is being made.
const pickupPrefix = ".pickup."

// UnknownUser is the uid that submits what a user has put into a directory under a name of
// a file that is root's or the daemons' and does not bear our mark: no one can know who
// has put it there. It is that of no one, which no privilege belongs to.
const UnknownUser = 65534

// submissionName returns the name in public/ of a message that a user has submitted for a
// router directory: a number taken at random and, if that is not the first one, a dot and
// the number of the directory.
func submissionName(number uint64, dir string) string {
	if rank, ok := routerRank(dir); ok && rank > 0 {
		return inodeName(number) + "." + strconv.Itoa(rank)
	}
	return inodeName(number)
}

// parseSubmission reads such a name; dir is "" for the first router directory.
func parseSubmission(name string) (dir string, ok bool) {
	number, rank, below := strings.Cut(name, ".")
	if _, ok := decimal(number); !ok {
		return "", false
	}
	if !below {
		return "", true
	}
	dir = Router + rank
	r, ok := routerRank(dir)
	return dir, ok && r > 0
}

// IsSubmission reports whether a name in public/, or in router/ with ROUTERMODE=shared, is
// one that a message gets when it is submitted.
func IsSubmission(name string) bool {
	_, ok := parseSubmission(name)
	return ok
}

// Submission is a name for PickUp.
type Submission struct {
	Name string // below the postoffice
	UID  uint32 // owner of the file
}

// ListSubmissions lists what users have submitted and PickUp has not copied yet, and what
// else they have put there and no program can use.
func (p *Submissions) List() ([]Submission, error) {
	var list []Submission
	for _, dir := range p.routers().inboxes() {
		entries, err := p.fs.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("list submissions: %w", err)
		}
		for _, e := range entries {
			if s, ok := p.submission(dir, e); ok {
				list = append(list, s)
			}
		}
	}
	return list, nil
}

func (p *Submissions) submission(dir string, e durable.Entry) (Submission, bool) {
	s := Submission{Name: dir + "/" + e.Name}
	info, err := p.fs.Stat(s.Name)
	s.UID = info.UID
	switch {
	case err != nil, info.Mode.IsDir():
		return s, false // a directory of a user's may be one that no other process can move
	case !info.Mode.IsRegular():
		return s, true
	case info.Mode&mark != 0 && p.checkTrust(s.Name, info) == nil:
		return s, false // a daemon's; see recoverPublic
	case dir == Public:
		return s, info.Mode&0o100 != 0
	}
	return s, IsSubmission(e.Name)
}

// PickedUp is what PickUp has done.
type PickedUp struct {
	Accepted         // the copy
	From     string  // the file's name
	Was      SpoolID // of the file
	UID      uint32  // who submitted it
}

// PickUp copies a message that a user has submitted, name below the postoffice, into a
// file of the daemons' own, which goes to the router directory, and removes the user's
// file. ErrGone: it is not there any more. ErrUnsettled: its writer lives, it changed while
// it was read, or another router copies it. *UntrustedError: it is no message.
// *IncompleteError: it is not what its first line records.
func (p *Submissions) PickUp(name string) (PickedUp, error) {
	done, err := p.pickUp(name)
	if err != nil {
		return done, fmt.Errorf("pick up %s: %w", name, err)
	}
	return done, nil
}

// IncompleteError means that a submitted file has not the size or the checksum that its
// first line records.
type IncompleteError struct {
	Size int64 // bytes
	UID  uint32
}

// TooLargeError means that a submitted file is larger than LimitSubmissions allows.
type TooLargeError struct {
	Size, Max int64 // bytes
	UID       uint32
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%d bytes of uid %d, and MAXSIZE is %d; raise it and restart the router, or remove the file", e.Size, e.UID, e.Max)
}

// LimitSubmissions has PickUp refuse files in public/, and in router/ with ROUTERMODE=shared,
// that are larger, with a *TooLargeError. A file may have holes: a user whose quota is small
// could fill the disk with the copy. 0: there is no limit. Call it before the postoffice is used.
func (p *Submissions) Limit(size int64) { p.largest = size }

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%d bytes, not what its first line says; uid %d wrote it", e.Size, e.UID)
}

func (p *Submissions) pickUp(name string) (done PickedUp, err error) {
	done.From = name
	f, err := p.openRead(name)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		info, serr := p.fs.Stat(name)
		return done, errors.Join(serr, untrusted(name, info))
	}
	if err != nil {
		return done, err
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return done, err
	}
	done.Was, done.UID = IDOf(info), info.UID
	if info.Nlink == 0 {
		return done, ErrGone
	}
	if info.Mode.IsRegular() && info.Mode&mark != 0 && info.Nlink > 1 && p.trusts(info.UID) {
		if info, err = p.endMove(f, name, info); err != nil {
			return done, err
		}
	}
	if !info.Mode.IsRegular() || info.Nlink != 1 {
		return done, untrusted(name, info)
	}
	if p.largest > 0 && info.Size > p.largest && p.routers().isInbox(dirOf(name)) {
		return done, &TooLargeError{Size: info.Size, Max: p.largest, UID: info.UID}
	}
	if p.trusts(info.UID) {
		done.UID = UnknownUser
	}
	if !IsSubmission(path.Base(name)) {
		// A draft with its execute bit: between chmod and rename its writer has the lock.
		if free, err := f.TryLock(); err != nil || !free {
			return done, errors.Join(err, ErrUnsettled)
		}
	}
	ok, err := whole(f)
	if err != nil {
		return done, err
	}
	if !ok {
		return done, &IncompleteError{Size: info.Size, UID: info.UID}
	}
	dir, err := p.pickupDir(name)
	if err != nil {
		return done, err
	}
	draft, err := p.openPickup(dir, done.Was)
	if err != nil {
		return done, err
	}
	if done.Accepted, err = draft.pickUp(f, info, done, dir); err != nil {
		return done, err
	}
	// The message is the pipeline's; an error of close(2) after fsync changes nothing.
	_ = draft.close()
	return done, nil
}

// endMove removes a name in public/ that a daemon was killed before it removed. ErrGone: the
// file has its other name alone now. ErrUnsettled: that daemon lives.
func (p *Submissions) endMove(f durable.File, name string, info durable.Info) (durable.Info, error) {
	if linked, err := p.linksNames(); err != nil || !linked {
		return info, err
	}
	free, err := f.TryLock()
	if err != nil || !free {
		return info, errors.Join(err, ErrUnsettled)
	}
	moved, err := p.isMoved(name, info)
	if err != nil {
		return info, err
	}
	// Whoever had the lock, or has claimed the file, may have removed the name meanwhile.
	named, err := p.fs.Stat(name)
	if err == nil && (moved || named.Ino != info.Ino) {
		err = ErrGone
	}
	return named, gone(err)
}

// pickupDir returns the router directory that a submission goes to.
func (p *Submissions) pickupDir(name string) (string, error) {
	top := dirOf(name)
	if top != Public && top != Router {
		return top, nil // of a router directory of before
	}
	dir, ok := parseSubmission(path.Base(name))
	if !ok || dir == "" {
		return p.routers().first(), nil
	}
	if there, err := p.exists(dir); err != nil || there {
		return dir, err
	}
	return p.routers().first(), nil
}

func pickupName(dir string, id SpoolID) string {
	return dir + "/" + pickupPrefix + inodeName(id.Ino) + "." + strconv.FormatUint(uint64(id.MTime), 36)
}

// parsePickup reads the last element of a name that pickupName gives.
func parsePickup(name string) (ino uint64, mtime int64, ok bool) {
	rest, ok := strings.CutPrefix(name, pickupPrefix)
	if !ok {
		return 0, 0, false
	}
	number, stamp, _ := strings.Cut(rest, ".")
	ino, ok = decimal(number)
	t, err := strconv.ParseUint(stamp, 36, 64)
	return ino, int64(t), ok && err == nil
}

// IsPickup reports whether a name in a router directory is that of a copy that PickUp makes.
func IsPickup(name string) bool {
	_, _, ok := parsePickup(path.Base(name))
	return ok
}

// openPickup makes the file for the copy and locks it. ErrUnsettled: another process makes
// the copy just now, or recovery looks at what one has left.
func (p *Submissions) openPickup(dir string, id SpoolID) (*Draft, error) {
	name := pickupName(dir, id)
	d, err := openDraft(p.spool, name)
	switch {
	case errors.Is(err, fs.ErrExist), errors.Is(err, durable.ErrLocked):
		return nil, fmt.Errorf("%w: %w", ErrUnsettled, err)
	case err != nil:
		return nil, err
	}
	d.dir = dir
	// Recovery may have taken the file between our open and our lock for one that was left,
	// and removed it.
	info, err := d.f.Stat()
	if err == nil {
		var named durable.Info
		named, err = p.fs.Stat(name)
		if err == nil && named.Ino != info.Ino || errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(ErrUnsettled, d.close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.Abort())
	}
	return d, nil
}

// pickUp copies the file f and lets the copy take its place. After an error the copy is
// gone and the file is as it was.
func (d *Draft) pickUp(f durable.File, info durable.Info, from PickedUp, dir string) (Accepted, error) {
	abort := func(err error) (Accepted, error) { return Accepted{}, errors.Join(err, d.Abort()) }
	err := d.copyOf(f, info, from)
	if err != nil {
		return abort(err)
	}
	// Crash: a copy whose file is there: thrown away.
	copied, err := d.harden(d.p.mode(true))
	if err == nil {
		err = d.p.syncDirs(dir)
	}
	if err != nil {
		return abort(err)
	}
	// Only the file that was copied may go. Its owner can put another one of his own there
	// after this look; that is the one he loses.
	named, err := d.p.fs.Stat(from.From)
	if err == nil && named.Ino != info.Ino {
		err = ErrGone
	}
	if err == nil {
		// Crash: the file, and a copy that is thrown away; or the copy, which is the message
		// now and gets its name from recoverPickup.
		err = d.p.fs.Remove(from.From)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			// Whether it is gone is for recovery to see, which decides by that.
			return Accepted{}, errors.Join(err, d.close())
		}
	}
	if err != nil {
		return abort(gone(err))
	}
	a := Accepted{ID: IDOf(copied), Size: copied.Size}
	// Crash: no reader may find the copy in the queue and, after a loss of power, the file.
	err = d.p.syncDirs(dirOf(from.From))
	if err == nil {
		// Crash: the copy as .pickup, or under its name in the router directory.
		a.Name, err = d.p.moveInMine(d.name, dir, copied.Ino, "")
	}
	if err == nil {
		err = d.p.syncDirs(dir)
	}
	if err != nil {
		// Recovery gives it its name: the file is gone, so it must stay.
		return a, errors.Join(err, d.close())
	}
	return a, nil
}

// copyOf writes the envelope line about the submitter and what the file holds.
func (d *Draft) copyOf(f durable.File, info durable.Info, from PickedUp) error {
	if _, err := fmt.Fprintf(d, "%s %d %s\n", SubmitterKey, from.UID, from.Was); err != nil {
		return err
	}
	skip, err := octetsEnd(f)
	if err != nil {
		return err
	}
	n, err := io.Copy(d, io.NewSectionReader(f, skip, info.Size-skip))
	if err != nil {
		return err
	}
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if n != info.Size-skip || now.Size != info.Size || !now.ModTime.Equal(info.ModTime) {
		return fmt.Errorf("it changed while it was read: %w", ErrUnsettled)
	}
	return nil
}

// SubmitterKey is the envelope line that names the submitter (docs/envelope.md).
const SubmitterKey = "submitter"

// recoverPickup decides about a copy whose process has died.
func (p *Submissions) recoverPickup(dir, base string, ino uint64, mtime int64) (*Recovered, error) {
	name := dir + "/" + base
	f, info, err := p.openFree(name, durable.File.TryLock)
	if err != nil || f == nil {
		return nil, err // its process lives
	}
	defer f.Close()
	if moved, err := p.isMoved(name, info); err != nil || moved {
		return &Recovered{Action: Swept, Name: name, Detail: "it has its name in the queue"}, err
	}
	if err := p.checkTrust(name, info); err != nil {
		return nil, err
	}
	there, err := p.findSubmission(dir, SpoolID{Ino: ino, MTime: mtime})
	if err != nil {
		return nil, err
	}
	if there != "" {
		// Crash: there or not; the copy is made again.
		return &Recovered{Action: Swept, Name: name, Detail: there + " is still there and is copied again"}, p.remove(name)
	}
	ok, err := whole(f)
	if err != nil {
		return nil, err
	}
	if !ok || info.Mode&0o100 == 0 {
		// Only the user himself has removed his file before the copy was on the disk.
		// Crash: there or not.
		return &Recovered{Action: Withdrawn, Name: name, Detail: "its submitter has removed it before it was copied"}, p.remove(name)
	}
	// Crash: as before, or under its name.
	to, err := p.moveInMine(name, dir, info.Ino, "")
	if err != nil {
		return nil, err
	}
	return &Recovered{Action: TakenIn, Name: to, Detail: "from " + name, ID: IDOf(info)}, p.syncDirs(dir)
}

// findSubmission looks for the file that a copy was made of; "" if it is gone.
func (p *Submissions) findSubmission(dir string, id SpoolID) (string, error) {
	dirs := p.routers().inboxes()
	if !slices.Contains(dirs, dir) {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		entries, err := p.fs.ReadDir(dir)
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			if e.Ino != id.Ino || e.Type != 0 && e.Type != fs.ModeIrregular {
				continue
			}
			info, err := p.fs.Stat(dir + "/" + e.Name)
			if err == nil && IDOf(info) == id && !IsPickup(e.Name) {
				return dir + "/" + e.Name, nil
			}
		}
	}
	return "", nil
}
