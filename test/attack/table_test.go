package attack

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// row is a name, or many of one pattern, that programs touch (test/kill's Touch).
type row struct {
	// calls are the system calls on it; + marks those that may make it. A call that is
	// added here wants a look at what the attacks below do to it: opens and makes meet
	// everything in kinds, removals and renames meet it too and the races, flock meets a lock
	// that is held.
	calls string
	// examples are such names below the postoffice, or below Dir for those of mail/: I is
	// the inode of a coming file, P the number of a router that lives.
	examples string
}

// table is every name. Whether the attacker may make it follows from its directory: he
// may in public/, in the router/ of ROUTERMODE=shared, and in mail/, a system mail
// directory of mode 1777. There each is planted in each kind; elsewhere each attempt must
// be refused.
func table() map[string]row {
	const dir = "openat openat2 mkdirat+ fchmodat"
	rows := map[string]row{
		"./":             {"openat", "."},
		".freeze":        {"openat", ".freeze"},
		".mailq":         {"unlinkat bind+ connect fchownat fchmodat openat", ".mailq"},
		".run":           {"unlinkat bind+ connect fchownat fchmodat openat", ".run"},
		".rates":         {"unlinkat bind+ connect fchownat fchmodat openat", ".rates"},
		".mailq.new":     {"bind+ renameat unlinkat fchmodat fchownat openat", ".mailq.new"},
		".run.new":       {"bind+ renameat unlinkat fchmodat fchownat openat", ".run.new"},
		".rates.new":     {"bind+ renameat unlinkat fchmodat fchownat openat", ".rates.new"},
		".pid.scheduler": {"openat openat+ flock unlinkat", ".pid.scheduler"},
		".pid.zmctl":     {"openat openat+ flock unlinkat", ".pid.zmctl"},
		".probe.T":       {"openat openat+ renameat2 renameat2+ unlinkat", ".probe.00112233445566778899aabbccddeeff"},
		".nursery":       {"openat unlinkat", ".nursery"},
		".submit":        {"openat renameat+", ".submit"},
		".submit.new":    {"openat openat+ fchmodat renameat unlinkat", ".submit.new"},
		"alarms/":        {"openat", "alarms"},

		"public/submit.T":     {"openat openat+ flock renameat2 renameat2+ unlinkat", "public/submit.4711.dn0kpsb1upkv.1 public/submit.P.dn0kpsb1upkv.zz"},
		"public/smtp.T":       {"openat openat+ flock renameat2 renameat2+ unlinkat", "public/smtp.4711.dn0kpsb1upkv.1"},
		"public/report.T":     {"openat openat+ flock renameat2 renameat2+ unlinkat", "public/report.4711.dn0kpsb1upkv.1"},
		"public/copy.T":       {"openat openat+ flock renameat2 renameat2+ unlinkat", "public/copy.4711.dn0kpsb1upkv.1"},
		"public/held.T":       {"openat openat+ flock renameat2+ unlinkat", "public/held.4711.dn0kpsb1upkv.1"},
		"public/start.T":      {"openat openat+ flock renameat2 renameat2+ unlinkat", "public/start.4711.dn0kpsb1upkv.1"},
		"public/N":            {"openat renameat2 renameat2+ unlinkat", "public/I public/I.2 public/4611686018427387905"},
		"public/T":            {"openat openat+ flock renameat2 renameat2+ unlinkat", "public/I-P public/..I-P public/.tries.I public/.pickup.I.1 public/anything"},
		"transport/I-P":       {"openat flock renameat2 renameat2+ unlinkat", "transport/I-P transport/I transport/look.I-P"},
		"transport/.copy.I-P": {"openat openat+ flock renameat2 renameat2+ unlinkat", "transport/.copy.I-P"},
		"queue/I-P":           {"openat renameat2 renameat2+ unlinkat", "queue/I-P queue/I"},
		"owners/P":            {"openat openat+ flock unlinkat", "owners/P owners/4711"},
		"ledger/journal":      {"openat openat+ flock renameat2 unlinkat", "ledger/journal"},
		"ledger/base":         {"openat openat+ renameat2+ unlinkat", "ledger/base ledger/base.new"},
		"deferred/I.why":      {"openat openat+ renameat2 renameat2+ unlinkat", "deferred/I.users deferred/reason.I"},
		"freezer/I.cause":     {"openat openat+ renameat2 renameat2+ unlinkat", "freezer/I.policy freezer/reason.I"},
		"postman/I":           {"openat openat+ renameat2 renameat2+ unlinkat linkat+", "postman/I postman/I_header postman/reason.I"},
		"quarantine/T":        {"openat renameat2+ unlinkat", "quarantine/router.I.foreign"},
		"removed/T":           {"openat renameat2 renameat2+ unlinkat", "removed/SIA1.queue removed/SIA1.spec"},
		// Copies of tables, and the directory of each program.
		"lastgood/T": {"openat openat+ openat2 flock mkdirat+ fchmodat fchownat renameat renameat+ unlinkat",
			"lastgood/router lastgood/smtpserver/0123456789abcdef01234567 lastgood/smtpserver/.0123456789abcdef01234567.new"},
		"suspended/suspensions":     {"openat renameat renameat+ unlinkat", "suspended/suspensions"},
		"suspended/suspensions.new": {"openat openat+ renameat unlinkat", "suspended/suspensions.new"},
		"suspended/.lock":           {"openat openat+ flock", "suspended/.lock"},
		"orders/I":                  {"openat openat+ unlinkat", "orders/I"},
		"orders/I-P-resume-I":       {"openat openat+ flock unlinkat", "orders/I-P-resume-1"},
		"orders/I-P-suspend-I":      {"openat openat+ flock unlinkat", "orders/I-P-suspend-1"},
		"verify/cache":              {"openat openat+ flock renameat renameat+", "verify/cache"},
		"verify/cache.new":          {"openat openat+ renameat unlinkat", "verify/cache.new"},
		"clients/T":                 {"openat openat+ renameat renameat+ unlinkat", "clients/greylist"},
		"clients/T.new":             {"openat openat+ renameat unlinkat", "clients/greylist.new"},
		"imports/I":                 {"openat openat+ unlinkat", "imports/postfix-x-1 imports/import-1"},
		"sts/I":                     {"openat openat+ renameat2 renameat2+", "sts/far.example sts/.P-1"},
		"tlsrpt/I-I-I":              {"openat openat+ unlinkat", "tlsrpt/2026-11-24"},
		"mail/T":                    {"openat openat+ mkdirat+", "mail/lp"},
		"mail/T.lock":               {"linkat+ openat openat+ unlinkat", "mail/lp.lock"},
		"mail/tmp/":                 {"mkdirat+ fchmodat openat", "mail/lp"},
		"mail/new/":                 {"mkdirat+ fchmodat openat", "mail/lp"},
		"mail/cur/":                 {"mkdirat+ fchmodat openat", "mail/lp"},
		"mail/tmp/T":                {"openat+ renameat2 unlinkat", "mail/lp"},
		"mail/new/T":                {"renameat2+ openat", "mail/lp"},
		"mail/":                     {"openat openat+", "mail/lp"}, // its O_TMPFILE has no name
		"forward/T":                 {"openat", "forward"},
		".metrics.program":          {"bind+ unlinkat", ".metrics.router .web.token .web.samples log"},
	}
	for _, name := range []string{"public", "queue", "transport", "deferred", "freezer", "postman", "owners", "quarantine", "removed", "ledger",
		"orders", "imports", "sts", "tlsrpt", "clients", "verify", "suspended", "lastgood", "router", "router0"} {
		rows[name+"/"] = row{dir, name}
	}
	for _, name := range []string{"router", "router0"} {
		rows[name+"/I"] = row{"openat renameat2 renameat2+ unlinkat", name + "/I"}
		rows[name+"/I-P"] = row{"openat renameat2 renameat2+ unlinkat", name + "/I-P " + name + "/I-4711"}
		rows[name+"/..I-P"] = row{"openat openat+ renameat2 renameat2+ unlinkat", name + "/..I-P " + name + "/..I-999999"}
		rows[name+"/.tries.I"] = row{"openat openat+ renameat2 renameat2+ unlinkat", name + "/.tries.I"}
		rows[name+"/.pickup.I.T"] = row{"openat openat+ flock renameat2 renameat2+ unlinkat", name + "/.pickup.I.1"}
	}
	return rows
}

// examples returns the names of the table in this system, in directories that are open to the
// attacker or in those that are closed.
func (w *world) examples(open bool) (paths []string) {
	w.Helper()
	owner := "1"
	if list, err := os.ReadDir(w.po("owners")); err == nil && len(list) > 0 {
		owner = list[0].Name()
	}
	number := strconv.FormatUint(w.coming(), 10)
	for _, r := range table() {
		for name := range strings.FieldsSeq(r.examples) {
			dir, base := filepath.Split(name)
			base = strings.NewReplacer("I", number, "P", owner).Replace(base)
			path := w.po(dir + base)
			if strings.HasPrefix(name, "mail/") || name == "forward" {
				path = filepath.Join(w.s.Dir, dir+base)
			}
			if w.isOpen(filepath.Dir(path)) == open {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// isOpen reports whether the attacker may make names in a directory.
func (w *world) isOpen(dir string) bool {
	for _, open := range append(w.open(), filepath.Join(w.s.Dir, "mail")) {
		if dir == open {
			return true
		}
	}
	return false
}

// coming is about the inode number that the next file gets.
func (w *world) coming() uint64 {
	w.Helper()
	path := w.po("public/probe")
	w.a.do(op{Do: "file", Path: path, Mode: 0o600})
	defer w.a.do(op{Do: "remove", Path: path})
	return w.inode(path)
}
