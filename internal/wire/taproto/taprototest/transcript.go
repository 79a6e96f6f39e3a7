// Package taprototest reads conversations between a scheduler and its agents that were
// recorded from a running ZMailer, so that tests of either side can replay them.
package taprototest

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

// Step is what one write of a conversation brought.
type Step struct {
	Agent bool   // the agent wrote it; else the scheduler
	Said  string // a line or several, newlines included
}

// Lines returns those of Said, without newlines.
func (s Step) Lines() []string {
	return strings.Split(strings.TrimSuffix(s.Said, "\n"), "\n")
}

// Transcript reads a file of lines "TA->SCHED text" and "SCHED->TA text", in which control
// characters are written as in Go. Other lines are what the agent opened.
func Transcript(t testing.TB, name string) []Step {
	t.Helper()
	steps, err := Read(name)
	assert.Must(t, err)
	return steps
}

// Read is Transcript for a process that a test starts.
func Read(name string) ([]Step, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var steps []Step
	in := bufio.NewScanner(file)
	for in.Scan() {
		who, text, _ := strings.Cut(in.Text(), " ")
		if who != "TA->SCHED" && who != "SCHED->TA" {
			continue
		}
		said, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
		if err != nil {
			return nil, err
		}
		steps = append(steps, Step{Agent: who == "TA->SCHED", Said: said})
	}
	return steps, in.Err()
}
