package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/repair"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// Looking changes nothing: names, bytes, times and locks stay.
func TestLookingChangesNothing(t *testing.T) {
	o := office.New(t)
	ids := plant(t, o)
	before := o.Picture(t)
	for _, args := range [][]string{{"status"}, {"queue"}, {"queue", "--json"}, {"check"}, {"resubmit"}, {"show", ids[view.StateQueued]}, {"show", ids[view.StateClaimed]}} {
		invoke(t, args...)
	}
	assert.Equal(t, o.Picture(t), before, "after looking")
}

// K10, A18: files that go away under a look are no trouble, and once it is quiet
// the counts are right.
func TestLookingWhileMailMoves(t *testing.T) {
	o := office.New(t)
	o.Routing = o.Run(t, "router")
	o.Run(t, "scheduler")
	ctx, cancel := context.WithCancel(t.Context())
	var movers sync.WaitGroup
	moved := make(chan struct{}, 1000)
	for range 2 {
		movers.Go(func() {
			for ctx.Err() == nil {
				a, name, offsets := o.Enqueue(t, "a@a.example.com", "b@a.example.com")
				o.Tag(t, name, offsets[0], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
				o.Tag(t, name, offsets[1], workspec.TagBytes(workspec.FormatOurs, workspec.TagOK))
				assert.NoError(t, o.Queue.Finish(name))
				b := o.Submit(t, office.PlainMail)
				assert.NoError(t, o.Claim(t, b).Defer("x"))
				if _, err := o.Aside.Resubmit(filepath.Base(b.Name) + ".x"); err != nil {
					t.Error(err)
				}
				assert.NoError(t, o.Claim(t, b).Discard())
				_ = a
				select {
				case moved <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 20 {
		select {
		case <-moved:
		case <-t.Context().Done():
		}
		for _, command := range []string{"status", "queue", "resubmit"} {
			exits(t, 0, command)
		}
		if out, code, _ := invoke(t, "check", "--problems"); code > 1 {
			t.Errorf("check: got exit code %d\n%s", code, out)
		}
	}
	cancel()
	movers.Wait()
	a := o.Submit(t, office.PlainMail)
	out, _, _ := invoke(t, "queue")
	wantIn(t, out, a.ID.String(), "1 message\n")
	exits(t, 0, "check", "--problems")
}

// The exit code is that of the worst finding; --problems leaves out what is as it should be;
// what is asked for and cannot be done with the rest is refused. A repair is done and found
// done by the next.
func TestCheckAndRepairExitCodes(t *testing.T) {
	o := office.New(t)
	o.Routing = o.Run(t, "router")
	o.Run(t, "scheduler")
	_, name, _ := o.Enqueue(t, "a@a.example.com")
	for args, want := range map[string]int{
		"": 0, "--problems": 0, "--repair": 0, "--dry-run": 0, "--older 2d --stuck 1h30m": 0,
		"--ledger --repair": 64, "--ledger --dry-run": 64, "--problems --repair": 64, "--ledger --older 1h": 64,
		"--dry-run --stuck 1h": 64, "--older soon": 64, "--stuck -5s": 64,
	} {
		exits(t, want, append([]string{"check"}, strings.Fields(args)...)...)
	}
	o.Write(t, "transport/"+name, "@ \x00\x1b[2J\n")
	var found []struct {
		File, Severity string
		Problems       []check.Problem
	}
	out, code, _ := invoke(t, "check", "--json", "--problems")
	assert.Must(t, json.Unmarshal([]byte(out), &found))
	if code != int(check.Wrong) || len(found) != 1 || found[0].File != "transport/"+name || found[0].Severity != "error" || found[0].Problems[0] != check.BadSpec {
		t.Errorf("got %d, %+v", code, found)
	}
	if out, code, _ := invoke(t, "check"); code != int(check.Wrong) || strings.ContainsAny(out, "\x00\x1b") {
		t.Errorf("got %d, %q", code, out)
	}
	for i, args := range []string{"--dry-run", "--repair"} {
		var steps []repair.Step
		out, code, _ := invoke(t, "check", "--json", args)
		assert.Must(t, json.Unmarshal([]byte(out), &steps))
		if code != 1-i || len(steps) != 1 {
			t.Errorf("%s: got %d, %+v", args, code, steps)
		}
	}
}

// docs/check.md explains every problem that check can name, with its severity.
func TestEveryProblemIsExplained(t *testing.T) {
	page, err := os.ReadFile("../../docs/check.md")
	assert.Must(t, err)
	source, err := os.ReadFile("../../internal/admin/check/problems.go")
	assert.Must(t, err)
	words := regexp.MustCompile(`Problem = "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	rows := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (warning|error) \\|").FindAllStringSubmatch(string(page), -1)
	if len(words) < 30 || len(words) != len(rows) {
		t.Errorf("%d problems, %d rows", len(words), len(rows))
	}
	for _, w := range words {
		severity := check.SeverityOf(check.Problem(w[1])).String()
		if !slices.ContainsFunc(rows, func(r []string) bool { return r[1] == w[1] && r[2] == severity }) {
			t.Errorf("docs/check.md has no row for %s, %s", w[1], severity)
		}
	}
}
