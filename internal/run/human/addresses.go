package human

import (
	"strings"
)

// Addresses writes addresses in angle brackets.
func Addresses(addresses []string) string {
	var b strings.Builder
	for i, a := range addresses {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("<" + Clean(a) + ">")
	}
	return b.String()
}
