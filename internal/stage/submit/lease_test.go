package submit

import (
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease/leasetest"
)

// C4: the deadline passes before each of submit's looks at it: exit code 0, and 250 of submit -bs, come
// only under a lease.
func TestC4DeadlineAroundASubmission(t *testing.T) {
	node := leasetest.New(t)
	seen := map[string]bool{}
	for looks := int64(0); looks < 10; looks++ {
		dir, _ := newPostOffice(t)
		c := Config{PostOffice: dir, Recipients: []string{"x@y"}, In: strings.NewReader("Subject: x\n\nx\n"), Lease: node.Expiring(looks)}
		code := exitCode(Run(t.Context(), c))
		stored := len(assert.Get(filepath.Glob(filepath.Join(dir, "router", "*")))(t))
		switch {
		case code == config.ExitTempFail && stored == 0:
			seen["refused"] = true
		case code == config.ExitTempFail && stored == 1:
			seen["stored, and asked to try again"] = true
		case code == 0 && stored == 1:
			seen["accepted"] = true
		default:
			t.Errorf("%d looks: exit code %d, %d messages in router/", looks, code, stored)
		}
		dir, _ = newPostOffice(t)
		got := codes(talk(t, Config{PostOffice: dir, Lease: node.Expiring(looks)}, "EHLO c", "MAIL FROM:<>", "RCPT TO:<a@b>", "DATA", "x", ".", "QUIT"))
		want := "220 250 250 2.1.0 250 2.1.5 354 421 4.3.2 "
		if code == 0 {
			want = "220 250 250 2.1.0 250 2.1.5 354 250 2.0.0 221 2.0.0 "
		}
		assert.Equal(t, got, want, "codes with ", looks, " looks")
	}
	assert.Equal(t, len(seen), 3, "what was seen")
}
