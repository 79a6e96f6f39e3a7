package whatif

import (
	"cmp"
	"slices"
	"strings"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
)

// Bounds of what is held of differences, however many messages there are.
const (
	maxGroups        = 2000
	maxGroupDomains  = 50
	maxGroupExamples = 3
)

// Comparison is what would be otherwise, in groups.
type Comparison struct {
	Messages   int      `json:"messages"`   // compared
	Recipients int      `json:"recipients"` // open ones of them
	Same       int      `json:"same"`
	Differ     int      `json:"differ"`  // by the configuration that is asked for
	Already    int      `json:"already"` // by the present one as well
	Moved      int      `json:"moved_on"`
	Unread     int      `json:"unread"` // messages that could not be read
	Groups     []*Group `json:"groups"`

	byKey map[groupKey]*Group
}

// groupKey is what recipients of a group have in common.
type groupKey struct {
	kind, of, from, to, dir string
	present                 bool
}

// Group are recipients that would go another way in the same manner.
type Group struct {
	Kind       string        `json:"kind"`
	Of         string        `json:"of,omitempty"` // recipient of the envelope that is expanded
	From       string        `json:"from"`
	To         string        `json:"to"`
	Dir        string        `json:"dir,omitempty"` // deferred, freezer, router: if not queued
	Already    bool          `json:"already,omitempty"`
	Recipients int           `json:"recipients"`
	Messages   int           `json:"messages"`
	Domains    []DomainCount `json:"domains"`
	More       int           `json:"more_domains,omitempty"` // recipients in domains that are not named
	Examples   []Example     `json:"examples"`
	NotServed  string        `json:"not_served,omitempty"`

	domains map[string]int
	pair    view.Thread
	mixed   bool // they have no one pair
	last    string
}

type DomainCount struct {
	Domain     string `json:"domain"`
	Recipients int    `json:"recipients"`
}

type Example struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	Detail  string `json:"detail,omitempty"`
}

func newComparison() *Comparison { return &Comparison{byKey: map[groupKey]*Group{}} }

// add takes in one message with n open recipients; dir: it is not queued, but there.
func (s *Comparison) add(id, dir string, n int, list []difference) {
	s.Messages++
	s.Recipients += n
	touched := 0
	for i := range list {
		d := &list[i]
		if d.kind != Add {
			touched++
		}
		if d.present {
			s.Already++
		} else {
			s.Differ++
		}
		s.group(d, dir).take(id, d)
	}
	s.Same += max(n-touched, 0)
}

func (s *Comparison) group(d *difference, dir string) *Group {
	key := groupKey{d.kind, human.Clean(d.of), d.from, d.to, dir, d.present}
	g := s.byKey[key]
	if g == nil && len(s.byKey) >= maxGroups {
		key.of, key.from, key.to = "", "others", "others"
		g = s.byKey[key]
	}
	if g == nil {
		g = &Group{Kind: key.kind, Of: key.of, From: key.from, To: key.to, Dir: dir, Already: d.present, domains: map[string]int{}, pair: d.pair}
		s.byKey[key] = g
	}
	return g
}

func (g *Group) take(id string, d *difference) {
	g.Recipients++
	if g.last != id {
		g.last = id
		g.Messages++
	}
	if g.pair != d.pair {
		g.mixed = true
	}
	domain := strings.ToLower(domainOf(d.address))
	if _, known := g.domains[domain]; known || len(g.domains) < maxGroupDomains {
		g.domains[domain]++
	} else {
		g.More++
	}
	if len(g.Examples) < maxGroupExamples {
		g.Examples = append(g.Examples, Example{id, human.Clean(d.address), human.Cut(human.Clean(d.detail), 200)})
	}
}

// settle sorts what was found: what is the configuration's own first, the worst first,
// then the most recipients.
func (s *Comparison) settle(candidate *Engine) {
	s.Groups = make([]*Group, 0, len(s.byKey))
	for _, g := range s.byKey {
		for domain, n := range g.domains {
			g.Domains = append(g.Domains, DomainCount{domain, n})
		}
		slices.SortFunc(g.Domains, func(a, b DomainCount) int {
			return cmp.Or(b.Recipients-a.Recipients, strings.Compare(a.Domain, b.Domain))
		})
		s.Groups = append(s.Groups, g)
	}
	order := []string{Fail, Aside, Unknown, Freeze, Defer, Drop, Add, Expand, Move, Act, Report, Work}
	slices.SortFunc(s.Groups, func(a, b *Group) int {
		if a.Already != b.Already {
			if a.Already {
				return 1
			}
			return -1
		}
		return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), b.Recipients-a.Recipients,
			strings.Compare(a.Of, b.Of), strings.Compare(a.From, b.From), strings.Compare(a.To, b.To), strings.Compare(a.Dir, b.Dir))
	})
	for _, g := range s.Groups {
		if candidate == nil || g.mixed || g.pair.Channel == "" {
			continue
		}
		if c := candidate.service(g.pair.Channel, g.pair.Host); c != nil && !c.Served {
			g.NotServed = c.Text
		}
	}
}
