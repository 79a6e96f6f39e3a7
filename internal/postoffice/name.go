package postoffice

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/disk/durable"
)

// MaxOwner is the largest owner number: the work specification's lock field has
// six bytes (formats.md "owner").
const MaxOwner = 999999

// Name is a spool file's name: the inode number and, once claimed, the owner.
type Name struct {
	Ino   uint64
	Owner int // 0: none
}

// Fits reports whether a file with an inode number may have the name: its number is that
// one, or was taken at random because another file had the name.
func (n Name) Fits(ino uint64) bool { return n.Ino == ino || IsRandom(n.Ino) }

func (n Name) String() string {
	var buf [32]byte
	b := strconv.AppendUint(buf[:0], n.Ino, 10)
	if n.Owner != 0 {
		b = strconv.AppendInt(append(b, '-'), int64(n.Owner), 10)
	}
	return string(b)
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

func inodeName(ino uint64) string { return strconv.FormatUint(ino, 10) }

// firstRandom is the lowest number that randomNumber gives. Inode numbers are lower.
const firstRandom = 1 << 62

// IsRandom reports whether the number in a file's name was taken at random, because
// another file had the name with the number of the inode. The spool ID has the inode's.
func IsRandom(number uint64) bool { return number >= firstRandom }

// randomNumber returns a name that no user can foresee.
func randomNumber() uint64 { return firstRandom | rand.Uint64()>>2 }

// SpoolID names one message for people and for commands. Inode numbers are reused;
// with the time of the last write in nanoseconds the pair is not (formats.md
// "spool ID"). A message file is never written again once it is accepted.
type SpoolID struct {
	Ino   uint64
	MTime int64 // nanoseconds since 1970
}

// IDOf returns the spool ID of a message file.
func IDOf(info durable.Info) SpoolID {
	return SpoolID{Ino: info.Ino, MTime: info.ModTime.UnixNano()}
}

// Turn returns a number that spreads messages evenly over the sources of a clause. It is the
// same for all attempts of a message.
func (id SpoolID) Turn() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, id.Ino, id.MTime)
	return h.Sum64() >> 1
}

// String is "S", the inode, "A", the time in base 62.
func (id SpoolID) String() string {
	var b [40]byte
	return string(id.AppendTo(b[:0]))
}

// base62 are the digits of big.Int's Text(62).
const base62 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// AppendTo appends what String gives.
func (id SpoolID) AppendTo(b []byte) []byte {
	b = append(strconv.AppendUint(append(b, 'S'), id.Ino, 10), 'A')
	left := uint64(id.MTime)
	if id.MTime < 0 {
		b, left = append(b, '-'), -left
	}
	var digits [11]byte // of 2^63
	i := len(digits)
	for more := true; more; more = left > 0 {
		i--
		digits[i] = base62[left%62]
		left /= 62
	}
	return append(b, digits[i:]...)
}

// MarshalText makes logs and JSON show a spool ID as people write it.
func (id SpoolID) MarshalText() ([]byte, error) { return id.AppendTo(make([]byte, 0, 40)), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *SpoolID) UnmarshalText(b []byte) (err error) {
	*id, err = ParseSpoolID(string(b))
	return err
}

// Time is when the message file was completed.
func (id SpoolID) Time() time.Time { return time.Unix(0, id.MTime) }

// ParseSpoolID reads what String wrote. One ID has one way to be written.
func ParseSpoolID(s string) (SpoolID, error) {
	ino, stamp, _ := strings.Cut(strings.TrimPrefix(s, "S"), "A")
	n, ok := decimal(ino)
	digits, negative := strings.CutPrefix(stamp, "-")
	id := SpoolID{Ino: n}
	for i := 0; ok && i < min(len(digits), len(base62)); i++ {
		d := strings.IndexByte(base62, digits[i])
		ok = d >= 0
		id.MTime = id.MTime*62 + int64(d) // what is too large becomes another number
	}
	if negative {
		id.MTime = -id.MTime
	}
	var b [40]byte
	if ok && string(id.AppendTo(b[:0])) == s {
		return id, nil
	}
	return SpoolID{}, fmt.Errorf("spool ID %q: want S, the inode number, A, the time, as zmctl queue prints it", s)
}
