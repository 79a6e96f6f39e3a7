package archtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// layer says what the packages at and below a path may import: other layers of the module,
// each with all that is below it. A package may always import those of its own layer.
// never lists packages of the standard library and of x/sys that the layer keeps away from.
type layer struct {
	path    string
	imports []string
	never   []string
}

// with adds layers to those of another line.
func with(layers []string, more ...string) []string { return slices.Concat(layers, more) }

// layers returns the import table, from the bottom to the top; docs/HACKING.md shows it as a
// picture. The longest path that contains a package counts, and a layer that is not named
// in a line may not be imported by it.
func layers() []layer {
	system := []string{"os", "os/exec", "path/filepath", "net", "golang.org/x/sys/unix", "syscall"}
	run := []string{"internal/run"}
	base := with(run, "internal/mail", "internal/disk")
	formats := with(base, "internal/workspec", "internal/wire")
	below := with(formats, "internal/postoffice", "internal/table", "internal/lookup")
	agents := with(below, "internal/stage/agent")
	admin := with(below, "internal/stage", "internal/admin")
	ui := with(admin, "internal/ui")

	table := []layer{
		// How programs run: configuration, logs, metrics, privileges.
		{path: "internal/run"},
		// How values are written for people; every layer may use it.
		{path: "internal/run/human", never: system},
		// The only way to the file system.
		{path: "internal/disk", imports: run},
		// Formats of the field: values and bytes.
		{path: "internal/mail", imports: run, never: system},
		// The work specification, in the same way.
		{path: "internal/workspec", imports: with(run, "internal/mail"), never: system},
		// Which node may serve which postoffice: values and times, no clock and no network.
		{path: "internal/cluster/protocol", imports: []string{}, never: system},
		// Protocols between programs.
		{path: "internal/wire", imports: with(base, "internal/workspec")},
		{path: "internal/wire/taproto", imports: []string{"internal/mail", "internal/workspec"}, never: system},
		{path: "internal/wire/taproto/taprototest", imports: run},
		{path: "internal/wire/mailq", imports: []string{"internal/run", "internal/mail", "internal/workspec"}, never: system},
		// What a message is on the disk.
		{path: "internal/postoffice", imports: with(base, "internal/workspec")},
		{path: "internal/postoffice/alarm", imports: run, never: system},
		// Where addresses are looked up; databases and directories by the program lookup.
		{path: "internal/table", imports: with(base, "internal/wire", "internal/lookup/settings")},
		{path: "internal/lookup", imports: with(base, "internal/wire")},
		{path: "internal/lookup/passwd", imports: run, never: system},
		{path: "internal/lookup/passwd/pam", imports: run},
		// A stage imports no other stage; agents share what speaks with the scheduler.
		{path: "internal/stage/submit", imports: below},
		{path: "internal/stage/smtpserver", imports: below},
		{path: "internal/stage/router", imports: below},
		{path: "internal/stage/router/closed", imports: run},
		{path: "internal/stage/scheduler", imports: below},
		{path: "internal/stage/scheduler/thread", imports: formats, never: system},
		{path: "internal/stage/scheduler/builtin", imports: base},
		{path: "internal/stage/scheduler/conf", imports: with(base, "internal/stage/scheduler/thread", "internal/stage/scheduler/builtin")},
		{path: "internal/stage/scheduler/report", imports: with(formats, "internal/stage/scheduler/conf"), never: system},
		{path: "internal/stage/scheduler/store", imports: with(below, "internal/stage/scheduler/thread", "internal/stage/scheduler/builtin", "internal/stage/scheduler/conf", "internal/stage/scheduler/report", "internal/stage/scheduler/events")},
		{path: "internal/stage/scheduler/events", imports: []string{}, never: system},
		{path: "internal/stage/scheduler/agents", imports: with(base, "internal/wire", "internal/workspec", "internal/postoffice", "internal/stage/scheduler/thread", "internal/stage/scheduler/conf")},
		{path: "internal/stage/scheduler/query", imports: with(below, "internal/stage/scheduler/thread", "internal/stage/scheduler/conf", "internal/stage/scheduler/store", "internal/stage/scheduler/agents", "internal/stage/scheduler/events")},
		{path: "internal/stage/scheduler/sim", imports: with(formats, "internal/stage/scheduler/thread", "internal/stage/scheduler/conf", "internal/stage/scheduler/agents"), never: []string{"os", "os/exec", "path/filepath", "net", "golang.org/x/sys/unix"}},
		{path: "internal/stage/agent", imports: below},
		{path: "internal/stage/tasmtp", imports: agents},
		{path: "internal/stage/mailbox", imports: agents},
		// What operators ask and do, as values.
		{path: "internal/admin", imports: admin},
		{path: "internal/admin/trace", imports: run, never: system},
		{path: "internal/admin/otlp", imports: with(run, "internal/admin/trace"), never: system},
		{path: "internal/admin/otlp/export", imports: admin},
		{path: "internal/admin/selector", imports: base, never: system},
		// How it is shown.
		{path: "internal/ui", imports: ui},
		{path: "internal/archtest", imports: run},
		{path: "test", imports: []string{"internal", "test"}},
		{path: "scripts", imports: []string{"internal", "test"}},
	}
	// A program imports its stage; those of operators import what is for operators.
	for program, stage := range map[string]string{
		"submit": "stage/submit", "smtpserver": "stage/smtpserver", "router": "stage/router", "scheduler": "stage/scheduler",
		"ta-smtp": "stage/tasmtp", "ta-mailbox": "stage/mailbox", "lookup": "lookup",
	} {
		table = append(table, layer{path: "cmd/" + program, imports: with(base, "internal/"+stage)})
	}
	// The scheduler checks a clause's tls= with the parser that the agent has.
	for i, l := range table {
		if l.path == "cmd/scheduler" {
			table[i].imports = with(l.imports, "internal/stage/tasmtp/tlspolicy")
		}
		// smtpserver asks next hops by the agents that scheduler.conf has for them.
		if l.path == "cmd/smtpserver" {
			table[i].imports = with(l.imports, "internal/stage/scheduler/agents")
		}
	}
	for _, program := range []string{"zmctl", "zmweb", "zmtop", "zmotlp"} {
		table = append(table, layer{path: "cmd/" + program, imports: ui})
	}
	return table
}

// forTests returns what tests alone may import besides.
func forTests() []string {
	return []string{
		"internal/disk/cutfs",
		"internal/disk/faultfs",
		"internal/disk/durabletest",
		"internal/disk/lastgood/lastgoodtest",
		"internal/lookup/ldap/ldaptest",
		"internal/disk/loopdisk",
		"internal/run/helper/helpertest",
		"internal/run/assert",
		"internal/run/hostile",
		"internal/run/logtest",
		"internal/run/lease/leasetest",
		"internal/stage/agent/agenttest", "internal/wire/taproto/taprototest",
		"test/office",
		"test/importertest",
		"test/peer",
		"test/rig",
		"test/wrongconf",
		"test/suite",
		"test/browser",
	}
}

// heavy returns the libraries that one program alone links, and where they may be imported:
// what they cost in memory and crashes stays out of the daemons.
func heavy() map[string]string {
	return map[string]string{
		"modernc.org/sqlite":             "internal/lookup/sqlite",
		"github.com/go-ldap/ldap/v3":     "internal/lookup/ldap",
		"github.com/jackc/pgx/v5":        "internal/lookup/pgsql",
		"github.com/go-sql-driver/mysql": "internal/lookup/mysql",
		"github.com/gomodule/redigo":     "internal/lookup/redis",
		"github.com/ebitengine/purego":   "internal/lookup/pam",
		// Rotated logs are read by the operators' programs alone.
		"github.com/klauspost/compress": "internal/admin/logread",
		// It asks the terminal for its colours when it is linked, before main.
		"github.com/charmbracelet/bubbletea": "internal/ui/top/live",
		// A megabyte and more in a program that starts and is a daemon; its tests may.
		"html/template":           "internal/ui/web",
		"zmailer/internal/ui/web": "cmd/zmweb",
		// SMTP is ours; this one is the other side in tests and in a benchmark.
		"github.com/emersion/go-smtp": "scripts/rtt",
	}
}

// within reports whether a package is at or below a path.
func within(pkg, path string) bool { return pkg == path || strings.HasPrefix(pkg, path+"/") }

// layerOf returns the layer of a package; false if none fits.
func layerOf(pkg string) (layer, bool) {
	var best layer
	for _, l := range layers() {
		if within(pkg, l.path) && len(l.path) > len(best.path) {
			best = l
		}
	}
	return best, best.path != ""
}

func checkImports(s *source) []Violation {
	l, ok := layerOf(s.pkg)
	if !ok {
		return []Violation{{s.name, 1, s.pkg + " is in no layer; list in internal/archtest what it may import"}}
	}
	var found []Violation
	for _, spec := range s.tree.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has taken it
		}
		line := s.line(spec.Pos())
		if slices.Contains(l.never, name) && !s.test {
			found = append(found, Violation{s.name, line, fmt.Sprintf("%s must not import %s", l.path, name)})
		}
		if only, ok := heavy()[name]; ok && !s.test && !within(s.pkg, only) {
			found = append(found, Violation{s.name, line, fmt.Sprintf("%s may be imported by %s alone: it is linked into a program of its own", name, only)})
		}
		own, ok := strings.CutPrefix(name, Module+"/")
		if !ok {
			continue
		}
		if slices.Contains(forTests(), own) {
			if s.test || within(s.pkg, "test") || within(s.pkg, "scripts") || strings.HasSuffix(s.pkg, "test") || slices.Contains(forTests(), s.pkg) {
				continue
			}
		} else if within(own, l.path) || slices.ContainsFunc(l.imports, func(p string) bool { return within(own, p) }) {
			continue
		}
		found = append(found, Violation{s.name, line, fmt.Sprintf("%s must not import %s", s.pkg, own)})
	}
	return found
}
