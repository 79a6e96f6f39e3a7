package agents

import (
	"io"
	"os"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logging"
)

// An agent has our standard error, and finds the journal there as we do.
func TestAgentsKnowTheJournal(t *testing.T) {
	t.Setenv(logging.JournalVariable, "7:8")
	t.Setenv("SECRET", "x")
	out, theirs, err := os.Pipe()
	assert.Must(t, err)
	defer out.Close()
	p, err := Launch{Argv: []string{"/usr/bin/env"}, Env: []string{"A=1"}}.begin("/", theirs, theirs, nil, false)
	theirs.Close()
	assert.Must(t, err)
	got, err := io.ReadAll(out)
	if _, werr := p.Wait(); err != nil || werr != nil {
		t.Fatal(err, werr)
	}
	if string(got) != "A=1\nJOURNAL_STREAM=7:8\n" {
		t.Errorf("its environment is %q", got)
	}
}
