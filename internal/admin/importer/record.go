package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// The record is a text, imports/SYSTEM-PATH-DIGITS. A line is a time, a verb, a message's
// key, and words:
//
//	2026-11-22T18:20:01Z prepared 4XyB1 import-1a2b3c4d.99.abc.1 import-1a2b3c4d.99.abd.2:held
//	2026-11-22T18:20:01Z taken 4XyB1 S123A45 S124A46
//
// prepared names files in imports/; behind a colon stands the word with which a file is for
// freezer/. taken names them as they are in the postoffice; "-" is one whose line was lost,
// and which an interrupted import had moved.

const (
	verbPrepared = "prepared"
	verbTaken    = "taken"
)

// recordName names the record of a queue, and tag its messages in imports/.
func recordName(system, path string) (name, tag string) {
	sum := sha256.Sum256([]byte(system + "\x00" + path))
	digits := hex.EncodeToString(sum[:4])
	readable := strings.Map(func(r rune) rune {
		switch {
		case r == '/':
			return '-'
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, strings.Trim(path, "/"))
	const longest = 80
	if len(readable) > longest {
		readable = readable[len(readable)-longest:]
	}
	return system + "-" + readable + "-" + digits, "import-" + digits
}

func recordHead(system, path string) []byte {
	return fmt.Appendf(nil, "# zmctl import %s %s\n# prepared KEY FILE...: the message KEY of that queue was written as these files, here in imports/\n"+
		"# taken KEY ID...: they are in the postoffice, with these spool IDs; KEY is not taken again\n", system, escape(path))
}

// noted is what a record says of a message.
type noted struct {
	files []string // FILE or FILE:CAUSE
	taken bool
}

// parseRecord reads a record. Lines that are none are passed over: a cut one ends in the
// word torn.
func parseRecord(text []byte) map[string]*noted {
	all := map[string]*noted{}
	for line := range strings.Lines(string(text)) {
		line, whole := strings.CutSuffix(line, "\n")
		f := strings.Fields(line)
		if !whole || len(f) < 4 || f[0] == "#" || f[len(f)-1] == "torn" || strings.ContainsRune(line, 0) {
			continue
		}
		if _, err := time.Parse(time.RFC3339, f[0]); err != nil {
			continue
		}
		switch f[1] {
		case verbPrepared:
			all[f[2]] = &noted{files: f[3:]}
		case verbTaken:
			all[f[2]] = &noted{taken: true}
		}
	}
	return all
}

func appendLine(b []byte, now time.Time, verb, key string, words []string) []byte {
	b = now.UTC().AppendFormat(b, time.RFC3339)
	b = append(append(append(b, ' '), verb...), ' ')
	b = append(b, key...)
	for _, w := range words {
		b = append(append(b, ' '), w...)
	}
	return append(b, '\n')
}

// escape makes a text one word of printable ASCII.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7f && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if b.Len() == 0 {
		return "%"
	}
	return b.String()
}
