package workspec

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"strconv"
)

// sum is the checksum of what the router wrote, which the z line carries: CRC-32C of
// every byte before it but the tags, owners and delays of recipients, which are
// changed in place. A power loss may keep a file's length and leave
// zeros in its middle; the length alone would not tell. The sum is asked where there are
// zeros; a file that a person has edited is read as it is.
type sum uint32

func (s sum) add(b []byte) sum {
	return sum(crc32.Update(uint32(s), crc32.MakeTable(crc32.Castagnoli), b))
}

// sumUp brings the parser's checksum up to the byte at to; it goes on at from. Without
// zeros nobody asks for it.
func (p *parser) sumUp(to, from int) {
	if p.zeros {
		p.sum, p.summed = p.sum.add(p.b[p.summed:to]), from
	}
}

// fixedWidth is how many bytes behind the r change in place in a format.
func fixedWidth(format uint32) int {
	n := 1
	if format&FormatPID != 0 {
		n += ownerWidth
	}
	if format&FormatDelay != 0 {
		n += delayWidth
	}
	return n
}

// appendSum appends the checksum as it stands in a z line, behind a blank.
func (s sum) appendSum(b []byte) []byte { return fmt.Appendf(b, " %08x", uint32(s)) }

// right tells whether the text is this checksum. Writers of before had none.
func (s sum) right(text []byte) bool {
	if len(text) == 0 {
		return true
	}
	n, err := strconv.ParseUint(string(text), 16, 32)
	return err == nil && len(text) == 8 && uint32(n) == uint32(s)
}

// hasSum tells whether the z line at an offset of a file carries a checksum.
func hasSum(file []byte, z int64) bool {
	if z <= 0 || z >= int64(len(file)) {
		return false
	}
	line, _, _ := bytes.Cut(file[z:], []byte{'\n'})
	return bytes.Count(line, []byte{' '}) == 2
}

// lost tells that bytes hold zeros where a block of the disk was never written: more of
// them than anybody writes by hand, or nothing else. A header may hold so many, too, as
// its sender wrote them; then the checksum is right.
func lost(b []byte) bool {
	const least = 16
	return bytes.Contains(b, make([]byte, least)) || len(b) > 0 && len(bytes.Trim(b, "\x00")) == 0
}
