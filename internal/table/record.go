package table

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// A compiled table is a bbolt file with two buckets. "head" holds one header. "entries"
// holds, in the order of their keys, a record for each key and one before the first. A
// record says which key follows its own, and its checksum covers that: a key that is not
// there is proven not to be by the record before its place, so that a torn or damaged file
// can never pass for one without the key. No answer costs more than two records.
const (
	headBucket    = "head"
	entriesBucket = "entries"
	firstKey      = "0" // before all that have keyPrefix
	keyPrefix     = "k"
	format        = 1
)

// header has the origin of a compiled table.
type header struct {
	Format  int    `json:"format"`
	Kind    string `json:"kind"`   // aliases, …
	Source  string `json:"source"` // path of the text form
	UID     uint32 `json:"uid"`    // privilege of the text form when it was read
	Entries int    `json:"entries"`
	Made    string `json:"made"` // RFC 3339
}

type record struct {
	line int
	text string
}

var errDamaged = errors.New("its checksum does not fit: the file is damaged, or being overwritten")

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// checksum covers a record, its key and the key that follows; nil: none does.
func checksum(key, next, body []byte) uint32 {
	var n [2 * binary.MaxVarintLen64]byte
	b := binary.AppendUvarint(n[:0], uint64(len(key)))
	b = binary.AppendUvarint(b, uint64(len(next)))
	sum := crc32.Update(0, castagnoli(), b)
	for _, part := range [][]byte{key, next, body} {
		sum = crc32.Update(sum, castagnoli(), part)
	}
	return sum
}

// encode returns the bytes of a record: checksum, line, text.
func (r record) encode(key, next []byte) []byte {
	body := binary.AppendUvarint(make([]byte, 4, 8+len(r.text)), uint64(r.line))
	body = append(body, r.text...)
	binary.BigEndian.PutUint32(body, checksum(key, next, body[4:]))
	return body
}

// decode reads the bytes of a record and checks them.
func decode(key, next, b []byte) (record, error) {
	if len(b) < 5 || binary.BigEndian.Uint32(b) != checksum(key, next, b[4:]) {
		return record{}, errDamaged
	}
	line, n := binary.Uvarint(b[4:])
	if n <= 0 {
		return record{}, errDamaged
	}
	return record{int(line), string(b[4+n:])}, nil
}

func (h header) encode() ([]byte, error) {
	b, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli())), nil
}

// decodeHeader reads the bytes of a header and checks them.
func decodeHeader(b []byte) (h header, err error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b[len(b)-4:]) != crc32.Checksum(b[:len(b)-4], castagnoli()) {
		return header{}, fmt.Errorf("its header: %w", errDamaged)
	}
	if err := json.Unmarshal(b[:len(b)-4], &h); err != nil {
		return header{}, fmt.Errorf("its header: %w", err)
	}
	if h.Format != format {
		return header{}, fmt.Errorf("format %d, not %d: make it again with this version's zmctl newdb", h.Format, format)
	}
	return h, nil
}
