package policy

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"zmailer/internal/mail/envelope"
)

// checkField refuses a field that may not be added, or with remove be removed; there name
// is a glob.
func checkField(name, value string, remove bool) error {
	f := envelope.Fields([]byte(name + ": x\n"))
	if name == "" || len(name) > 70 || len(f) != 1 || f[0].Name != name || strings.ContainsAny(name, " \t") {
		return fmt.Errorf("%.80q is no field name", name)
	}
	switch strings.ToLower(name) {
	case "received", "return-path":
		return fmt.Errorf("%s belongs to mail systems: messages in a circle are known by it", name)
	}
	if remove {
		if _, err := path.Match(strings.ToLower(name), ""); err != nil {
			return fmt.Errorf("%.80q: %w", name, err)
		}
		return nil
	}
	if strings.TrimSpace(value) == "" || strings.TrimSpace(value) != value {
		return fmt.Errorf("%s: a value without blanks around it is wanted", name)
	}
	return checkText(value, 900)
}

// checkText keeps a text on its line.
func checkText(s string, most int) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("text of %d bytes, at most %d", len(s), most)
	case !utf8.ValidString(s):
		return errors.New("text that is not UTF-8")
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return fmt.Errorf("control character 0x%02x in the text", s[i])
	}
	return nil
}
