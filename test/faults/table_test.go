package faults

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/inject"
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
		t.Error("no client was asked to try again")
	}
}

// openDir returns a directory of the test that other uids may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.Chmod(strings.TrimSuffix(dir, "/001"), 0o755))
	return dir
}
