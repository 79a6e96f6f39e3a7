package conf

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/glob"
)

// checked returns what Load and Check find of a directory with these files.
func checked(t *testing.T, files map[string]string) (string, bool) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	assert.Must(t, os.WriteFile(filepath.Join(dir, "zmailer.conf"), []byte("HOSTNAME=mx.example.org\n"+files["zmailer.conf"]), 0o600))
	var out strings.Builder
	c, err := config.Load(filepath.Join(dir, "zmailer.conf"))
	assert.Must(t, err)
	f, err := Load(c, os.Geteuid() == 0)
	errs := Errors(err)
	if err == nil {
		var warnings []error
		errs, warnings = f.Check(c, nil)
		for _, w := range warnings {
			fmt.Fprintln(&out, w)
		}
	}
	for _, err := range errs {
		fmt.Fprintln(&out, err)
	}
	ok := len(errs) == 0
	return strings.ReplaceAll(out.String(), dir+"/", ""), ok
}

// M30, Z8: what is allowed and hardly meant is a warning: clauses that nothing reaches, programs
// that are not there, limits that others undo, routes to channels that nothing serves.
func TestHardlyMeantConfigurations(t *testing.T) {
	got, ok := checked(t, map[string]string{
		"scheduler.conf": `*/* maxring=5 maxthr=9 expiry=3d expiry2=1d reporttimes="4h 4d" skew=5
smtp/*.example start=7 maxthr=3
	command="/bin/sh"
smtp/mx.example	command="/bin/sh"
smtp/[ab].example command="/nonexistent/ta $channel"
smtp/*	command="/etc $channel"
smtp/{a,b}.other expiry=1h
uucp/*	expiry=9d
{local,file}/*	command="no-such-agent-anywhere"
local/x?z command="/bin/sh"
`,
		"routes": "# comment\n.x.example  uucp!gate\n\thold.example hold!NS:h\n.  \tsmtp!\n.y lmtp!unix:/x # because\n",
	})
	if !ok {
		t.Error("it cannot be used")
	}
	golden(t, "testdata/warnings.golden", got)
}

// Z8: every text table that ROUTES names is looked through, not only the one beside
// zmailer.conf.
func TestRoutesOfTheSettingAreLookedThrough(t *testing.T) {
	got, ok := checked(t, map[string]string{
		"scheduler.conf": "smtp/* command=\"/bin/sh\"\n",
		"zmailer.conf":   "ROUTES=\"first db:big.db file:second missing\"\n",
		"routes":         "not.example asked!for\n",
		"first":          "a.example smtp!x\nb.example uucp!gate\n",
		"second":         "c.example pigeon!loft\n",
	})
	if !ok {
		t.Error("it cannot be used")
	}
	for _, want := range []string{"first:2:11: warning: no clause of scheduler.conf with a command serves channel uucp", "second:1:11: warning: no clause of scheduler.conf with a command serves channel pigeon"} {
		assert.Contains(t, got, want)
	}
	if strings.Contains(got, "asked") {
		t.Errorf("a table that is not used is looked through: %s", got)
	}
}

// M30: all errors are told, not the first one alone, and the exit code can follow.
func TestCheckTellsAllErrors(t *testing.T) {
	got, ok := checked(t, map[string]string{"scheduler.conf": "smtp/* maxtr=1 rate=x\n\tuser=no-such-user\n"})
	if places := strings.Count(got, "scheduler.conf:1:8: ") + strings.Count(got, "scheduler.conf:1:21: "); ok || places != 2 {
		t.Errorf("got %t\n%s", ok, got)
	}
	got, ok = checked(t, map[string]string{"scheduler.conf": "smtp/* command=x\n\tuser=no-such-user\n"})
	if ok || !strings.HasPrefix(got, "scheduler.conf:2:2: ") {
		t.Errorf("got %t\n%s", ok, got)
	}
}

func TestBuiltInConfigurationHasNothingToWarnOf(t *testing.T) {
	conf := mustConf(t, string(config.Default("scheduler.conf")))
	for _, w := range conf.warnings() {
		if !strings.Contains(w.Error(), "nor in PATH") {
			t.Error(w)
		}
	}
	for _, w := range conf.unservedRoutes("routes", string(config.Default("routes"))) {
		t.Error(w)
	}
}

func TestCovers(t *testing.T) {
	tests := map[string]struct {
		p, q string
		want bool
	}{
		"all":                   {"*", "a*b?[c]", true},
		"the same":              {"a*[bc]", "a*[bc]", true},
		"suffix of a longer":    {"*.example", "*.mx.example", true},
		"longer than a suffix":  {"*.mx.example", "*.example", false},
		"class covers a letter": {"[a-c]x", "bx", true},
		"letter is no class":    {"bx", "[a-c]x", false},
		"? covers one":          {"a?c", "abc", true},
		"? does not cover *":    {"a?c", "a*c", false},
		"* covers ?":            {"a*c", "a??c", true},
		"nothing":               {"", "", true},
		"* and nothing":         {"*", "", true},
		"not the end":           {"a", "ab", false},
	}
	for name, tt := range tests {
		assert.Equal(t, covers(glob.Pieces(tt.p), glob.Pieces(tt.q)), tt.want, name)
	}
}
