package sim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// scenarios are what docs/fairness.md tells of, by the test that shows it.
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
		{"New against old", "TestNeitherNewNorOldStarves", newAgainstOld},
		{"New against what is always put off", "TestWhatIsAlwaysPutOffDoesNotDelayTheNew", deferredAgainstNew},
		{"One big message against many small ones", "TestOneBigMessageLeavesRoomForSmallOnes", bigAgainstSmall},
		{"One sender against another", "TestOneSendersFloodLeavesRoomForAnother", senderAgainstSender},
		{"Slow hosts against a fast one (Z9)", "TestSlowHostsDoNotBlockTheirRing", slowAgainstFast},
		{"A black hole against everybody else (M23)", "TestABlackHoleDelaysNobodyElse", blackHole},
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

Each line is measured in a simulation: the scheduler's own core (internal/stage/scheduler/thread)
on a virtual clock, with hosts and agents that are made up (internal/stage/scheduler/sim). The test
that is named fails if the bound is not kept; the numbers are those of one seed, as they were
when this was last written by

    go test ./internal/stage/scheduler/sim -run TestThePageIsTrue -update

Hosts take 50 to 150 ms for a message unless said otherwise, and settings are those of the
built-in scheduler.conf: maxring=100, maxunproven=50, maxthr=20, agents of 20 slots. What the tests do not
show: the disk, the agents' own speed, and the network.

How it comes about: a ring serves the thread with the fewest deliveries under way, of
several the one that waits longest; threads that hold nothing but parts of messages to more
than 100 recipients take every second turn. Within a thread the never tried and the tried
take turns, senders in each, and each sender's oldest comes first (with ageorder). A host
in trouble is probed by one message at a time, any one; the message that a host fell silent
at waits for its own time when the host has answered another. Places for agents (maxta) go
to the clause that has the fewest. Of a ring's places at most half go to hosts that have
not answered, and to reports to them still fewer ([notes/silent-hosts.md](notes/silent-hosts.md)).

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
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if unmeasured(got) != unmeasured(string(want)) {
		t.Errorf("docs/fairness.md tells of other measurements; -update writes it")
	}
}

// unmeasured is the page without its last column: a change of the core that keeps the
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
