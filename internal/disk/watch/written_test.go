package watch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func TestWhatIsWrittenIsTold(t *testing.T) {
	dir := t.TempDir()
	c := Written(t.Context(), dir)
	told := func(what string) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: nothing is reported", what)
		}
	}
	f := assert.Get(os.Create(filepath.Join(dir, "journal")))(t)
	defer f.Close()
	told("a new file")
	// A late report is of an earlier write; a line is reported after it in any case.
	for range 3 {
		assert.Get(f.WriteString("line\n"))(t)
		told("a line")
	}
	select {
	case <-Written(t.Context(), filepath.Join(dir, "none")):
		t.Error("a directory that is not there: something is reported")
	default:
	}
}
