package check

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"zmailer/internal/admin/setup"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op11: what each program reads of zmailer.conf is what config.Variables declares, so that no
// setting is missing in the table of docs/reload.md or in what zmctl reload says.
func TestOp11DeclaredReadersAreThoseThatRead(t *testing.T) {
	dir := t.TempDir()
	po := filepath.Join(dir, "po")
	assert.Must(t, setup.Make(po))
	// What is read only where something else is set.
	text := "POSTOFFICE=" + po + "\nHOSTNAME=mx.example.org\nADDRESSVERIFY=relay\nGREYLIST=yes\nPREGREETWAIT=6s\nSRSSECRETS=srs\nCONTENTFILTER=smtpx![127.0.0.1]:10024\nREINJECTLISTEN=127.0.0.1:10025\nAUTH=file:users\nTLSCERT=x\nMILTERS=unix:/x\nSENDERLOGIN=x\n"
	assert.Must(t, os.WriteFile(filepath.Join(dir, "zmailer.conf"), []byte(text), 0o600))
	c := assert.Get(config.Load(filepath.Join(dir, "zmailer.conf")))(t)
	read := map[string]map[string]bool{}
	for _, l := range Loaders() {
		read[l.Program] = map[string]bool{}
		c.OnRead(func(name string) { read[l.Program][name] = true })
		_ = l.Check(c) // files are missing
	}
	c.OnRead(nil)
	// By programs before their loaders, or by what they start.
	elsewhere := map[string][]string{
		"": {"POSTOFFICE", "DAEMONUSER", "CONFINE", "CONFINEPATHS", "LOG", "LOGFORMAT", "LOGLEVEL", "LOGFILE", "ROUTERMODE", "ALARMS"},
		// A warning of check-config alone.
		"scheduler": {"ROUTES", "VIRTUALMAILBOXDOMAINS"},
		// Compared with CONTENTFILTER alone.
		"router": {"SMTPLISTEN", "SUBMISSIONLISTEN", "SUBMISSIONSLISTEN", "REINJECTLISTEN"},
		"zmweb":  {"HASHLEVELS"}, // by view.OpenPostOffice
	}
	for _, v := range config.Variables() {
		for program, names := range read {
			if slices.Contains(elsewhere[program], v.Name) || slices.Contains(elsewhere[""], v.Name) {
				continue
			}
			if declared := slices.Contains(v.Programs(), program); declared != names[v.Name] && (program != "zmctl" || names[v.Name]) {
				t.Errorf("%s: %s reads it: %v; declared in variables.go: %v", v.Name, program, names[v.Name], declared)
			}
		}
	}
}
