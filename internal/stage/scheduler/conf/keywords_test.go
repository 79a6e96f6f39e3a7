package conf

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"zmailer/internal/run/assert"
)

// docTables reads the tables of docs/scheduler.conf.md: for each heading the cells of
// its rows by key.
func docTables(t *testing.T) map[string]map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/scheduler.conf.md")
	assert.Must(t, err)
	row := regexp.MustCompile("^\\| `([^`]+)` \\|(.*)\\|$")
	all := map[string]map[string][]string{}
	heading := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if h, ok := strings.CutPrefix(line, "## "); ok {
			heading = h
			all[h] = map[string][]string{}
		}
		if m := row.FindStringSubmatch(line); m != nil {
			var cells []string
			for _, c := range strings.Split(m[2], " | ") {
				cells = append(cells, strings.Trim(strings.TrimSpace(c), "`|"))
			}
			all[heading][m[1]] = cells
		}
	}
	return all
}

func keysOf[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// docs/scheduler.conf.md has all settings, and no others, with their defaults.
func TestEverySettingIsDocumented(t *testing.T) {
	doc := docTables(t)
	idle, acted := map[string]keyword{}, map[string]keyword{}
	for name, k := range keywords() {
		if k.idle {
			idle[name] = k
		} else {
			acted[name] = k
		}
	}
	rows := doc["Settings of a clause"]
	assert.Same(t, keysOf(acted), keysOf(rows), "settings: -parser +page")
	assert.Same(t, keysOf(idle), keysOf(doc["ZMailer's settings without effect"]), "ZMailer's: -parser +page")
	assert.Same(t, keysOf(params()), keysOf(doc["PARAM lines"]), "PARAM lines: -parser +page")
	for name, k := range acted {
		if cells := rows[name]; len(cells) != 3 || cells[0] != k.value {
			t.Errorf("%s: the page's row is %q, the default %q", name, cells, k.value)
		}
	}
}

// A default that the table of settings names is the one that holds.
func TestDefaultsAreWhatTheySay(t *testing.T) {
	plain := mustConf(t, "*/* command=x\n").Match("c", "h")
	for name, k := range keywords() {
		if k.value == "" {
			continue
		}
		said := mustConf(t, "*/* command=x\n"+" "+name+"="+k.value+"\n").Match("c", "h")
		if diff := cmp.Diff(plain, said, cmpopts.IgnoreUnexported(Settings{})); diff != "" {
			t.Errorf("%s=%s: -default +said\n%s", name, k.value, diff)
		}
	}
	empty := mustConf(t, "*/* command=x\n")
	for name, cells := range docTables(t)["PARAM lines"] {
		value := cells[0]
		if value == "" {
			continue
		}
		said := mustConf(t, "PARAM "+name+" = "+value+"\n*/* command=x\n")
		if said.ReportInterval != empty.ReportInterval || said.CopyUndeliverable != empty.CopyUndeliverable ||
			!cmp.Equal(said.Reports, empty.Reports, cmpopts.IgnoreUnexported(Reports{}), cmpopts.IgnoreFields(Reports{}, "Texts")) {
			t.Errorf("PARAM %s = %s is not the default", name, value)
		}
	}
}
