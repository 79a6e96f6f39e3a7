package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// DefaultPostOffice is the default place of the queues.
const DefaultPostOffice = "/var/spool/postoffice"

// PostOffice returns the postoffice directory, an absolute path.
func (c *Config) PostOffice() string { return c.String("POSTOFFICE", DefaultPostOffice) }

// Hostname is HOSTNAME, or the system's host name.
func (c *Config) Hostname() (string, error) {
	if name := c.String("HOSTNAME", ""); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", c.Invalid("HOSTNAME", "is not set and the system has none", err)
	}
	return name, nil
}

// String returns a value, def if it is not set or empty. ${NAME} refers to earlier
// values.
func (c *Config) String(name, def string) string {
	if v, _ := c.get(name); v.text != "" {
		return v.text
	}
	return def
}

// LogFormat returns the form of the log's lines, for logging.New: postfix by LOGFORMAT, or LOG.
func (c *Config) LogFormat() string {
	if c.String("LOGFORMAT", "") == "postfix" {
		return "postfix"
	}
	return c.String("LOG", "")
}

// Text returns a value, def if it is not set. Other than with String, a setting that was
// set to nothing is nothing.
func (c *Config) Text(name, def string) string {
	if v, ok := c.get(name); ok {
		return v.text
	}
	return def
}

// Invalid returns an error for a value that a program cannot use: it names the line
// that set it.
func (c *Config) Invalid(name, reason string, err error) *Error {
	v, ok := c.values[name]
	if !ok {
		v.file = c.File
		if v.file == "" {
			v.file = "configuration"
		}
	}
	text := name
	if v.text != "" {
		text = name + "=" + quote(v.text)
	}
	return &Error{File: v.file, Line: v.line, Reason: text + " " + reason, Err: err}
}

// typed parses a value that is set and fails with an *Error that names the line.
func typed[T any](c *Config, name string, def T, parse func(string) (T, error)) (T, error) {
	text := c.String(name, "")
	if text == "" {
		return def, nil
	}
	v, err := parse(text)
	if err != nil {
		return def, c.Invalid(name, "cannot be used", err)
	}
	return v, nil
}

// Int fails with an *Error that names the line.
func (c *Config) Int(name string, def int) (int, error) {
	return typed(c, name, def, func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return 0, errors.New("it must be a whole number")
		}
		return n, nil
	})
}

// Bool reads yes, no, true, false, on, off, 1, 0; it fails with an *Error.
func (c *Config) Bool(name string, def bool) (bool, error) {
	return typed(c, name, def, parseBool)
}

func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "yes", "true", "on", "1":
		return true, nil
	case "no", "false", "off", "0":
		return false, nil
	}
	return false, errors.New("it must be yes or no")
}

// Duration reads "1h5m20s", "3d", "90" (seconds); it fails with an *Error.
func (c *Config) Duration(name string, def time.Duration) (time.Duration, error) {
	return typed(c, name, def, ParseDuration)
}

// Size reads bytes: "100M", "64k", "1G", "1000"; it fails with an *Error.
func (c *Config) Size(name string, def int64) (int64, error) {
	return typed(c, name, def, ParseSize)
}

// List splits at commas and blanks; empty if the value is not set.
func (c *Config) List(name string) []string {
	return SplitList(c.String(name, ""))
}

// SplitList splits at commas and blanks.
func SplitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}

// ParseDuration reads a length of time in whole weeks, days, hours, minutes and
// seconds, "1w2d3h4m5s", each unit at most once and the larger ones first; a number
// alone is seconds. scheduler.conf has the same form.
func ParseDuration(s string) (time.Duration, error) {
	const form = "it must be like 90, 15s, 1h5m20s or 3d"
	units := []struct {
		letter byte
		length time.Duration
	}{{'w', 7 * 24 * time.Hour}, {'d', 24 * time.Hour}, {'h', time.Hour}, {'m', time.Minute}, {'s', time.Second}}
	total, rest := time.Duration(0), s
	for rest != "" {
		i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if i < 0 {
			i = len(rest)
		}
		n, err := strconv.ParseInt(rest[:i], 10, 64)
		if err != nil {
			return 0, errors.New(form)
		}
		letter := byte('s')
		if rest = rest[i:]; rest != "" {
			letter, rest = rest[0], rest[1:]
		}
		for len(units) > 0 && units[0].letter != letter {
			units = units[1:]
		}
		if len(units) == 0 {
			return 0, errors.New(form)
		}
		unit := units[0].length
		units = units[1:]
		if n > int64((math.MaxInt64-total)/unit) {
			return 0, errors.New("it is longer than 292 years")
		}
		total += time.Duration(n) * unit
	}
	if s == "" {
		return 0, errors.New(form)
	}
	return total, nil
}

// ParseSize reads a number of bytes; k, M, G and T (either case) are powers of 1024.
func ParseSize(s string) (int64, error) {
	digits, shift := s, 0
	if s != "" {
		if i := strings.IndexByte("kmgt", s[len(s)-1]|0x20); i >= 0 {
			digits, shift = s[:len(s)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, errors.New("it must be a number of bytes like 1000, 64k, 100M or 1G")
	}
	if n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("it is above %d bytes", int64(math.MaxInt64))
	}
	return int64(n) << shift, nil
}

// ParseNet reads a network, or a single address.
func ParseNet(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	n, err := netip.ParsePrefix(text)
	if err != nil {
		return n, errors.New(text + " is neither an address nor a network, like 192.0.2.0/24 or 2001:db8::/32")
	}
	return n.Masked(), nil
}
