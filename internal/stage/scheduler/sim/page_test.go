package sim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// scenarios returns the sections of docs/fairness.md. docs/notes/shown-by.md names the test of each.
func scenarios() []struct {
	title string
	run   func(*testing.T) []row
} {
	return []struct {
		title string
		run   func(*testing.T) []row
	}{
		{"Hosts of one clause", threadsOfARing},
		{"Clauses of one channel", ringsOfAChannel},
		{"Clauses that want agents", ringsUnderMaxTA},
		{"New mail against old mail", newAgainstOld},
		{"New mail against mail that is always deferred", deferredAgainstNew},
		{"One big message against many small ones", bigAgainstSmall},
		{"One sender against another", senderAgainstSender},
		{"Slow hosts against a fast one", slowAgainstFast},          // Z9
		{"A host that never answers against all others", blackHole}, // M23
		{"Hosts that accept connections and stay silent", silentHosts},
		{"A dead host", deadHost},             // Z18
		{"Oldest first", oldestFirst},         // Z3
		{"A hanging message", hangingMessage}, // M28
		{"Rates", rates},                      // Z10
		{"A host that takes few at once", fewAtOnce},
		{"Limits", limits}, // M24
	}
}

const preamble = `# Fairness, measured

Each line is measured in a simulation: the scheduler's own core and pool of agents on a virtual clock,
with simulated hosts and agent processes. "Wanted" is the bound that holds for every change of the
scheduler ([notes/shown-by.md](notes/shown-by.md) has the tests); "got" is one run.

Hosts take 50 to 150 ms for a message unless stated otherwise, and the settings are those of the
built-in scheduler.conf: maxring=100, maxunproven=50, maxthr=20, agents of 20 slots. The tests do
not include the disk, the agents' own speed, and the network.

The scheduler works as follows. A ring serves the thread with the fewest deliveries in progress; if
there are several, the one that has waited longest. Threads that contain only parts of messages to
more than 100 recipients get every second turn. Within a thread new messages and those tried before
take turns, so do the senders in each group, and each sender's oldest message comes first (with
ageorder). A host that is marked down is probed with one message at a time, any one; the message
during which a host became silent waits for its own retry time, even if the host has answered another
one. Places for agents (maxta) go to the clause that has the fewest. At most half of a ring's places
go to hosts that have not answered, and fewer still to reports to such hosts
([notes/silent-hosts.md](notes/silent-hosts.md)).

`

func TestThePageIsTrue(t *testing.T) {
	var b strings.Builder
	b.WriteString(preamble)
	for _, s := range scenarios() {
		fmt.Fprintf(&b, "## %s\n\n| measured | wanted | got |\n|---|---|---|\n", s.title)
		for _, r := range s.run(t) {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.what, r.wanted, r.got)
		}
		b.WriteString("\n")
	}
	got := strings.TrimRight(b.String(), "\n") + "\n"
	const page = "../../../../docs/fairness.md"
	if *update {
		assert.Must(t, os.WriteFile(page, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(page)
	assert.Must(t, err)
	if unmeasured(got) != unmeasured(string(want)) {
		t.Errorf("docs/fairness.md has other measurements; -update writes it")
	}
}

// unmeasured returns the page without its last column: a change of the core that keeps the
// bounds does not make it wrong.
func unmeasured(page string) string {
	lines := strings.Split(page, "\n")
	for i, l := range lines {
		if f := strings.Split(l, " | "); strings.HasPrefix(l, "| ") && len(f) == 3 {
			lines[i] = f[0] + " | " + f[1]
		}
	}
	return strings.Join(lines, "\n")
}

var update = flag.Bool("update", false, "write docs/fairness.md")
