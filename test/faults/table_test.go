package faults

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// K12 M2 S21: some of the faults that make crash tries at every step: the first call
// that stores a message, the two renames of a hand-over, the mark of a delivery.
func TestFailingCallLosesNothing(t *testing.T) {
	if err := inject.Supported(); err != nil {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("builds and starts a system twice")
	}
	t.Parallel()
	var out bytes.Buffer
	table, err := Run(t.Context(), Options{Dir: openDir(t), Out: &out, Limit: time.Minute, Only: " from smtpserver fsync public/T"})
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	assert.Must(t, table.Print(&out))
	if table.Failed() || len(table.Trials) != len(answers(inject.Pair{Name: "fsync", Path: "public/T"})) {
		t.Errorf("%d faults:\n%s", len(table.Trials), &out)
	}
	refused := 0
	for _, x := range table.Trials {
		if x.Hits == 0 {
			t.Errorf("not met: %v", x.Injection)
		}
		refused += x.Refused
		if x.Errno == unix.EINTR && x.Refused > 0 {
			t.Errorf("%v: refused, it is to be tried again", x.Injection)
		}
	}
	if refused == 0 {
		t.Error("nobody was told to try again")
	}
}

// openDir is a directory of the test that other uids may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.Chmod(strings.TrimSuffix(dir, "/001"), 0o755))
	return dir
}

// What is found counts for the fault whose round it was, once, and fails the table.
func TestFindingsBelongToTheirFault(t *testing.T) {
	at := time.Now()
	fsync := inject.Pair{Program: "router", Name: "fsync", Path: "x"}
	table := &Table{}
	for n := range 3 {
		table.Trials = append(table.Trials, &Trial{Injection: Injection{Pair: fsync, Errno: unix.EINTR, Times: 1, Steady: true},
			Hits: 1, Began: at.Add(time.Duration(n) * time.Second)})
	}
	if table.Failed() {
		t.Error("without a finding it has failed")
	}
	of := func(round int) []load.Finding { return []load.Finding{{Try: load.Try{Round: round}, Text: "x"}} }
	a := &load.Audit{Lost: of(2), Duplicated: of(3), Unwanted: of(1), Orphans: []string{"queue/1-2"}}
	events := []suite.Event{
		{Time: at.Add(1500 * time.Millisecond), Program: "router", Word: "storage-trouble", Level: "ERROR"},
		{Time: at.Add(500 * time.Millisecond), Word: "daemon-ended", Attrs: map[string]any{"daemon": "router", "reason": "exit status 1"}},
	}
	table.take(a, 1, events)
	first, second, third := table.Trials[0], table.Trials[1], table.Trials[2]
	if first.Bad() {
		t.Errorf("the first belongs to an earlier drain: %v", first)
	}
	if len(second.Lost) != 1 || len(second.Noise) != 1 || len(second.Duplicated)+len(second.Orphans) > 0 {
		t.Errorf("the second: %v", second)
	}
	if len(third.Duplicated) != 1 || len(third.Orphans) != 1 || len(third.Lost) > 0 {
		t.Errorf("the third: %v", third)
	}
	table.take(a, 0, events)
	if len(first.Wrong) != 1 || len(first.Ended) != 1 || len(third.Orphans) != 1 {
		t.Errorf("the first, at last: %v", first)
	}
	if !table.Failed() {
		t.Error("it has not failed")
	}
	if err := table.Print(io.Discard); err != nil {
		t.Error(err)
	}
}

// Each step gets the answers that its call can give; in quick runs the kinds take
// turns.
func TestPlanHasEveryKindOfAnswer(t *testing.T) {
	found := map[inject.Pair]bool{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		found[inject.Pair{Program: "router", Name: "openat", Path: name}] = true
		found[inject.Pair{Program: "router", Name: "write", Path: name}] = true
		found[inject.Pair{Program: "ta-smtp", Name: "write", Path: "socket " + name}] = false
	}
	for _, quick := range []bool{false, true} {
		kinds, perPair := map[string]int{}, map[inject.Pair]int{}
		for _, i := range plan(found, quick) {
			kinds[i.word()]++
			perPair[i.Pair]++
			if stream(i.Pair) && i.Errno != unix.EINTR && i.Errno != unix.EIO {
				t.Errorf("%v: no connection says that", i)
			}
		}
		for _, want := range []string{"EINTR", "EINTRx5", "EIO", "EIOx5", "EIO+2", "ENOSPC", "EMFILE", "short"} {
			if kinds[want] == 0 {
				t.Errorf("quick %v: no %s in %v", quick, want, kinds)
			}
		}
		for p, n := range perPair {
			if quick && n != 1 {
				t.Errorf("quick: %d faults at %v", n, p)
			}
		}
		assert.Equal(t, len(perPair), len(found), quick)
	}
	last := plan(found, false)
	if first := last[0]; first.Errno != unix.EINTR || !first.Steady || last[len(last)-1].Errno == unix.EINTR {
		t.Errorf("begins with %v, ends with %v, want EINTR first", first, last[len(last)-1])
	}
}

// Each lane has its part of the faults, and the table all of them.
func TestLanesHaveEachFaultOnce(t *testing.T) {
	t.Parallel()
	var list []Injection
	for i := range 7 {
		list = append(list, Injection{Times: i})
	}
	var tables []*Table
	for _, part := range deal(list, 3) {
		table := &Table{NotTried: 1, Resubmitted: 2}
		last := -1
		for _, i := range part {
			if i.Times < last {
				t.Errorf("got %v in another order", part)
			}
			last = i.Times
			table.Trials = append(table.Trials, &Trial{Injection: i, Lost: make([]string, i.Times/6)})
		}
		tables = append(tables, table)
	}
	all := join(append(tables, nil))
	seen := map[int]int{}
	for _, x := range all.Trials {
		seen[x.Times]++
	}
	if len(seen) != 7 || len(all.Trials) != 7 || all.NotTried != 3 || all.Resubmitted != 6 || !all.Failed() {
		t.Errorf("got %d faults, %d of them different, of %+v", len(all.Trials), len(seen), all)
	}
	if join([]*Table{nil}) != nil {
		t.Error("a table of nothing")
	}
}
