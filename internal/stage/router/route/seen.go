package route

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// seen remembers the targets of a message. It holds no names but 128 bits of a
// keyed hash of each: of a million different ones, two have the same with a chance of 1
// in 10^27, and without the key such a pair cannot be searched for.
type seen struct {
	key   [32]byte // zero: none chosen yet
	few   []mark   // the first ones
	many  map[mark]struct{}
	bytes []byte // scratch
}

type mark [16]byte

// fewMarks is how many are looked through one by one: most messages have fewer.
const fewMarks = 16

func (s *seen) reset() {
	if s.key == [32]byte{} {
		rand.Read(s.key[:]) // never fails: crypto/rand
	}
	s.few, s.many = s.few[:0], nil
}

// again takes a place in and reports whether it was there, for a variant of the message. A
// domain's case makes no difference.
func (s *seen) again(variant int, r *workspec.Recipient) bool {
	address := r.Address
	if r.Channel != rules.File && r.Channel != rules.Pipe {
		at := strings.LastIndexByte(address, '@') + 1
		address = address[:at] + strings.ToLower(address[at:])
	}
	b := append(s.bytes[:0], s.key[:]...)
	for _, word := range [...]string{r.Channel, r.Host, address} {
		b = append(append(b, word...), 0)
	}
	if variant > 0 {
		b = binary.AppendUvarint(b, uint64(variant))
	}
	s.bytes = b
	sum := sha256.Sum256(b)
	m := mark(sum[:len(mark{})])
	if s.many == nil {
		if slices.Contains(s.few, m) {
			return true
		}
		if len(s.few) < fewMarks {
			s.few = append(s.few, m)
			return false
		}
		s.many = make(map[mark]struct{}, 4*fewMarks)
		for _, f := range s.few {
			s.many[f] = struct{}{}
		}
	}
	if _, there := s.many[m]; there {
		return true
	}
	s.many[m] = struct{}{}
	return false
}
