package sts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// maxAge is the most that a policy may ask for, a year (RFC 8461 §3.2).
const maxAge = 31557600 * time.Second

// Parse reads a policy (RFC 8461 §3.2). Unknown fields are ignored; of one
// that comes twice, but for mx, the first counts.
func Parse(text string) (*Policy, error) {
	p := &Policy{}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || key != "mx" && seen[key] {
			continue
		}
		seen[key] = true
		if err := p.field(key, value); err != nil {
			return nil, err
		}
	}
	switch {
	case !seen["version"]:
		return nil, errors.New("it has no version: STSv1")
	case p.Mode == "":
		return nil, errors.New("it has no mode")
	case !seen["max_age"]:
		return nil, errors.New("it has no max_age")
	case len(p.MX) == 0 && p.Mode != None:
		return nil, errors.New("it names no mx")
	}
	return p, nil
}

func (p *Policy) field(key, value string) error {
	switch key {
	case "version":
		if value != "STSv1" {
			return fmt.Errorf("its version is %.40q, not STSv1", value)
		}
	case "mode":
		p.Mode = Mode(value)
		if p.Mode != Enforce && p.Mode != Testing && p.Mode != None {
			return fmt.Errorf("its mode is %.40q", value)
		}
	case "max_age":
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil {
			return fmt.Errorf("its max_age is %.40q", value)
		}
		p.MaxAge = maxAge
		if n < uint64(maxAge/time.Second) {
			p.MaxAge = time.Duration(n) * time.Second
		}
	case "mx":
		mx := strings.ToLower(strings.TrimSuffix(value, "."))
		name := strings.TrimPrefix(mx, "*.")
		if _, ok := dns.IsDomainName(name); !ok || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '*' || r == '/' }) {
			return fmt.Errorf("its mx is %.80q", value)
		}
		p.MX = append(p.MX, mx)
	default:
		return nil
	}
	p.Lines = append(p.Lines, key+": "+value)
	return nil
}
