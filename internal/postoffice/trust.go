package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"

	"zmailer/internal/disk/durable"
)

// Who may put what where (docs/privileges.md): only public/ can be written by users, and
// router/ where the postoffice has a router0/ (ROUTERMODE=shared). Every other directory
// belongs to the daemons. A file is believed only if root or the postoffice's owner owns
// it and nobody has given it another name; what a user has submitted is copied by PickUp
// before anything believes it.

// ErrSubmission means that a file in a router directory belongs to a user: PickUp is to
// copy it before it is routed.
var ErrSubmission = errors.New("a user has submitted it; it is copied before it is routed")

// DisbeliefError means that a file is not what a daemon may act on: it belongs to somebody
// else, it has another name, or it is no regular file.
type DisbeliefError struct {
	Name  string // below the postoffice
	UID   uint32 // owner
	Nlink uint64
	Mode  fs.FileMode
}

func (e *DisbeliefError) Error() string {
	why := "it belongs to uid " + strconv.FormatUint(uint64(e.UID), 10)
	switch {
	case !e.Mode.IsRegular():
		why = fmt.Sprintf("it is not a regular file (%s); %s", e.Mode, why)
	case e.Nlink != 1:
		why = fmt.Sprintf("it has %d names; %s", e.Nlink, why)
	}
	return e.Name + " is not believed: " + why + " (docs/privileges.md)"
}

// trusts reports whether a uid is root's or the postoffice owner's, which the daemons run
// as.
func (p *PostOffice) trusts(uid uint32) bool { return uid == 0 || uid == p.owner }

// Owner is the uid that the postoffice belongs to.
func (p *PostOffice) Owner() uint32 { return p.owner }

// believe returns a *DisbeliefError unless a file is a daemon's and has this one name,
// apart from those of copies in postman/.
func (p *PostOffice) believe(name string, info durable.Info) error {
	if info.Mode.IsRegular() && p.trusts(info.UID) && (info.Nlink == 1 || p.hasCopies(info)) {
		return nil
	}
	if info.Nlink == 0 {
		return fmt.Errorf("%s: %w", name, ErrGone) // removed since it was opened
	}
	return &DisbeliefError{Name: name, UID: info.UID, Nlink: info.Nlink, Mode: info.Mode}
}

// hasCopies reports whether the further names of a file are those of copies for the
// postmaster.
func (p *PostOffice) hasCopies(info durable.Info) bool {
	entries, err := p.fs.ReadDir(Postman)
	if err != nil {
		return false
	}
	copies := uint64(0)
	for _, e := range entries {
		if e.Ino == info.Ino {
			copies++
		}
	}
	return info.Nlink == 1+copies
}

// mark is the mode bit of a complete message of a daemon in public/. There it shows that
// the file was made by one of our programs and is not another file of root's under a name
// that a user has given to it.
const mark = fs.ModeSticky

// firstRandom is the lowest number that randomNumber gives. Inode numbers are lower.
const firstRandom = 1 << 62

// IsRandom reports whether the number in a file's name was taken at random, because
// another file had the name with the number of the inode. The spool ID has the inode's.
func IsRandom(number uint64) bool { return number >= firstRandom }

// randomNumber is a name that no user can foresee.
func randomNumber() uint64 { return firstRandom | rand.Uint64()>>2 }

// moveIn moves a message to a directory under the number of its inode or, where another
// file has that name, under a number taken at random: an occupied name costs another name
// and nothing else. It returns the new path. end stands behind the number.
func (p *PostOffice) moveIn(from, dir string, ino uint64, end string) (string, error) {
	to := dir + "/" + inodeName(ino) + end
	// Crash: the caller's to say: the old name or the new one.
	err := p.move(from, to)
	for range 8 {
		if !errors.Is(err, ErrOccupied) {
			break
		}
		to = dir + "/" + inodeName(randomNumber()) + end
		// Crash: as before.
		err = p.move(from, to)
	}
	return to, err
}
