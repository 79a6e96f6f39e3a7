package table

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/config"
)

// Source is one of the sources in a setting, taken apart.
type Source struct {
	Text   string // as it is written in the setting
	Scheme string // of schemes
	Rest   string // what follows the colon
}

func schemes() []string {
	return slices.Concat([]string{"file", "db", "regexp"}, settings.Schemes(), []string{"exec", "socket", "pipemap", "unionmap"})
}

// IsScheme reports whether a word is a kind of source.
func IsScheme(word string) bool { return slices.Contains(schemes(), word) }

// Split returns the sources of a setting, which are separated by blanks. One that has
// blanks itself outside braces is quoted: ALIASES="aliases 'exec:/usr/lib/users --shop'".
func Split(setting string) ([]string, error) {
	var list []string
	for rest := strings.TrimLeft(setting, " \t"); rest != ""; rest = strings.TrimLeft(rest, " \t") {
		quote := rest[0]
		if quote != '\'' && quote != '"' {
			word := rest[:wordEnd(rest)]
			list = append(list, word)
			rest = rest[len(word):]
			continue
		}
		end := strings.IndexByte(rest[1:], quote)
		if end < 0 {
			return nil, fmt.Errorf("no closing %c in %s", quote, rest)
		}
		list = append(list, rest[1:1+end])
		rest = rest[end+2:]
	}
	return list, nil
}

// wordEnd returns where the first word of s ends: at a blank outside braces.
func wordEnd(s string) int {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			depth--
		case ' ', '\t':
			if depth <= 0 {
				return i
			}
		}
	}
	return len(s)
}

// Parse takes a source apart. Paths become absolute, relative ones from dir. A source
// without a scheme is a file.
func Parse(source, dir string) (Source, error) {
	s := Source{Text: source}
	scheme, rest, ok := strings.Cut(source, ":")
	if !ok || strings.Contains(scheme, "/") {
		scheme, rest = "file", source
	}
	s.Scheme, s.Rest = scheme, rest
	bad := func(format string, args ...any) (Source, error) {
		return s, &config.Error{File: source, Reason: fmt.Sprintf(format, args...)}
	}
	switch scheme {
	case "pipemap", "unionmap":
		list, err := parts(rest)
		if err != nil {
			return bad("%v", err)
		}
		for _, part := range list {
			if _, err := Parse(part, dir); err != nil {
				return bad("%v", err)
			}
		}
	case "exec":
		if strings.TrimSpace(rest) == "" {
			return bad("no program behind exec:")
		}
		if program, args, more := strings.Cut(strings.TrimSpace(rest), " "); more {
			s.Rest = absolute(program, dir) + " " + args
		} else {
			s.Rest = absolute(program, dir)
		}
	case "socket":
		if _, err := parseSocket(rest); err != nil {
			return bad("%v", err)
		}
	default:
		if IsScheme(scheme) {
			if rest == "" {
				return bad("no path behind %s:", scheme)
			}
			s.Rest = absolute(rest, dir)
			break
		}
		if hint := postfixHint(scheme, rest); hint != "" {
			return bad("%q is no kind of source here: %s", scheme, hint)
		}
		return bad("%q is no kind of source: want a path, or one of %s: in front", scheme, strings.Join(schemes(), ": "))
	}
	return s, nil
}

// postfixHint returns what to write in the place of a type of table that only Postfix has.
func postfixHint(scheme, rest string) string {
	switch scheme {
	case "hash", "btree", "lmdb", "cdb", "dbm", "sdbm", "texthash":
		return "a text file has no type in front: " + rest + " (zmctl newdb compiles a large one)"
	case "pcre":
		return "write regexp:" + rest + ", whose expressions are RE2"
	case "tcp":
		return "write socket: (docs/tables.md)"
	case "proxy":
		return "connections are shared without it: " + rest
	}
	return ""
}

func absolute(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// address is where a socketmap server listens, and which of its maps is meant.
type socketAddress struct {
	network string // unix, tcp
	address string
	name    string // of the map; "": Options.Name
}

// parseSocket reads unix:PATH[:MAP] or inet:HOST:PORT[:MAP], as Postfix writes them.
func parseSocket(s string) (socketAddress, error) {
	family, rest, _ := strings.Cut(s, ":")
	switch family {
	case "unix":
		path, name, _ := strings.Cut(rest, ":")
		if !filepath.IsAbs(path) {
			return socketAddress{}, fmt.Errorf("unix: wants a path from the root, not %q", path)
		}
		return socketAddress{"unix", path, name}, nil
	case "inet":
		end := len(rest)
		host := strings.LastIndexByte(rest, ']') // an IPv6 address has colons of its own
		parts := strings.SplitN(rest[host+1:], ":", 3)
		if len(parts) == 3 {
			end -= len(parts[2]) + 1
		}
		if len(parts) < 2 || parts[1] == "" || host < 0 && parts[0] == "" {
			return socketAddress{}, fmt.Errorf("inet: wants HOST:PORT, not %q", rest)
		}
		a := socketAddress{network: "tcp", address: rest[:end]}
		if len(parts) == 3 {
			a.name = parts[2]
		}
		return a, nil
	}
	return socketAddress{}, fmt.Errorf("want socket:unix:PATH or socket:inet:HOST:PORT, a map's name behind it if need be, not %q", s)
}
