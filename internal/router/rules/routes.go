package rules

import (
	"fmt"
	"strings"

	"zmailer/internal/address"
)

// route is what a key of the table routes leads to.
type route struct {
	channel string
	host    string // "": the recipient's domain
}

// routes is the table of that name. Keys are lower-case A-labels.
type routes struct {
	exact  map[string]route
	suffix map[string]route // key without its dot: the domain and all below it
	other  *route           // key "."
	report *route           // key ".:ERROR": other, for reports
}

const reportKey = ".:error"

// lookup finds the route of a domain: the exact key, the longest key ".dom", the
// default.
func (r *routes) lookup(domain string, report bool) (route, bool) {
	if r == nil {
		return route{}, false
	}
	if to, ok := r.exact[domain]; ok {
		return to, true
	}
	if len(r.suffix) > 0 && domain[0] != '[' {
		for d, more := domain, true; more; _, d, more = strings.Cut(d, ".") {
			if to, ok := r.suffix[d]; ok {
				return to, true
			}
		}
	}
	if report && r.report != nil {
		return *r.report, true
	}
	if r.other != nil {
		return *r.other, true
	}
	return route{}, false
}

// parseRoutes reads "key channel!host" lines.
func (t *Tables) parseRoutes(s source) error {
	r := &routes{exact: map[string]route{}, suffix: map[string]route{}}
	first := map[string]int{}
	number := 0
	for line := range strings.Lines(s.text) {
		number++
		f := strings.Fields(withoutComment(line))
		if len(f) == 0 {
			continue
		}
		if len(f) != 2 {
			return s.bad(number, "want two words, a key and channel!host", nil)
		}
		to, err := parseRoute(f[1])
		if err != nil {
			return s.bad(number, "bad route", err)
		}
		key, err := r.add(f[0], to)
		if err != nil {
			return s.bad(number, "bad key", err)
		}
		if at, twice := first[key]; twice {
			return s.bad(number, fmt.Sprintf("%s has a route in line %d already", f[0], at), nil)
		}
		first[key] = number
	}
	t.routes = r
	return nil
}

// add puts a route under its key, whose compared form it returns.
func (r *routes) add(key string, to route) (string, error) {
	switch lower := strings.ToLower(key); lower {
	case ".":
		r.other = &to
		return lower, nil
	case reportKey:
		r.report = &to
		return lower, nil
	}
	if domain, below := strings.CutPrefix(key, "."); below {
		d, err := domainOf(domain)
		r.suffix[d] = to
		return "." + d, err
	}
	d, err := domainOf(key)
	r.exact[d] = to
	return d, err
}

// parseRoute reads "channel!host" or "channel!".
func parseRoute(s string) (route, error) {
	channel, host, ok := strings.Cut(s, "!")
	if !ok {
		return route{}, fmt.Errorf("no ! in %q: want channel!host", s)
	}
	if !isChannel(channel) {
		return route{}, fmt.Errorf("%q is no channel: want lower-case letters, digits and hyphens", channel)
	}
	if channel == Local && host != "" {
		return route{}, fmt.Errorf("channel local takes no host: %q", host)
	}
	for i := 0; i < len(host); i++ {
		if host[i] < '!' || host[i] == 0x7f {
			return route{}, fmt.Errorf("control character in the host %q", host)
		}
	}
	return route{channel, host}, nil
}

func isChannel(s string) bool {
	for i := 0; i < len(s); i++ {
		b := s[i]
		if !('a' <= b && b <= 'z' || i > 0 && ('0' <= b && b <= '9' || b == '-')) {
			return false
		}
	}
	return s != ""
}

// domainOf is a domain in the form that is compared.
func domainOf(s string) (string, error) {
	d, err := address.Mailbox{Local: "x", Domain: strings.TrimSuffix(s, ".")}.ASCIIDomain()
	if err == nil && d == "" {
		err = fmt.Errorf("domain is empty")
	}
	return d, err
}

// withoutComment cuts what follows a # that begins a word.
func withoutComment(line string) string {
	for i := 0; i < len(line); i++ {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}

// parseLocalNames reads one domain a line.
func (t *Tables) parseLocalNames(s source) error {
	local := map[string]struct{}{t.hostname: {}}
	number := 0
	for line := range strings.Lines(s.text) {
		number++
		f := strings.Fields(withoutComment(line))
		if len(f) == 0 {
			continue
		}
		if len(f) != 1 {
			return s.bad(number, "want one domain a line", nil)
		}
		d, err := domainOf(f[0])
		if err != nil {
			return s.bad(number, "bad domain", err)
		}
		local[d] = struct{}{}
	}
	t.local = local
	return nil
}
