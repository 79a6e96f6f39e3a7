package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"zmailer/internal/disk/durable"
)

// Epochs is the directory of a postoffice that several machines may serve, one at a time
// (docs/cluster.md). A postoffice of one machine has none.
const Epochs = "epochs"

// maxNode is how long the name of a node may be, in bytes.
const maxNode = 64

// Epoch is one machine's time with a postoffice. Its number is the revision of the claim in
// etcd, so that a later claim has a higher one. The zero value: no epoch was claimed yet.
type Epoch struct {
	Number uint64
	Node   string // the machine
}

func (e Epoch) String() string { return strconv.FormatUint(e.Number, 10) + "." + e.Node }

// EpochTable is epochs/. Each epoch is an empty file NUMBER.NODE, and the highest number counts:
// so a write that arrives late lowers nothing, and a crash leaves a name or none, never a part.
type EpochTable struct{ *spool }

// ErrEpochDamaged means that it is not known which epoch counts. Nothing may be served.
var ErrEpochDamaged = errors.New("the epoch of the postoffice is damaged")

// OvertakenError means that another claim of the postoffice is as high or higher.
type OvertakenError struct{ Mine, Stored Epoch }

func (e *OvertakenError) Error() string {
	return fmt.Sprintf("epoch %s of the postoffice is stored, and this node claims %s: it was overtaken and changes nothing (docs/cluster.md)", e.Stored, e.Mine)
}

// ParseEpoch reads the name of a file in epochs/.
func ParseEpoch(name string) (Epoch, bool) {
	number, node, _ := strings.Cut(name, ".")
	n, ok := decimal(number)
	return Epoch{Number: n, Node: node}, ok && isNode(node)
}

// isNode recognizes the name of a node: letters, digits, hyphens and dots.
func isNode(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return s != "" && len(s) <= maxNode && s[0] != '.' && s[0] != '-'
}

// Read returns the epoch that counts; the zero value: no epoch was claimed yet. ErrEpochDamaged: a name in
// epochs/ is not that of an epoch, or two nodes have one number.
func (p *EpochTable) Read() (Epoch, error) {
	highest, _, err := p.read()
	return highest, err
}

func (p *EpochTable) read() (highest Epoch, lower []Epoch, err error) {
	entries, err := p.fs.ReadDir(Epochs)
	if errors.Is(err, fs.ErrNotExist) {
		return Epoch{}, nil, nil
	}
	if err != nil {
		return Epoch{}, nil, fmt.Errorf("read the epoch: %w", err)
	}
	damaged := func(name string) error {
		return fmt.Errorf("read the epoch: %s/%s: %w: find out which node serves this postoffice, then remove the name if it is no number and node (docs/cluster.md)",
			Epochs, name, ErrEpochDamaged)
	}
	for _, e := range entries {
		epoch, ok := ParseEpoch(e.Name)
		if !ok || e.Type != 0 && e.Type != fs.ModeIrregular {
			return Epoch{}, nil, damaged(e.Name)
		}
		switch {
		case epoch.Number == highest.Number:
			return Epoch{}, nil, damaged(e.Name)
		case epoch.Number < highest.Number:
			lower = append(lower, epoch)
			continue
		case highest.Number != 0:
			lower = append(lower, highest)
		}
		highest = epoch
	}
	return highest, lower, nil
}

// Claim stores an epoch before anything else in the postoffice is touched, and makes it durable.
// It may be called again with the same one. *OvertakenError: another claim is as high or higher,
// also one that was stored meanwhile; nothing else may be touched then.
func (p *EpochTable) Claim(e Epoch) error {
	if e.Number == 0 || !isNode(e.Node) {
		return fmt.Errorf("claim the postoffice: %q is no epoch", e)
	}
	stored, err := p.Read()
	if err != nil {
		return fmt.Errorf("claim the postoffice: %w", err)
	}
	if stored.Number > e.Number || stored.Number == e.Number && stored != e {
		return &OvertakenError{Mine: e, Stored: stored}
	}
	if err := p.store(e); err != nil {
		return fmt.Errorf("claim the postoffice: %w", err)
	}
	// Another node may have stored a higher one between the look and the write.
	stored, lower, err := p.read()
	if err != nil {
		return fmt.Errorf("claim the postoffice: %w", err)
	}
	if stored != e {
		return &OvertakenError{Mine: e, Stored: stored}
	}
	for _, old := range lower {
		// Crash: there or not; it counts for nothing beside this epoch, which is durable.
		_ = p.fs.Remove(Epochs + "/" + old.String())
	}
	return nil
}

// store makes an epoch's name, and makes it durable, also one that is there: the process that
// made it may have been killed before that.
func (p *EpochTable) store(e Epoch) error {
	// Crash: a directory that nothing is in yet, which is no epoch, or none.
	if err := p.fs.Mkdir(Epochs, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Crash: the epoch before, or this one, of which nothing was done yet.
	f, err := p.fs.Open(Epochs+"/"+e.String(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, durable.LockMode)
	switch {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return err
	default:
		// The file is empty, and stays so: its sync is for file systems that make a name durable
		// by that alone.
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return p.syncBoth(Epochs, ".")
}

// epochKey stands before the epoch in a file in owners/.
const epochKey = "epoch "

// ownerContent is what a file in owners/ holds: for the postmaster, and the epoch in which the
// number was taken.
func (p *spool) ownerContent(role string, pid int) []byte {
	b := fmt.Appendf(nil, "%s pid %d\n", role, pid)
	if p.epoch != 0 {
		b = fmt.Appendf(b, "%s%d\n", epochKey, p.epoch)
	}
	return b
}

// isOfBefore reports whether an owner's file was made in an older epoch: its process was another
// node's and is dead, even if the file system still has its lock. Of a file that does not say it,
// as one that was made on a full disk, the lock decides.
func (p *OwnerTable) isOfBefore(f durable.File) (bool, error) {
	if p.epoch == 0 {
		return false, nil
	}
	b, err := readFile(f)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		digits, ok := strings.CutPrefix(line, epochKey)
		digits, whole := strings.CutSuffix(digits, "\n")
		if n, number := decimal(digits); ok && whole && number {
			return n < p.epoch, nil
		}
	}
	return false, nil
}
