package tasmtp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
)

// settings returns a configuration directory with these files.
func settings(t *testing.T, files map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	c, err := config.Load(filepath.Join(dir, "zmailer.conf"))
	assert.Must(t, err)
	return c
}

// All configuration errors of an agent are reported at once, before one starts.
func TestCheckConfigFindsUnusableFiles(t *testing.T) {
	const conf = "HOSTNAME=here.test\n"
	cases := map[string]struct {
		files map[string]string
		want  []string
	}{
		"all is well":          {map[string]string{"zmailer.conf": conf}, nil},
		"a rule on replies":    {map[string]string{"zmailer.conf": conf, "replies": "nonsense\n"}, []string{"replies:1"}},
		"an EHLO keyword":      {map[string]string{"zmailer.conf": conf, "discard-ehlo-keywords": "192.0.2.1 pipelining\n192.0.2.2 nosuch\n"}, []string{"discard-ehlo-keywords:2"}},
		"a line of dkim":       {map[string]string{"zmailer.conf": conf, "dkim": "# x\nexample.org\n"}, []string{"dkim:2"}},
		"a key":                {map[string]string{"zmailer.conf": conf, "dkim": "example.org s a.pem\nexample.net s b.pem\n"}, []string{"dkim:1", "a.pem", "dkim:2", "b.pem"}},
		"two files":            {map[string]string{"zmailer.conf": conf, "replies": "nonsense\n", "dkim": "x\n"}, []string{"replies:1", "dkim:1"}},
		"a network":            {map[string]string{"zmailer.conf": conf + "SIGNNETS=10.0.0.0/99\n"}, []string{"zmailer.conf:2", "SIGNNETS"}},
		"a key for all to see": {map[string]string{"zmailer.conf": conf, "dkim": "example.org s open.pem\n", "open.pem": "x"}, []string{"open.pem"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := CheckConfig(settings(t, c.files))
			if (err == nil) != (c.want == nil) {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		})
	}
}

// The name server is asked whether it has what the keys need.
func TestDKIMKeysAreComparedWithTheirRecords(t *testing.T) {
	keys := newSigner(t)
	other := newSigner(t)
	pem, err := os.ReadFile(filepath.Join(keys.dir, "key.pem"))
	assert.Must(t, err)
	half := len(keys.record) / 2
	zone := fmt.Sprintf(`
good._domainkey.example.org.  300 IN TXT "something else"
good._domainkey.example.org.  300 IN TXT "%s" "%s"
other._domainkey.example.org. 300 IN TXT "%s"
gone._domainkey.example.org.  300 IN TXT "v=DKIM1; p="
spf._domainkey.example.org.   300 IN TXT "v=spf1 -all"
bad._domainkey.example.org.   300 IN TXT "p=???"
`, strings.ReplaceAll(keys.record[:half], ";", "\\;"), strings.ReplaceAll(keys.record[half:], ";", "\\;"), strings.ReplaceAll(other.record, ";", "\\;"))
	zone = strings.ReplaceAll(strings.ReplaceAll(zone, "v=DKIM1; p=", "v=DKIM1\\; p="), "\\\\;", "\\;")
	server := mxtest.Start(t, zone)
	var table strings.Builder
	for _, name := range []string{"good", "other", "gone", "spf", "bad", "none"} {
		fmt.Fprintf(&table, "%s.example %s key.pem d=example.org\n", name, name)
	}
	table.WriteString("nokey.example good none.pem d=example.org\n")
	c := settings(t, map[string]string{"zmailer.conf": "HOSTNAME=here.test\nRESOLVER=" + server.Addr + "\n", "dkim": table.String(), "key.pem": string(pem)})
	cases := map[string]string{
		"good.example":  "line 1: d=example.org s=good, ed25519\n    good._domainkey.example.org: published\n",
		"other.example": "another key is published",
		"gone.example":  "the key is withdrawn",
		"spf.example":   "has no DKIM key",
		"bad.example":   "p= is not base64",
		"none.example":  "none._domainkey.example.org: ",
		"nokey.example": "no key\n    good._domainkey.example.org: ",
		"else.example":  "no line of the file dkim is for else.example",
	}
	for domain, want := range cases {
		var out strings.Builder
		err := TestDKIM(t.Context(), c, domain, &out)
		if !strings.Contains(out.String(), want) || errors.Is(err, ErrNotSigned) != (domain != "good.example") {
			t.Errorf("%s: got %v and\n%swant %s", domain, err, out.String(), want)
		}
	}
}
