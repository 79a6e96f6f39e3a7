// Package discard is the table of EHLO keywords that are ignored, by host or address:
// what Postfix has in smtp_discard_ehlo_keyword_address_maps. It is bytes and values; package
// tasmtp reads the file.
//
// Nothing here survives a crash, nor needs to.
//
// Diagnostics: Parse's error holds a *config.Error for every line that cannot be used,
// with file, line and column.
package discard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"zmailer/internal/run/config"
	"zmailer/internal/run/glob"
)

// maxRules bounds the table: it is searched from its beginning for each new connection.
const maxRules = 10000

// keywords are those that ta-smtp makes use of.
var keywords = []string{"PIPELINING", "SIZE", "8BITMIME", "DSN", "SMTPUTF8", "ENHANCEDSTATUSCODES", "STARTTLS", "REQUIRETLS", "AUTH"}

// unused are accepted as Postfix's tables have them, and mean nothing here.
var unused = []string{"CHUNKING", "ETRN", "VRFY", "XFORWARD", "XCLIENT", "SILENT-DISCARD"}

// rule is one line.
type rule struct {
	prefix        netip.Prefix // of server addresses; invalid: channel and host
	channel, host string       // patterns of * and ?; host in lower case
	keywords      []string     // upper case
}

// Table is the lines of a file in their order.
type Table struct{ rules []rule }

// Len returns the number of rules.
func (t *Table) Len() int { return len(t.rules) }

// Match returns the keywords of the first line for a destination or for the address of a
// server, upper case; nil if there is none. The address may be invalid, as for a socket.
func (t *Table) Match(channel, host string, addr netip.Addr) []string {
	if t == nil || len(t.rules) == 0 {
		return nil
	}
	host, addr = strings.ToLower(host), addr.WithZone("").Unmap()
	for i := range t.rules {
		r := &t.rules[i]
		if r.prefix.IsValid() {
			if r.prefix.Contains(addr) {
				return r.keywords
			}
		} else if glob.Match(r.channel, channel) && glob.Match(r.host, host) {
			return r.keywords
		}
	}
	return nil
}

// Parse reads a table: on each line an address, a network or channel/host, and keywords
// separated by commas or blanks. file is its name for errors, all of which are reported.
func Parse(file string, text []byte) (*Table, error) {
	t := &Table{}
	var errs []error
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' || r == '\r' || r == '\n' })
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		bad := func(word, reason string) {
			column := utf8.RuneCountInString(line[:max(strings.Index(line, word), 0)]) + 1
			errs = append(errs, &config.Error{File: file, Line: number, Column: column, Reason: reason})
		}
		if !utf8.ValidString(line) {
			bad("", "a character that is no text")
			continue
		}
		r, err := pattern(fields[0])
		if err != nil {
			bad(fields[0], err.Error())
			continue
		}
		if len(fields) == 1 {
			bad(fields[0], "no EHLO keyword behind "+fields[0])
			continue
		}
		for _, word := range fields[1:] {
			switch upper := strings.ToUpper(word); {
			case slices.Contains(keywords, upper):
				r.keywords = append(r.keywords, upper)
			case !slices.Contains(unused, upper):
				bad(word, fmt.Sprintf("%s is no EHLO keyword that ta-smtp uses; there are %s", word, strings.ToLower(strings.Join(keywords, ", "))))
			}
		}
		if t.rules = append(t.rules, r); len(t.rules) > maxRules {
			bad(fields[0], fmt.Sprintf("more than %d lines", maxRules))
			break
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return t, nil
}

// pattern reads the first word of a line.
func pattern(word string) (rule, error) {
	if a, err := netip.ParseAddr(strings.Trim(word, "[]")); err == nil {
		a = a.WithZone("").Unmap()
		return rule{prefix: netip.PrefixFrom(a, a.BitLen())}, nil
	}
	channel, host, ok := strings.Cut(word, "/")
	if p, err := netip.ParsePrefix(word); err == nil {
		if p.Addr().Is4In6() {
			return rule{}, fmt.Errorf("%s: write an IPv4 network as 192.0.2.0/24", word)
		}
		return rule{prefix: p.Masked()}, nil
	}
	if !ok || channel == "" || host == "" {
		return rule{}, fmt.Errorf("%s is neither an address, nor a network like 192.0.2.0/24, nor channel/host like smtp/*.example.com", word)
	}
	if _, err := netip.ParseAddr(strings.Trim(channel, "[]")); err == nil {
		return rule{}, fmt.Errorf("%s: %s is no length of a network", word, host)
	}
	return rule{channel: glob.Simple(channel), host: glob.Simple(strings.ToLower(host))}, nil
}
