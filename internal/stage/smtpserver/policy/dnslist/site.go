package dnslist

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Site is one entry of DNSBL_SITES: DOMAIN[=FILTER][*WEIGHT].
type Site struct {
	Domain string
	Filter Filter
	Weight int // of a client that is listed; less than 0: it vouches for the client
	text   string
}

func (s Site) String() string { return s.text }

// maxWeight bounds a weight, so that no sum overflows.
const maxWeight = 1 << 20

// ParseSite reads an entry, as postscreen_dnsbl_sites has them: zen.example*2,
// list.example=127.0.0.[2..11]*3, allow.example=127.0.[0..255].[1;3]*-2.
func ParseSite(text string) (Site, error) {
	s := Site{Weight: 1, text: text}
	rest, weight, ok := strings.Cut(text, "*")
	if ok {
		n, err := strconv.Atoi(weight)
		if err != nil || n > maxWeight || n < -maxWeight {
			return s, fmt.Errorf("%s: the weight %q is no integer: want DOMAIN[=FILTER][*WEIGHT], like zen.example=127.0.0.[2..11]*3", text, weight)
		}
		s.Weight = n
	}
	domain, filter, ok := strings.Cut(rest, "=")
	if ok {
		var err error
		if s.Filter, err = parseFilter(filter); err != nil {
			return s, fmt.Errorf("%s: %w", text, err)
		}
	}
	s.Domain = strings.ToLower(strings.TrimSuffix(domain, "."))
	if !isDomain(s.Domain) {
		return s, fmt.Errorf("%s: %q is not a domain: want DOMAIN[=FILTER][*WEIGHT], like zen.example*2", text, domain)
	}
	return s, nil
}

// isDomain reports whether a name can be the domain of a list.
func isDomain(name string) bool {
	if len(name) > 180 || !strings.Contains(name, ".") {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// Filter selects answers of a list: for each of the four numbers of an address, those that it
// may be. The zero value selects all that mean "listed".
type Filter struct {
	some bool
	part [4][4]uint64 // bits
}

// parseFilter reads d.d.d.d, where each d is a number, or [..] with numbers and ranges that
// semicolons separate.
func parseFilter(text string) (f Filter, err error) {
	bad := errors.New("the filter " + strconv.Quote(text) + " is not d.d.d.d, where d is a number from 0 to 255 or several like [1;3;5..9]")
	f.some = true
	rest := text
	for i := range f.part {
		if i > 0 {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, "."); !ok {
				return f, bad
			}
		}
		one := rest
		if inside, ok := strings.CutPrefix(rest, "["); ok {
			if one, rest, ok = strings.Cut(inside, "]"); !ok {
				return f, bad
			}
		} else {
			one = rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
			rest = rest[len(one):]
		}
		for span := range strings.SplitSeq(one, ";") {
			low, high, ok := strings.Cut(span, "..")
			if !ok {
				high = low
			}
			from, err1 := strconv.ParseUint(low, 10, 8)
			to, err2 := strconv.ParseUint(high, 10, 8)
			if err1 != nil || err2 != nil || from > to {
				return f, bad
			}
			for n := from; n <= to; n++ {
				f.part[i][n/64] |= 1 << (n % 64)
			}
		}
	}
	if rest != "" {
		return f, bad
	}
	return f, nil
}

// selects reports whether an answer counts. Without a filter those in 127.0.0.0/8 do that are
// no error code: lists use 127.255.255.0/24 to say that they do not answer this resolver, and
// a list that was given up often answers with the address of a web server.
func (f *Filter) selects(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	ip := a.As4()
	if !f.some {
		return ip[0] == 127 && !isErrorCode(a)
	}
	for i, n := range ip {
		if f.part[i][n/64]&(1<<(n%64)) == 0 {
			return false
		}
	}
	return true
}

func isErrorCode(a netip.Addr) bool {
	ip := a.As4()
	return ip[0] == 127 && ip[1] == 255 && ip[2] == 255
}
