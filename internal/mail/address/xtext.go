package address

import (
	"fmt"
	"strings"
)

// EncodeXText writes any bytes as printable ASCII without blanks, "+" and "="
// (RFC 3461 §4 xtext).
func EncodeXText(s string) string {
	n := 0
	for i := 0; i < len(s); i++ {
		if !isXchar(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s)+2*n)
	for i := 0; i < len(s); i++ {
		if isXchar(s[i]) {
			b = append(b, s[i])
			continue
		}
		b = append(b, '+', hex[s[i]>>4], hex[s[i]&15])
	}
	return string(b)
}

func isXchar(b byte) bool { return b >= '!' && b <= '~' && b != '+' && b != '=' }

// DecodeXText reads xtext. It fails on a bad +HH and on blanks and control
// characters that stand there raw. The result may hold any byte, line ends
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
		hi, ok1 := unhex(s[i+1])
		lo, ok2 := unhex(s[i+2])
		if !ok1 || !ok2 {
			return "", fmt.Errorf("xtext %.100q: + without two hexadecimal digits", s)
		}
		b = append(b, hi<<4|lo)
		i += 2
	}
	return string(b), nil
}

func unhex(b byte) (byte, bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10, true
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10, true
	}
	return 0, false
}
