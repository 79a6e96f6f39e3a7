package archtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// layer is what the packages at and below a path may import of the module, and what
// of the standard library and x/sys they may not. A package may always import those
// below its own layer's path.
type layer struct {
	path    string
	imports []string
	never   []string
}

// base imports nothing of ours.
func base() []string {
	return []string{"internal/durable", "internal/address", "internal/status", "internal/logging", "internal/metrics", "internal/config", "internal/machine", "internal/notify", "internal/plain", "internal/paint", "internal/dotlock", "internal/recent"}
}

// formats are bytes and values; they never touch the disk.
func formats() []string {
	return []string{"internal/envelope", "internal/workspec", "internal/taproto", "internal/mailq", "internal/dsn"}
}

// below is what every stage may import.
func below() []string {
	return slices.Concat(base(), formats(), []string{"internal/postoffice", "internal/ledger", "internal/watch"})
}

// forTests is what tests may import besides.
func forTests() []string {
	return []string{"internal/durable/cutfs", "internal/durable/faultfs", "internal/durable/durabletest", "internal/durable/loopdisk", "internal/twin/twintest", "test/peer", "test/suite", "test/browser"}
}

// layers is the import table; the longest path that fits a package counts.
func layers() []layer {
	disk := []string{"os", "os/exec", "path/filepath", "net", "golang.org/x/sys/unix", "syscall"}
	table := []layer{
		{path: "internal/postoffice", imports: []string{"internal/durable"}},
		// It counts recipients in specifications and envelopes.
		{path: "internal/ledger", imports: append(formats(), "internal/postoffice", "internal/durable")},
		{path: "internal/watch", imports: []string{"internal/durable"}},
		// The file of accounts: smtpserver checks with it, zmctl passwd writes it.
		{path: "internal/passwd", imports: []string{"internal/config"}, never: disk},
		// Passwords that PAM checks, by a child.
		{path: "internal/passwd/pam"},
		{path: "internal/agent", imports: slices.Concat(formats(), []string{"internal/postoffice", "internal/status", "internal/durable"})},
		// What a person says of queued recipients; the scheduler follows it.
		{path: "internal/order", imports: slices.Concat(formats(), []string{"internal/postoffice", "internal/status", "internal/address"})},
		// What in a postoffice needs a person, and how people name queued mail: both pure.
		{path: "internal/alarm", imports: []string{"internal/config"}, never: disk},
		{path: "internal/selector", imports: []string{"internal/config", "internal/address"}, never: disk},
		// The queues of other mail systems; zmctl import takes them.
		{path: "internal/importer", imports: slices.Concat(formats(), []string{"internal/postoffice", "internal/dotlock", "internal/ledger", "internal/address", "internal/durable"})},
		// What became of TLS, counted by agents and told by zmctl.
		{path: "internal/tlsrpt", imports: []string{"internal/durable"}},
		// Pages about a postoffice; who serves them brings what they show.
		{path: "internal/web", imports: slices.Concat(base(), formats(), []string{"internal/postoffice", "internal/ledger", "internal/selector", "internal/passwd"})},
		// What the pages ask of zmctl, and the lines in between.
		{path: "internal/web/desk", imports: []string{"internal/mailq", "internal/postoffice"}, never: disk},
		{path: "cmd/zmweb", imports: []string{"internal/web", "internal/web/desk", "internal/config", "internal/durable", "internal/ledger", "internal/logging", "internal/passwd", "internal/passwd/pam", "internal/postoffice"}},
		// The life of a message, from what is read elsewhere; what zmctl top shows.
		{path: "internal/trace", imports: []string{"internal/logging"}, never: disk},
		// That life as OpenTelemetry has it.
		{path: "internal/otlp", imports: []string{"internal/trace", "internal/logging"}, never: disk},
		// Who sends it asks zmctl.
		{path: "internal/otlp/export"},
		{path: "cmd/zmotlp", imports: []string{"internal/otlp/export", "internal/config", "internal/logging"}},
		{path: "internal/top", imports: []string{"internal/plain", "internal/durable", "internal/postoffice", "internal/ledger", "internal/mailq", "internal/alarm", "internal/config"}},
		{path: "cmd/zmtop", imports: []string{"internal/top", "internal/top/live", "internal/config"}},
		// The file that zmctl run puts the log into, and what reads it.
		{path: "internal/logfile"},
		{path: "internal/logread", imports: []string{"internal/config", "internal/logging"}},
		// As whom a program runs, and what it may do.
		{path: "internal/confine", imports: []string{"internal/config"}},
		// What the postoffice's file system promises; daemons ask when they start.
		{path: "internal/filesystem", imports: []string{"internal/config", "internal/durable"}},
		{path: "internal/archtest", imports: []string{"internal/config"}},
		{path: "internal/tasmtp", imports: append(below(), "internal/agent", "internal/smtpclient", "internal/tlsrpt", "internal/table", "internal/table/text")},
		{path: "internal/mailbox", imports: append(below(), "internal/agent")},
		// What is due is decided without a clock, a disk or a process.
		{path: "internal/scheduler/thread", imports: slices.Concat(formats(), []string{"internal/status", "internal/address", "internal/config", "internal/recent"}), never: disk},
		// Where keys are looked up; its databases and directories by the program lookup.
		{path: "internal/table", imports: []string{"internal/address", "internal/config", "internal/lookup/settings"}},
		{path: "internal/lookup", imports: []string{"internal/config", "internal/table/socketmap"}},
		{path: "internal/router", imports: append(below(), "internal/table", "internal/table/text", "internal/table/socketmap")},
		{path: "cmd/zmctl", imports: slices.Concat(base(), formats(), []string{"internal/table", "internal/table/text", "internal/postoffice", "internal/ledger", "internal/order", "internal/watch", "internal/alarm", "internal/selector", "internal/passwd", "internal/tlsrpt", "internal/confine", "internal/filesystem", "internal/web", "internal/web/desk", "internal/top", "internal/trace", "internal/otlp", "internal/logfile", "internal/logread",
			"internal/importer", "internal/importer/postfix", "internal/importer/exim", "internal/importer/opensmtpd", "internal/importer/mailbox"})},
		{path: "internal/scheduler/sim", imports: []string{"internal/scheduler/thread", "internal/config"}, never: disk},
		{path: "internal/scheduler", imports: append(below(), "internal/order", "internal/alarm", "internal/twin")},
		{path: "test", imports: append(slices.Concat(below(), forTests()), "internal")},
		{path: "scripts", imports: append(slices.Concat(below(), forTests()), "test")},
	}
	for _, p := range base() {
		table = append(table, layer{path: p})
	}
	for _, p := range formats() {
		table = append(table, layer{path: p, imports: []string{"internal/address", "internal/status"}, never: disk})
	}
	table = append(table, layer{path: "internal/smtpserver", imports: append(below(), "internal/table", "internal/table/text", "internal/passwd", "internal/passwd/pam")})
	for _, stage := range []string{"submit", "smtpclient"} {
		table = append(table, layer{path: "internal/" + stage, imports: below()})
	}
	stages := map[string]string{
		"submit": "submit", "smtpserver": "smtpserver", "router": "router", "scheduler": "scheduler",
		"ta-smtp": "tasmtp", "ta-mailbox": "mailbox", "lookup": "lookup",
	}
	for program, stage := range stages {
		imports := []string{"internal/" + stage, "internal/config", "internal/filesystem", "internal/twin", "internal/confine", "internal/logging", "internal/machine", "internal/metrics", "internal/notify"}
		if program == "router" {
			imports = append(imports, "internal/router/closed") // is the other process, too
		}
		table = append(table, layer{path: "cmd/" + program, imports: imports})
	}
	table = append(table, layer{path: "internal/twin", imports: []string{"internal/config", "internal/machine"}},
		layer{path: "internal/router/closed", imports: []string{"internal/twin"}})
	return table
}

// heavy are the libraries that one program alone links, and where they may be imported:
// what they cost in memory and crashes stays out of the daemons.
func heavy() map[string]string {
	return map[string]string{
		"modernc.org/sqlite":           "internal/lookup/sqlite",
		"github.com/go-ldap/ldap/v3":   "internal/lookup/ldap",
		"github.com/ebitengine/purego": "internal/lookup/pam",
		// It asks the terminal for its colours when it is linked, before main.
		"github.com/charmbracelet/bubbletea": "internal/top/live",
		// A megabyte and more in a program that starts and is a daemon; its tests may.
		"html/template":        "internal/web",
		"zmailer/internal/web": "cmd/zmweb",
	}
}

// within tells whether a package is at or below a path.
func within(pkg, path string) bool { return pkg == path || strings.HasPrefix(pkg, path+"/") }

// layerOf is the layer of a package; false if none fits.
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
		return []Violation{{s.name, 1, s.pkg + " stands in no layer; say in internal/archtest what it may import"}}
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
		if !ok || within(own, l.path) || within(own, s.pkg) || slices.Contains(l.imports, own) {
			continue
		}
		if slices.ContainsFunc(l.imports, func(p string) bool { return (p == "internal" || p == "test") && within(own, p) }) {
			continue
		}
		if s.test && slices.Contains(forTests(), own) {
			continue
		}
		found = append(found, Violation{s.name, line, fmt.Sprintf("%s must not import %s", s.pkg, own)})
	}
	return found
}
