package watch

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

func TestAwaitInThePastGivesWhatIsThere(t *testing.T) {
	log, _ := newLog()
	dir := t.TempDir()
	w := prepare([]string{dir}, never, digits, log, openNotifier)
	defer w.Close()
	w.Await(time.Time{})
	over := time.Unix(1, 0)
	if got := w.Await(over); len(got) != 0 {
		t.Errorf("got %v before anything came, want nothing", got)
	}
	create(t, filepath.Join(dir, "1"))
	create(t, filepath.Join(dir, "2"))
	want := []Hint{{Dir: dir, Name: "1"}, {Dir: dir, Name: "2"}}
	assert.Same(t, w.Await(over), want)
	if got := w.Await(over); len(got) != 0 {
		t.Errorf("got %v twice", got)
	}
}

func TestInterruptEndsAwait(t *testing.T) {
	for name, open := range map[string]func() (*notifier, error){
		"inotify":    openNotifier,
		"no inotify": func() (*notifier, error) { return nil, unix.EMFILE },
	} {
		t.Run(name, func(t *testing.T) {
			log, _ := newLog()
			dir := t.TempDir()
			w := prepare([]string{dir}, 0, digits, log, open)
			defer w.Close()
			w.Await(time.Time{})
			for range 3 {
				w.Interrupt() // before
				if got := w.Await(time.Time{}); len(got) != 0 {
					t.Errorf("got %v, want nothing", got)
				}
				go w.Interrupt() // or while it waits
				if got := w.Await(time.Time{}); len(got) != 0 {
					t.Errorf("got %v, want nothing", got)
				}
			}
			if name == "inotify" {
				create(t, filepath.Join(dir, "1"))
				if got := w.Await(time.Time{}); len(got) != 1 || got[0].Name != "1" {
					t.Errorf("got %v, want the new name", got)
				}
			}
		})
	}
}
