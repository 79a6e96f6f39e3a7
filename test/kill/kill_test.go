package kill

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/inject"
	"zmailer/test/suite"
)

// bin is where TestMain has built the programs.
var bin string

func TestMain(m *testing.M) {
	inject.Main()
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// M1 M7 M18 M35 K7 S7: a few of the kills that make crash makes everywhere.
func TestKillAtOneStepIsMended(t *testing.T) {
	if err := inject.Supported(); err != nil {
		t.Skip(err)
	}
	if testing.Short() {
		t.Skip("each kill takes more than a second")
	}
	dir := t.TempDir()
	// ta-mailbox works as the users that own the mailboxes.
	assert.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	l, err := newLane(bin, dir)
	assert.Must(t, err)
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, target := range []Target{
		{Pair: inject.Pair{Program: "router", Name: "renameat2", Path: "router/..I-P -> transport/I-P"}, Occurrence: 1},
		{Pair: inject.Pair{Program: "scheduler", Name: "unlinkat", Path: "transport/I-P"}, Occurrence: 2, Whole: true},
		{Pair: inject.Pair{Program: "scheduler", Name: "renameat2", Path: "transport/.copy.I-P -> transport/I-P"}, Occurrence: 1, Whole: true},
		{Pair: inject.Pair{Program: "ta-mailbox", Name: "pwrite64", Path: "transport/I-P"}, Occurrence: 1, Torn: true},
	} {
		trial := l.try(t.Context(), target)
		if !trial.Hit {
			t.Errorf("%v: not reached", target)
		}
		if trial.bad() {
			t.Error(trial)
		}
	}
}
