package passwd

import (
	"bytes"
	"strings"
)

// Change is what becomes of a user's lines.
type Change struct {
	User     string
	Password string // "": the user is removed
	SCRAM    bool   // keys for SCRAM-SHA-256 too
}

// Apply returns a file's text with a user's lines replaced, in the place of the first, or
// put behind the others; known reports whether he was there. All other lines stay as they
// are, bad ones too.
func (c Change) Apply(text []byte) (changed []byte, known bool, err error) {
	if err := CheckUser(c.User); err != nil {
		return nil, false, err
	}
	var made []string
	if c.Password != "" {
		made = append(made, c.User+":"+NewHash(c.Password)+"\n")
		if c.SCRAM {
			keys, err := NewSCRAM(c.Password)
			if err != nil {
				return nil, false, err
			}
			made = append(made, c.User+":"+keys.String()+"\n")
		}
	}
	var out bytes.Buffer
	for line := range bytes.Lines(text) {
		if user, _, ok := bytes.Cut(line, []byte{':'}); ok && string(user) == c.User {
			if !known {
				out.WriteString(strings.Join(made, ""))
			}
			known = true
			continue
		}
		out.Write(line)
		if line[len(line)-1] != '\n' {
			out.WriteByte('\n')
		}
	}
	if !known {
		out.WriteString(strings.Join(made, ""))
	}
	return out.Bytes(), known, nil
}
