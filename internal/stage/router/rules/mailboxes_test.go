package rules

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// What an administrator forgets leaves mail waiting: check-config says which line it is.
func TestCheckWarnsOfMailboxesThatGetNoMail(t *testing.T) {
	base := t.TempDir()
	tests := map[string]struct {
		domains, mailboxes, uids, base string
		line                           int // of the warning; 0: in no file
		warns                          bool
	}{
		"complete":                     {"v.example", "a@v.example v/a/", "static:5000", base, 0, false},
		"a domain that is nowhere":     {"v.example", "a@v.example v/a/\nb@w.example w/b/", "static:5000", base, 2, true},
		"no owner":                     {"v.example", "a@v.example v/a/\nb@v.example v/b/ uid=5000 gid=5000", "", base, 1, true},
		"the domain has the owner":     {"v.example uid=5000 gid=5000", "a@v.example v/a/", "", base, 0, false},
		"another host has it":          {"v.example transport=lmtp!unix:/run/lmtp", "a@v.example v/a/", "", base, 0, false},
		"the directory does not exist": {"v.example", "a@v.example v/a/", "static:5000", filepath.Join(base, "none"), 0, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sources := map[text.Kind][]string{text.VirtualMailboxDomains: {"domains"}, text.VirtualMailboxMaps: {"mailboxes"}}
			if tt.uids != "" {
				sources[text.VirtualUIDMaps], sources[text.VirtualGIDMaps] = []string{tt.uids}, []string{tt.uids}
			}
			assert.Must(t, os.WriteFile(filepath.Join(dir, "domains"), []byte(tt.domains+"\n"), 0o644))
			assert.Must(t, os.WriteFile(filepath.Join(dir, "mailboxes"), []byte(tt.mailboxes+"\n"), 0o644))
			r, err := New(Config{Dir: dir, Hostname: "mx.example", Sources: sources, Classes: Classes{Base: tt.base, MinimumUID: DefaultMinimumUID}})
			assert.Must(t, err)
			errs, warnings := config.Sort(r.Check(context.Background()))
			assert.Must(t, errs)
			assert.Must(t, r.Close())
			list := config.Errors(warnings)
			if !tt.warns {
				assert.Equal(t, len(list), 0)
				return
			}
			if len(list) != 1 {
				t.Fatalf("got %v, want one warning", list)
			}
			assert.Equal(t, list[0].(*config.Error).Line, tt.line)
		})
	}
}
