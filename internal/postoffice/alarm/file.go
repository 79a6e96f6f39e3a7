package alarm

import (
	"bytes"
	"strings"
	"time"
	"unicode"
)

// Append writes alarms as the lines of the file `alarms`: SINCE KIND SUBJECT TEXT.
func Append(b []byte, list []Alarm) []byte {
	for i := range list {
		a := &list[i]
		b = a.Since.UTC().AppendFormat(b, time.RFC3339)
		for _, word := range []string{string(a.Kind), strings.ReplaceAll(line(a.Subject), " ", "?")} {
			b = append(append(b, ' '), word...)
		}
		b = append(append(append(b, ' '), line(a.Text)...), '\n')
	}
	return b
}

// line keeps a text on its line.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}

// Parse reads what Append wrote; lines that are none are left out.
func Parse(b []byte) []Alarm {
	var list []Alarm
	for l := range bytes.Lines(b) {
		f := strings.SplitN(strings.TrimSuffix(string(l), "\n"), " ", 4)
		if len(f) != 4 {
			continue
		}
		since, err := time.Parse(time.RFC3339, f[0])
		if err != nil || !strings.HasSuffix(string(l), "\n") {
			continue
		}
		list = append(list, Alarm{Kind: Kind(f[1]), Subject: f[2], Since: since, Text: f[3]})
	}
	return list
}
