package workspec

import (
	"bytes"
	"strconv"
)

// LockOwners gives the owners in the locks of a specification, also of one that cannot
// be parsed: any line that looks like a locked recipient counts, once or more often.
func LockOwners(b []byte) []int {
	var list []int
	prefix := []byte{'r', byte(TagLocked)}
	for line := range bytes.Lines(b) {
		field, ok := bytes.CutPrefix(line, prefix)
		if !ok || len(field) < ownerWidth {
			continue
		}
		n, err := strconv.Atoi(string(bytes.TrimLeft(field[:ownerWidth], " ")))
		if err == nil && n > 0 {
			list = append(list, n)
		}
	}
	return list
}
