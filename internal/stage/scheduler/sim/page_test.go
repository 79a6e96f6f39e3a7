package sim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// scenarios returns the sections of docs/fairness.md, with the test that shows each.
func scenarios() []struct {
	title, test string
	run         func(*testing.T) []row
} {
	return []struct {
		title, test string
		run         func(*testing.T) []row
	}{
		{"Hosts of one clause", "TestThreadsOfARingShareIt", threadsOfARing},
		{"Clauses of one channel", "TestRingsShareAChannel", ringsOfAChannel},
		{"Clauses that want agents", "TestARingGetsAgentsThoughAnotherHasThemAll", ringsUnderMaxTA},
		{"New mail against old mail", "TestNeitherNewNorOldStarves", newAgainstOld},
		{"New mail against mail that is always deferred", "TestWhatIsAlwaysPutOffDoesNotDelayTheNew", deferredAgainstNew},
		{"One big message against many small ones", "TestOneBigMessageLeavesRoomForSmallOnes", bigAgainstSmall},
		{"One sender against another", "TestOneSendersFloodLeavesRoomForAnother", senderAgainstSender},
		{"Slow hosts against a fast one (Z9)", "TestSlowHostsDoNotBlockTheirRing", slowAgainstFast},
		{"A host that never answers against all others (M23)", "TestABlackHoleDelaysNobodyElse", blackHole},
		{"Hosts that accept connections and stay silent", "TestAtk3SilentHostsDelayNoOwnMail", silentHosts},
		{"A dead host (Z18)", "TestADeadHostCostsOneConnectPerInterval", deadHost},
		{"Oldest first (Z3)", "TestOldestFirstPerDestination", oldestFirst},
		{"A hanging message (M28)", "TestOneHangingMessageDoesNotBlockTheRest", hangingMessage},
		{"Rates (Z10)", "TestRatesAreKeptAndCostNoAttempt", rates},
		{"A host that takes few at once", "TestAHostThatTakesFewAtOnceIsFilledAndNotFlooded", fewAtOnce},
		{"Limits (M24)", "TestLimitsHoldAtEverySample", limits},
	}
}

const preamble = `# Fairness, measured

Each line is measured in a simulation: the scheduler's own core and pool of agents
(internal/stage/scheduler/thread and agents) on a virtual clock, with simulated hosts and agent
processes (internal/stage/scheduler/sim). The named test
fails if the bound is exceeded. The numbers are those of one seed, from the last run of

    go test ./internal/stage/scheduler/sim -run TestThePageIsTrue -update

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
		fmt.Fprintf(&b, "## %s\n\n`%s`\n\n| measured | wanted | got |\n|---|---|---|\n", s.title, s.test)
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
