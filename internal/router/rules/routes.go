package rules

import (
	"fmt"
	"strings"

	"zmailer/internal/table/text"
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
	err := text.Scan(text.Routes, s.name, strings.NewReader(s.text), func(e text.Entry) error {
		if at, twice := first[e.Key]; twice {
			return s.bad(e.Line, fmt.Sprintf("%s has a route in line %d already", e.Key, at), nil)
		}
		first[e.Key] = e.Line
		r.add(e.Key, route{e.Route.Channel, e.Route.Host})
		return nil
	})
	if err == nil {
		t.routes = r
	}
	return err
}

// add puts a route under its key.
func (r *routes) add(key string, to route) {
	switch key {
	case text.DefaultRoute:
		r.other = &to
		return
	case text.ReportRoute:
		r.report = &to
		return
	}
	if domain, below := strings.CutPrefix(key, "."); below {
		r.suffix[domain] = to
		return
	}
	r.exact[key] = to
}

// parseLocalNames reads one domain a line.
func (t *Tables) parseLocalNames(s source) error {
	local := map[string]struct{}{t.hostname: {}}
	err := text.Scan(text.LocalNames, s.name, strings.NewReader(s.text), func(e text.Entry) error {
		local[e.Key] = struct{}{}
		return nil
	})
	if err == nil {
		t.local = local
	}
	return err
}
