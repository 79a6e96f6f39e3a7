package postoffice

import (
	"fmt"
	"math/big"
	"path"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/durable"
)

// MaxOwner is the largest owner number: the work specification's lock field has
// six bytes (formats.md "owner").
const MaxOwner = 999999

// Name is a spool file's name: the inode number and, once claimed, the owner.
type Name struct {
	Ino   uint64
	Owner int // 0: none
}

func (n Name) String() string {
	if n.Owner == 0 {
		return strconv.FormatUint(n.Ino, 10)
	}
	return strconv.FormatUint(n.Ino, 10) + "-" + strconv.Itoa(n.Owner)
}

// ParseName reads the last element of a spool path. ok is false for names that
// are not ours to touch: they do not start with a digit, or are longer than that.
func ParseName(s string) (n Name, ok bool) {
	s = path.Base(s)
	ino, owner, claimed := strings.Cut(s, "-")
	if n.Ino, ok = decimal(ino); !ok {
		return Name{}, false
	}
	if !claimed {
		return n, true
	}
	o, ok := decimal(owner)
	if !ok || o == 0 || o > MaxOwner {
		return Name{}, false
	}
	n.Owner = int(o)
	return n, true
}

// decimal reads digits only: no sign, no leading zero, which would give one
// number two names.
func decimal(s string) (uint64, bool) {
	if s == "" || s[0] == '0' || s[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

// HashDir is the directory of an inode below queue/ and transport/: "" for no
// levels, "X" or "Y/X" else (formats.md "Hash directories").
func HashDir(ino uint64, levels int) string {
	x := string(rune('A' + ino%26))
	switch levels {
	case 1:
		return x
	case 2:
		return string(rune('A'+ino/26%26)) + "/" + x
	}
	return ""
}

// isHashDir tells a directory name that HashDir gives.
func isHashDir(s string) bool { return len(s) == 1 && s[0] >= 'A' && s[0] <= 'Z' }

// SpoolID names one message for people and for commands. Inode numbers are reused;
// with the time of the last write in nanoseconds the pair is not (formats.md
// "spool ID"). A message file is never written again once it is accepted.
type SpoolID struct {
	Ino   uint64
	MTime int64 // nanoseconds since 1970
}

// IDOf is the spool ID of a message file.
func IDOf(info durable.Info) SpoolID {
	return SpoolID{Ino: info.Ino, MTime: info.ModTime.UnixNano()}
}

// String is "S", the inode, "A", the time in base 62.
func (id SpoolID) String() string {
	return "S" + strconv.FormatUint(id.Ino, 10) + "A" + big.NewInt(id.MTime).Text(62)
}

// MarshalText makes logs and JSON show a spool ID as people write it.
func (id SpoolID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *SpoolID) UnmarshalText(b []byte) (err error) {
	*id, err = ParseSpoolID(string(b))
	return err
}

// Time is when the message file was completed.
func (id SpoolID) Time() time.Time { return time.Unix(0, id.MTime) }

// ParseSpoolID reads what String wrote.
func ParseSpoolID(s string) (SpoolID, error) {
	bad := fmt.Errorf("spool ID %q: want S, the inode number, A, the time, as zmctl queue prints it", s)
	rest, ok := strings.CutPrefix(s, "S")
	if !ok {
		return SpoolID{}, bad
	}
	ino, stamp, ok := strings.Cut(rest, "A")
	if !ok {
		return SpoolID{}, bad
	}
	n, ok := decimal(ino)
	if !ok {
		return SpoolID{}, bad
	}
	t, ok := new(big.Int).SetString(stamp, 62)
	if !ok || !t.IsInt64() || t.Text(62) != stamp {
		return SpoolID{}, bad
	}
	return SpoolID{Ino: n, MTime: t.Int64()}, nil
}
