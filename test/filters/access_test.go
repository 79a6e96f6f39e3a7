package filters

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

var (
	accessSeed  = flag.Uint64("access-seed", 0, "the seed of the random access tables; 0: by the clock")
	accessCases = flag.Int("access-cases", 60, "how many messages are sent through them")
)

// Op10: where mail ends that access tables redirect, copy, send to a filter, hold, discard and give
// fields, is where Debian's Postfix sends it with the same tables: recipients, header, next hop.
// Postfix is the judge.
func TestOp10AccessActionsLeadMailToTheSameEnd(t *testing.T) {
	if _, err := os.Stat(peer.PostfixMaster); err != nil || os.Geteuid() != 0 {
		t.Skip("Postfix is not installed, or not root")
	}
	seed := *accessSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	r := edits{Rand: rand.New(rand.NewPCG(seed, 7))}
	dir := rig.ShortDir(t)
	assert.Must(t, os.Chmod(dir, 0o755))
	filter := rig.Sink(t, &peer.Sink{})
	var rules, list []string
	tables := ""
	const keys = 14
	for _, table := range [][2]string{{"helo", "c%d.client.example"}, {"sender", "s%d@client.example"}, {"recipient", "r%d@sink.example"}} {
		what, key := table[0], table[1]
		var b strings.Builder
		n := keys
		if what == "helo" {
			n = *accessCases // outcome has a name for each
		}
		for i := range n {
			if what != "helo" || r.IntN(3) == 0 {
				fmt.Fprintf(&b, key+" %s\n", i, pick(r, "PREPEND X-Seen: "+what, "PREPEND X-Other:two  words", "REDIRECT other@sink.example", "REDIRECT r2@sink.example", "BCC copy@sink.example", "BCC r1@sink.example",
					"FILTER smtp:"+filter.RouteHost(), "FILTER smtp:"+filter.RouteHost(), "HOLD", "DISCARD", "WARN look", "INFO look", "DUNNO", "OK"))
			}
		}
		file := filepath.Join(dir, what)
		assert.Must(t, os.WriteFile(file, []byte(b.String()), 0o644))
		rules, list = append(rules, "check_"+what+"_access file:"+file), append(list, "check_"+what+"_access texthash:"+file)
		tables += what + "\n" + b.String()
	}
	ours := startOurs(t, "", map[string]string{"access": strings.Join(rules, "\n") + "\n"})
	theirs := startPostfix(t, "", "smtpd_recipient_restrictions = "+strings.Join(list, ", "))
	ours.filter, theirs.filter = filter, filter
	ends := map[string]int{}
	for i := range *accessCases {
		c := &Case{Acts: map[string][][]string{}, From: "a@client.example", Message: defaultMessage}
		c.Client = append(c.Client, []string{"mail", fmt.Sprintf("<s%d@client.example>", r.IntN(keys))})
		for range 1 + r.IntN(3) {
			c.Client = append(c.Client, []string{"rcpt", fmt.Sprintf("<r%d@sink.example>", r.IntN(keys))})
		}
		// Postfix sends a copy to an address as often as rules want one; we send it once.
		want := strings.Join(slices.Compact(theirs.outcome(t, c, i)), "\n")
		got := strings.Join(slices.Compact(ours.outcome(t, c, i)), "\n")
		if got != want {
			t.Errorf("%d: %q\nours\n%s\nPostfix\n%s", i, c.Client, got, want)
		}
		ends[strings.SplitN(want, "\n", 2)[0]]++
		if strings.HasPrefix(want, "filtered") {
			ends["filtered"]++
		}
	}
	if t.Failed() {
		t.Log(tables)
	}
	t.Logf("%d held, %d discarded, %d filtered; repeat with -args -access-seed %d", ends["held"], ends["discarded"], ends["filtered"], seed)
}
