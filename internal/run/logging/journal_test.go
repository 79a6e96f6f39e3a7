package logging

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
)

// journalled returns what New writes into a file that JOURNAL_STREAM names, or another.
func journalled(t *testing.T, format string, named bool) []string {
	t.Helper()
	f := assert.Get(os.Create(filepath.Join(t.TempDir(), "stream")))(t)
	defer f.Close()
	info := assert.Get(f.Stat())(t)
	st := info.Sys().(*syscall.Stat_t)
	ino := st.Ino
	if !named {
		ino++
	}
	t.Setenv(JournalVariable, fmt.Sprintf("%d:%d", st.Dev, ino))
	log := assert.Get(New(f, format, "debug", "p"))(t)
	log = log.With("level", "ERROR")
	log.Debug("d")
	log.Info("i", "reply", `x "level":"ERROR" level=ERROR`)
	log.Warn("w")
	log.Error("e")
	Flush(log)
	b := assert.Get(os.ReadFile(f.Name()))(t)
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// The journal knows a line's priority; without this all are info to journalctl -p.
func TestTheJournalIsToldPriorities(t *testing.T) {
	for _, format := range []string{"text", "json", "auto"} {
		want := []string{"<7>", "", "<4>", "<3>"}
		lines := journalled(t, format, true)
		if len(lines) != len(want) {
			t.Fatalf("%s: got %q", format, lines)
		}
		for i, l := range lines {
			begin := "time="
			if format == "json" {
				begin = `{"time"`
			}
			if !strings.HasPrefix(l, want[i]+begin) {
				t.Errorf("%s: got %q, want %q before it", format, l, want[i])
			}
			if got, ok := ParseLine([]byte(l)); !ok || got.Event != "diwe"[i:i+1] {
				t.Errorf("%s: %q is read back as %+v", format, l, got)
			}
		}
	}
}

func TestOtherFilesAreNotToldPriorities(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		for _, l := range journalled(t, format, false) {
			if strings.HasPrefix(l, "<") {
				t.Errorf("%s: got %q", format, l)
			}
		}
	}
}
