package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/check"
	"zmailer/internal/postoffice"
)

// Dur6: drafts that a power loss has left with their names and modes, without their
// content, are incomplete and no copies of each other, in check and in its repair.
func TestDur6IncompleteDraftsAreNoCopies(t *testing.T) {
	first := "comment octets 0000000000009999 00000000\n"
	for name, content := range map[string]string{
		"of 0 bytes":     "",
		"of zeros":       strings.Repeat("\x00", 4096),
		"of one block":   first + plainMail,
		"cut before end": first[:20],
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			o.owner = o.run(t, "router")
			scheduler, err := o.Owners.Exclusive("scheduler")
			must(t, err)
			// Files that are made within one tick of the kernel's clock have one time.
			at := time.Now().Add(-2 * time.Minute)
			drafts := []string{"public/smtp.5.dn0kpsb1upkv.1", "public/smtp.5.dn0kpsb1upkv.2", "public/smtp.5.dn0kpsb1upkv.3"}
			for _, d := range drafts {
				o.write(t, d, content)
				must(t, os.Chmod(o.path(d), 0o700), os.Chtimes(o.path(d), at, at))
			}
			found, _ := problems(t)
			for _, d := range drafts {
				if got := found[d]; len(got) != 1 || got[0] != string(check.Incomplete) {
					t.Errorf("%s: got %q, want %s alone", d, got, check.Incomplete)
				}
			}
			must(t, scheduler())
			mended(t, o)
			for _, put := range o.names(t, postoffice.Quarantine) {
				if strings.Contains(put, "copy") || strings.Contains(put, "duplicate") {
					t.Errorf("the repair took %s for a copy", put)
				}
			}
		})
	}
}
