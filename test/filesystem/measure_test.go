package filesystem

import (
	"encoding/json"
	"os"
	"testing"

	"zmailer/internal/disk/filesystem"
	"zmailer/internal/run/assert"
	"zmailer/test/fusefs"
	"zmailer/test/suite"
)

// C7: a file system that lies is found out: zmctl check --filesystem names what is missing, and
// what is missing alone. What can be replaced is no reason to refuse it.
func TestC7FileSystemThatLiesIsFoundOut(t *testing.T) {
	if why := fusefs.Supported(); why != "" {
		t.Skip(why)
	}
	for name, c := range map[string]struct {
		faults  fusefs.Faults
		missing string // that is needed
		not     string // that is not
	}{
		"nothing wrong":     {fusefs.Faults{}, "", ""},
		"rename flags":      {fusefs.Faults{NoRenameFlags: true}, "", "rename-new"},
		"link":              {fusefs.Faults{NoLink: true}, "", "link"},
		"neither":           {fusefs.Faults{NoRenameFlags: true, NoLink: true}, "link", ""},
		"sticky bit":        {fusefs.Faults{NoSticky: true}, "modes", ""},
		"numbers in a list": {fusefs.Faults{OtherInodes: true}, "directory-inodes", ""},
		"fsync":             {fusefs.Faults{NoSync: true}, "fsync", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &suite.Suite{Bin: bin, Dir: t.TempDir()}
			below, at := t.TempDir(), t.TempDir()
			unmount, err := fusefs.Mount(below, at, c.faults)
			if err != nil {
				t.Skip("mount: ", err)
			}
			t.Cleanup(func() { _ = unmount() })
			code, stdout, stderr := run(t, s, "zmctl", "check", "--filesystem", at, "--json")
			var list []filesystem.Property
			if err := json.Unmarshal([]byte(stdout), &list); err != nil {
				t.Fatalf("%v in %s%s", err, stdout, stderr)
			}
			found := map[string]filesystem.Property{}
			for _, p := range list {
				found[p.Name] = p
				if p.IsMissing() && p.Remedy == "" {
					t.Errorf("%s: no remedy", p.Name)
				}
			}
			want := 0
			if c.missing != "" {
				want = 2
				if !found[c.missing].IsMissing() {
					t.Errorf("%s is not found missing: %+v", c.missing, list)
				}
			}
			assert.Equal(t, code, want, "exit code "+stdout)
			if c.not != "" && found[c.not].Has {
				t.Errorf("%s is there: %+v", c.not, found[c.not])
			}
			left := assert.Get(os.ReadDir(below))(t)
			assert.Equal(t, len(left), 0, "files left")
		})
	}
}
