package workspec

import (
	"strings"

	"zmailer/internal/run/human"
)

// notarySep parts the values of a NOTARY field.
const notarySep = '\x01'

// String is the NOTARY field: the six values with ^A between, empty if all are. A
// control character in a value becomes a blank.
func (n Notary) String() string {
	if n == (Notary{}) {
		return ""
	}
	return string(appendNotary(make([]byte, 0, 128), &n))
}

func appendNotary(b []byte, n *Notary) []byte {
	if *n == (Notary{}) {
		return b
	}
	for i, v := range n.values() {
		if i > 0 {
			b = append(b, notarySep)
		}
		b = append(b, human.Blank(*v)...)
	}
	return b
}

func (n *Notary) values() [6]*string {
	return [6]*string{&n.Address, &n.Action, &n.Status, &n.Diagnostic, &n.Remote, &n.Agent}
}

// ParseNotary reads a NOTARY field; missing values are empty, a seventh is ignored.
// Control characters in a value become blanks, so that none can reach a header
// field of a report.
func ParseNotary(s string) Notary {
	var n Notary
	for _, v := range n.values() {
		value, rest, more := strings.Cut(s, string(notarySep))
		*v = human.Blank(value)
		if !more {
			break
		}
		s = rest
	}
	return n
}
