package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

var update = flag.Bool("update", false, "write the table of docs/reload.md anew")

const (
	addressReason  = "addresses are opened before privileges are dropped, or by systemd"
	landlockReason = "the kernel lets a process add restrictions to itself, and lift none"
	leaseReason    = "a program belongs to the lease under which it was started"
	logReason      = "the lines of one process have one form, for programs that read the log"
)

// whyRestart says in a clause why a reload does not apply a setting.
var whyRestart = map[string]string{
	"POSTOFFICE":   "the mail of a running system is in it",
	"HASHLEVELS":   "the scheduler moves all files of the queue before it serves",
	"SYNC":         "the postoffice is opened with it",
	"CLUSTER":      leaseReason,
	"NODE":         leaseReason,
	"LEASEDIR":     leaseReason,
	"DAEMONUSER":   "privileges are dropped once",
	"CONFINE":      landlockReason,
	"CONFINEPATHS": landlockReason,
	"FORWARD":      "the process that opens users' files gets it before privileges are dropped",
	"ROUTERDIRS":   "the directories are opened, and allowed by the confinement, at the start",
	"LOGFILE":      "zmctl run opens it as root",
	"LOG":          logReason,
	"LOGFORMAT":    logReason,
	"LOGLEVEL":     "zmctl run reads zmailer.conf when it is started",
	"METRICS":      addressReason,
}

// Op11: one table has, for each setting, the programs to which a reload applies it and those that
// need a restart, as it is declared.
func TestEverySettingStandsInTheTableOfReloads(t *testing.T) {
	var rows strings.Builder
	for _, v := range Variables() {
		restart := v.Restart()
		reload := slices.DeleteFunc(v.Programs(), func(p string) bool { return slices.Contains(restart, p) })
		if len(v.Programs()) == 0 {
			t.Errorf("%s: no program is declared to read it", v.Name)
		}
		if (whyRestart[v.Name] != "") != (len(restart) > 0) {
			t.Errorf("%s: a restart is needed by %q, because %q", v.Name, restart, whyRestart[v.Name])
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", v.Name, strings.Join(reload, ", "), strings.Join(restart, ", "), whyRestart[v.Name])
	}
	page := filepath.Join("..", "..", "..", "docs", "reload.md")
	text := string(assert.Get(os.ReadFile(page))(t))
	const head = "| setting | reload | restart | why a restart |\n|---|---|---|---|\n"
	before, table, found := strings.Cut(text, head)
	if !found {
		t.Fatal("docs/reload.md has no table")
	}
	if *update {
		assert.Must(t, os.WriteFile(page, []byte(before+head+rows.String()), 0o644))
		return
	}
	if table != rows.String() {
		t.Error("the table of docs/reload.md is not what is declared in variables.go: run this test with -update")
	}
}

// Op11: a setting that needs a restart keeps its value, one that a reload applies changes, and an
// agent's settings concern the scheduler.
func TestOp11ChangesAreSortedByWhatAppliesThem(t *testing.T) {
	dir := t.TempDir()
	at := func(text string) *Config {
		path := filepath.Join(dir, "zmailer.conf")
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return assert.Get(Load(path))(t)
	}
	old := at("MAXSIZE=1M\nROUTERDIRS=router2\nSMTPPORT=25\n")
	next := at("MAXSIZE=2M\nROUTERDIRS=router3\nSMTPPORT=26\nCONFINE=yes\n")
	changed := next.ChangedFrom(old)
	assert.Same(t, changed, []string{"CONFINE", "ROUTERDIRS", "MAXSIZE", "SMTPPORT"})
	for program, want := range map[string]Change{
		"smtpserver": {Applied: []string{"MAXSIZE"}, Restart: []string{"CONFINE", "ROUTERDIRS"}},
		"router":     {Applied: []string{"MAXSIZE"}, Restart: []string{"CONFINE", "ROUTERDIRS"}},
		"scheduler":  {Applied: []string{"SMTPPORT"}, Restart: []string{"CONFINE"}},
		"ta-mailbox": {Restart: []string{"CONFINE"}},
	} {
		got := ChangeFor(program, changed)
		assert.Same(t, got.Applied, want.Applied)
		assert.Same(t, got.Restart, want.Restart)
	}
	mixed := next.Keeping(old, ChangeFor("smtpserver", changed).Restart)
	assert.Equal(t, mixed.String("ROUTERDIRS", "")+" "+mixed.String("MAXSIZE", "")+mixed.String("CONFINE", ""), "router2 2M")
	if old.Fingerprint("ta-smtp") == next.Fingerprint("/usr/lib/ta-smtp") || old.Fingerprint("zmotlp") != next.Fingerprint("zmotlp") {
		t.Error("the fingerprints do not show which agents are to be replaced")
	}
	if old.Fingerprint("other") == next.Fingerprint("other") {
		t.Error("an agent that is none of ours may read any setting")
	}
}
