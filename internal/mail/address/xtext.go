package address

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// EncodeXText writes any bytes as printable ASCII without blanks, "+" and "="
// (RFC 3461 §4 xtext).
func EncodeXText(s string) string {
	first := 0
	for first < len(s) && isXchar(s[first]) {
		first++
	}
	if first == len(s) {
		return s
	}
	b := []byte(s[:first])
	for _, c := range []byte(s[first:]) {
		if isXchar(c) {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "+%02X", c)
		}
	}
	return string(b)
}

func isXchar(b byte) bool { return b >= '!' && b <= '~' && b != '+' && b != '=' }

// DecodeXText reads xtext. It fails on a bad +HH and on blanks and control
// characters that are written raw there. The result may hold any byte, line ends
// included: what it is put into must guard itself. Lower-case hexadecimal digits, a
// raw "=" and raw UTF-8 (RFC 6533 §3, utf-8-addr-unitext) are let pass.
func DecodeXText(s string) (string, error) {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] == 0x7f {
			return "", fmt.Errorf("xtext %.100q: raw character 0x%02x", s, s[i])
		}
	}
	if strings.IndexByte(s, '+') < 0 {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '+' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("xtext %.100q: + without two hexadecimal digits", s)
		}
		var err error
		if b, err = hex.AppendDecode(b, []byte(s[i+1:i+3])); err != nil {
			return "", fmt.Errorf("xtext %.100q: + without two hexadecimal digits", s)
		}
		i += 2
	}
	return string(b), nil
}
