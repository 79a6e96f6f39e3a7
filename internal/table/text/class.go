package text

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"zmailer/internal/run/config"
)

// Store is how the mail of a virtual mailbox is delivered. A table of mailboxes has it for
// each, one of domains what holds for those that do not say otherwise.
type Store struct {
	Path      string // below VIRTUALMAILBOXBASE; with / at the end a Maildir; "": not given
	UID, GID  uint32 // 0: not given
	Mode      uint32 // of the files; 0: not given
	Quota     int64  // bytes, 0: no limit
	HasQuota  bool
	Transport *Route // nil: not given
	Verify    string // of a domain: yes, no, or "" if it is not given
}

// keys of a Store, for errors.
const (
	storeKeys  = "uid, gid, mode, quota or transport"
	domainKeys = storeKeys + " or verify"
)

// ParseMailbox reads the value of a virtual mailbox: a path, and KEY=VALUE words behind it.
// The path may be left out, and is in quotes if it has blanks.
func ParseMailbox(s string) (Store, error) {
	s = strings.TrimSpace(s)
	var out Store
	rest := s
	switch {
	case strings.HasPrefix(s, `"`):
		end := strings.IndexByte(s[1:], '"')
		if end < 0 {
			return out, errors.New("no closing quote behind the path")
		}
		out.Path, rest = s[1:1+end], s[2+end:]
	default:
		word, more, _ := strings.Cut(strings.ReplaceAll(s, "\t", " "), " ")
		if key, _, is := strings.Cut(word, "="); !is || strings.Contains(key, "/") {
			out.Path, rest = word, more
		}
	}
	if err := checkPath(out.Path); err != nil {
		return out, err
	}
	for word := range strings.FieldsSeq(rest) {
		key, value, ok := strings.Cut(word, "=")
		if !ok || key == "verify" {
			return out, fmt.Errorf("%q behind the path: want %s=VALUE", word, storeKeys)
		}
		if err := out.set(key, value, storeKeys); err != nil {
			return out, err
		}
	}
	return out, nil
}

// ParseDomain reads what stands behind a virtual or relay domain: KEY=VALUE words. Other
// words mean nothing: Postfix's tables of domains have any.
func ParseDomain(s string) (out Store, err error) {
	for word := range strings.FieldsSeq(s) {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			continue
		}
		if err := out.set(key, value, domainKeys); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (o *Store) set(key, value, keys string) (err error) {
	switch key {
	case "uid":
		o.UID, err = ParseID(value)
	case "gid":
		o.GID, err = ParseID(value)
	case "mode":
		mode, merr := strconv.ParseUint(value, 8, 32)
		if o.Mode = uint32(mode); merr != nil || mode&^0o660 != 0 || mode&0o600 != 0o600 {
			err = errors.New("it must be 0600, 0640 or 0660: the owner reads and writes, others may not")
		}
	case "quota":
		o.Quota, err = config.ParseSize(value)
		o.HasQuota = true
	case "transport":
		var r Route
		if r, err = ParseRoute(value); err == nil && r.Channel == "local" {
			err = errors.New("mailboxes of a virtual domain are not those of local users")
		}
		o.Transport = &r
	case "verify":
		if o.Verify = value; value != "yes" && value != "no" {
			err = errors.New("it must be yes or no")
		}
	default:
		return fmt.Errorf("unknown key %q: want %s", key, keys)
	}
	if err != nil {
		return fmt.Errorf("%s=%s: %w", key, value, err)
	}
	return nil
}

// ParseID reads a uid or gid, which is never root's.
func ParseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 31)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%.40q is not a number, as uids and gids are here", s)
	case n == 0:
		return 0, errors.New("0 is root's: mailboxes never belong to root")
	}
	return uint32(n), nil
}

// checkPath checks the path of a mailbox below VIRTUALMAILBOXBASE.
func checkPath(s string) error {
	bare := strings.Trim(s, "/")
	switch {
	case s == "":
		return nil
	case bare == "" || path.Clean(bare) != bare || strings.HasPrefix(bare, "../") || bare == ".." || bare == ".":
		return fmt.Errorf("%q is not a plain path below VIRTUALMAILBOXBASE", s)
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("control character in the path %q", s)
	case len(s) > 1024:
		return errors.New("the path is longer than 1024 bytes")
	}
	return nil
}

// classLine takes a line of the tables of domain classes: a key, and the rest.
func (s *scanner) classLine(line string) error {
	line = strings.TrimSpace(withoutComment(line))
	if line == "" {
		return nil
	}
	end := keyEnd(line)
	word, rest := line[:end], strings.TrimSpace(line[end:])
	key, err := Key(s.kind, word)
	if err != nil {
		return s.bad(s.number, "bad key", err)
	}
	e := Entry{Key: key, Text: rest, Line: s.number}
	if err := e.parseClass(s.kind); err != nil {
		return s.bad(s.number, "bad value of "+key, err)
	}
	return s.each(e)
}

// keyEnd is where the key ends: at a blank, which may be in a quoted local part.
func keyEnd(line string) int {
	quoted := false
	for i := 0; i < len(line); i++ {
		switch b := line[i]; {
		case b == '\\' && quoted:
			i++
		case b == '"':
			quoted = !quoted
		case !quoted && (b == ' ' || b == '\t'):
			return i
		}
	}
	return len(line)
}

// parseClass reads Text.
func (e *Entry) parseClass(kind Kind) (err error) {
	switch kind {
	case VirtualMailboxMaps:
		e.Store, err = ParseMailbox(e.Text)
	case VirtualAliasDomains, VirtualMailboxDomains, RelayDomains:
		e.Store, err = ParseDomain(e.Text)
	case VirtualUIDMaps, VirtualGIDMaps:
		e.ID, err = ParseID(e.Text)
	}
	return err
}

// ParseClass reads the value that a source has for a key of a table of domain classes.
func ParseClass(kind Kind, value string) (Entry, error) {
	e := Entry{Text: value}
	return e, e.parseClass(kind)
}
