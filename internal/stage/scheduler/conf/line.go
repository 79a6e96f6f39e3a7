package conf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/xrash/smetrics"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/dsn"
	"zmailer/internal/run/config"
)

// token is one keyword or key=value of a line.
type token struct {
	key, value  string
	has         bool // there is a =
	at, valueAt place
}

// next cuts a token from a rest of the line; a token without a key means the end. bad is an
// error at the token's place.
func (p *confParser) next(s string) (t token, rest, bad string) {
	s = strings.TrimLeft(s, " \t")
	t.at = p.line.at(s)
	if s == "" || s[0] == '#' {
		return t, "", ""
	}
	end := strings.IndexAny(s, " \t=#\"")
	if end < 0 {
		end = len(s)
	}
	whole := s
	t.key, s = s[:end], s[end:]
	t.valueAt = t.at
	after := strings.TrimLeft(s, " \t")
	if !strings.HasPrefix(after, "=") {
		if t.key == "" || strings.HasPrefix(s, `"`) {
			return t, "", fmt.Sprintf("%.40q: want key=value", whole)
		}
		return t, s, ""
	}
	if t.key == "" {
		return t, "", "= without a key"
	}
	s = strings.TrimLeft(after[1:], " \t")
	t.has, t.valueAt = true, p.line.at(s)
	if strings.HasPrefix(s, `"`) {
		value, rest, ok := unquote(s[1:])
		if !ok {
			return t, "", fmt.Sprintf(`%s: no closing "`, t.key)
		}
		if rest != "" && !strings.ContainsAny(rest[:1], " \t#") {
			t.at = p.line.at(rest)
			return t, "", fmt.Sprintf(`%s: text after the closing "`, t.key)
		}
		t.value = value
		return t, rest, ""
	}
	if end = strings.IndexAny(s, " \t"); end < 0 {
		end = len(s)
	}
	if end == 0 || s[0] == '#' {
		return t, "", fmt.Sprintf("%s= has no value", t.key)
	}
	t.value = s[:end]
	return t, s[end:], ""
}

// unquote parses up to the closing quote; a backslash escapes the next character.
func unquote(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:], true
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// params returns the parsers of PARAM lines by name.
func params() map[string]func(c *File, value string) error {
	return map[string]func(c *File, value string) error{
		"mailqsock": func(c *File, value string) error { c.MailQSock = value; return nil },
		"authfile":  func(c *File, value string) error { c.AuthFile = value; return nil },
		"global-report-interval": func(c *File, value string) (err error) {
			c.ReportInterval, err = config.ParseDuration(value)
			return err
		},
		"deliveryreports": func(c *File, value string) error {
			if value != "drop" && value != "postman" {
				return fmt.Errorf("want drop or postman")
			}
			c.CopyUndeliverable = value == "postman"
			return nil
		},
		"report-language": func(c *File, value string) error {
			if c.Reports.Language = strings.ToLower(value); !dsn.IsLanguage(c.Reports.Language) {
				return errors.New("want a language tag like en, de or pt-br")
			}
			return nil
		},
		"report-size": func(c *File, value string) (err error) {
			c.Reports.Size, err = config.ParseSize(value)
			return err
		},
		"report-full-size": func(c *File, value string) (err error) {
			c.Reports.FullSize, err = config.ParseSize(value)
			return err
		},
		"report-copies": func(c *File, value string) error {
			if c.Reports.CopyTo = value; strings.EqualFold(value, "none") {
				c.Reports.CopyTo = ""
				return nil
			}
			if m, err := address.Parse(value); err != nil || m.IsNull() {
				return errors.New("want none, or an address like postmaster@example.org")
			}
			return nil
		},
	}
}

// parseParam parses what follows PARAM: name = value.
func (p *confParser) parseParam(s string) {
	t, rest, bad := p.next(s)
	if bad != "" {
		p.bad(t.at, "%s", bad)
		return
	}
	rest = strings.TrimLeft(rest, " \t")
	if t.key == "" || !t.has || rest != "" && rest[0] != '#' {
		p.bad(t.at, "want PARAM name = value")
		return
	}
	known := params()
	put := known[strings.ToLower(t.key)]
	if put == nil {
		p.bad(t.at, "unknown PARAM %s; did you mean %s?", t.key, nearest(strings.ToLower(t.key), known))
		return
	}
	if err := put(p.conf, t.value); err != nil {
		p.bad(t.valueAt, "PARAM %s=%s: %v", t.key, t.value, err)
	}
}

// nearest returns the known name with the fewest edits from name.
func nearest[T any](name string, known map[string]T) string {
	best, least := "", 0
	for k := range known {
		if d := smetrics.WagnerFischer(name, k, 1, 1, 1); best == "" || d < least || d == least && k < best {
			best, least = k, d
		}
	}
	return best
}

// QuerySocket parses PARAM mailqsock: a path, UNIX:path, TCP:port, host:port or a port.
func QuerySocket(s string) (network, addr string) {
	if s == "" {
		return "", ""
	}
	if path, ok := cutFold(s, "UNIX:"); ok {
		return "unix", path
	}
	if strings.HasPrefix(s, "/") {
		return "unix", s
	}
	addr, _ = cutFold(s, "TCP:")
	if !strings.Contains(addr, ":") {
		addr = ":" + addr
	}
	return "tcp", addr
}
