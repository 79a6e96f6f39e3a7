package logread

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// Where systemd runs the daemons, zmctl log calls journalctl with the time from which on.
func TestJournalIsReadByJournalctl(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\necho \"$@\"\n"
	assert.Must(t, os.WriteFile(filepath.Join(bin, "journalctl"), []byte(script), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	since := time.Now().Add(-time.Hour)
	var got []string
	source := &Source{}
	assert.Must(t, source.Each(t.Context(), since, func(line []byte) error { got = append(got, string(line)); return nil }))
	if want := fmt.Sprintf("--no-pager --quiet --output=cat --unit=zmailer-* --since=@%d", since.Unix()); len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
