package e2e

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// board is what we look at of a dashboard.
type board struct {
	Title, UID string
	Editable   bool
	Templating struct {
		List []struct {
			Name, Type, Label, AllValue string
			Multi, IncludeAll           bool
			Refresh                     int
			Query                       json.RawMessage
		}
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               source
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                source
	}
}

type source struct{ Type, UID string }

// What Grafana's dashboard-linter asks of a dashboard for Prometheus, rule by rule; the
// linter itself is not to be had from the module proxy.
func TestDashboardKeepsTheLintersRules(t *testing.T) {
	t.Parallel()
	var b board
	if err := json.Unmarshal([]byte(readFile(t, "../../packaging/grafana/zmailer.json")), &b); err != nil {
		t.Fatal(err)
	}
	if b.Editable { // template-uneditable-rule
		t.Error("it can be edited in place: the next upgrade would take that back")
	}
	for _, name := range []string{"datasource", "job", "instance"} {
		ok := false
		for _, v := range b.Templating.List {
			switch {
			case v.Name != name:
			case name == "datasource": // template-datasource-rule
				ok = v.Type == "datasource" && string(v.Query) == `"prometheus"` && v.Label == "Data source"
			default: // template-job-rule, template-instance-rule, template-on-time-change-reload-rule
				ok = v.Type == "query" && v.Multi && v.IncludeAll && v.AllValue == ".+" && v.Refresh == 2 && strings.EqualFold(v.Label, name) && strings.Contains(string(v.Query), "label_values(")
			}
		}
		if !ok {
			t.Errorf("the variable %s is not as it should be", name)
		}
	}
	ids := map[int]bool{}
	for i := range b.Panels {
		p := &b.Panels[i]
		if ids[p.ID] {
			t.Errorf("%s: its number %d is another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		p.check(t)
		for _, q := range b.Panels[:i] {
			if a, c := p.GridPos, q.GridPos; a.X < c.X+c.W && c.X < a.X+a.W && a.Y < c.Y+c.H && c.Y < a.Y+a.H || a.X+a.W > 24 {
				t.Errorf("%s lies over %s or beyond the edge", p.Title, q.Title)
			}
		}
	}
}

var (
	counted   = regexp.MustCompile(`\w+_total\{[^}]*\}`)
	rated     = regexp.MustCompile(`(?:rate|increase)\(\w+_total\{[^}]*\}\[\$__rate_interval\]\)`)
	ranged    = regexp.MustCompile(`\[[^$\]][^\]]*\]`)
	selectors = regexp.MustCompile(`\b(?:zmailer|process|go)_\w+(\{[^}]*\})?|\bup(\{[^}]*\})`)
)

// check holds one panel against the rules.
func (p *panel) check(t *testing.T) {
	t.Helper()
	if p.Type == "row" {
		return
	}
	want := source{"prometheus", "${datasource}"}
	if p.Title == "" || p.Description == "" { // panel-title-description-rule
		t.Errorf("panel %d, %q: no title or no description", p.ID, p.Title)
	}
	if p.Datasource != want { // panel-datasource-rule
		t.Errorf("%s: it asks %v", p.Title, p.Datasource)
	}
	if !slices.Contains([]string{"short", "s", "cps", "Bps", "bytes", "percentunit"}, p.FieldConfig.Defaults.Unit) { // panel-units-rule
		t.Errorf("%s: the unit %q", p.Title, p.FieldConfig.Defaults.Unit)
	}
	if len(p.Targets) == 0 { // panel-no-targets-rule
		t.Errorf("%s: it asks nothing", p.Title)
	}
	refs := map[string]bool{}
	for _, q := range p.Targets {
		switch {
		case refs[q.RefID]:
			t.Errorf("%s: two questions %s", p.Title, q.RefID)
		case q.Datasource != want, q.LegendFormat == "":
			t.Errorf("%s: %s has another source or no name", p.Title, q.Expr)
		case len(counted.FindAllString(q.Expr, -1)) != len(rated.FindAllString(q.Expr, -1)): // target-counter-agg-rule
			t.Errorf("%s: a counter without its rate: %s", p.Title, q.Expr)
		case ranged.MatchString(q.Expr): // target-rate-interval-rule
			t.Errorf("%s: an interval of its own: %s", p.Title, q.Expr)
		case strings.Contains(q.Expr, "_bucket") && (!strings.Contains(q.Expr, "histogram_quantile(") || !regexp.MustCompile(`by \([^)]*\ble\)`).MatchString(q.Expr)):
			t.Errorf("%s: a histogram without le: %s", p.Title, q.Expr) // target-histogram-rule
		}
		refs[q.RefID] = true
		for _, s := range selectors.FindAllString(q.Expr, -1) { // target-job-rule, target-instance-rule
			if !strings.Contains(s, `job=~"$job"`) || !strings.Contains(s, `instance=~"$instance"`) {
				t.Errorf("%s: %s is of all jobs or instances", p.Title, s)
			}
		}
	}
}
