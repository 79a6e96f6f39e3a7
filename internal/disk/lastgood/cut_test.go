package lastgood

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

// Op4: the power fails, or the program is killed, at each write of a copy or a note: a reader
// finds an old copy, the new one, or none, each whole, and never one that is older than what
// was saved; the notes are those that were written; and the next process goes on.
func TestOp4CopiesAreWholeWhereverThePowerFails(t *testing.T) {
	const path = "/etc/mx.pem"
	contents := []string{"one\n", strings.Repeat("second line\n", 1000), "three\n"}
	reason := errors.New("line 1: damaged")
	store := func(fs *cutfs.FS, log *logtest.Buffer) *Store {
		return New(fs, "smtpserver", func() time.Time { return time.Unix(1_700_000_000, 0) }, log.Logger())
	}
	prepare := func() *cutfs.FS {
		fs := cutfs.New()
		assert.Must(t, fs.Mkdir(Dir, 0o700), fs.Mkdir(Dir+"/smtpserver", 0o700), fs.SyncDir(Dir), fs.SyncDir("."))
		return fs
	}
	// work saves all contents, with a note between, and returns how many were saved for certain.
	work := func(fs *cutfs.FS) (saved int) {
		log := &logtest.Buffer{}
		s := store(fs, log)
		for i, text := range contents {
			s.Expires(path, time.Unix(1_800_000_000, 0))
			s.Good(path, []byte(text), 0, nil)
			if log.Count("msg=copy-trouble") == 0 {
				saved = i + 1
			}
			s.Bad(path, reason, true)
			s.Away("policy:x", time.Unix(1_700_000_000, 0), reason, "start it") // a reader after the cut has none
		}
		s.Good(path, []byte(contents[len(contents)-1]), 0, nil)
		return saved
	}
	first := prepare()
	before := first.Ops()
	work(first)
	found := map[string]int{}
	for cut := range first.Ops() - before {
		for _, inside := range []bool{false, true} {
			fs := prepare()
			if inside {
				fs.CutInside(cut)
			} else {
				fs.CutAfter(cut)
			}
			saved := work(fs)
			for _, loss := range fs.Losses() {
				after, log := fs.Restart(loss), &logtest.Buffer{}
				s := store(after, log)
				got := s.Last(path)
				at := -1
				if got != nil {
					at = slices.Index(contents, string(got.Text))
				}
				if got != nil && at < 0 || at < saved-1 {
					t.Fatalf("cut %d, inside %v, %v: copy %d after %d were saved", cut, inside, loss, at, saved)
				}
				log.Expect(t, 0, "msg=copy-trouble")
				found[string(rune('0'+at+1))]++
				for _, f := range Findings(after, time.Unix(1_700_000_000, 0)) {
					if f.Path != path || f.Reason != reason.Error() || !f.Held {
						t.Fatalf("cut %d, inside %v, %v: note %+v", cut, inside, loss, f)
					}
				}
				s.Good(path, []byte("four\n"), 0, nil)
				s.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
				s.Settle()
				if k := store(after, log).Last(path); k == nil || string(k.Text) != "four\n" {
					t.Fatalf("cut %d, inside %v, %v: afterwards %+v", cut, inside, loss, k)
				}
				list := assert.Get(after.ReadDir(Dir + "/smtpserver"))(t)
				if len(list) != 1 || len(Findings(after, time.Unix(1_700_000_000, 0))) != 0 {
					t.Fatalf("cut %d, inside %v, %v: left are %v", cut, inside, loss, list)
				}
			}
		}
	}
	if len(found) != len(contents)+1 {
		t.Errorf("cuts left %v, want no copy and each of %d", found, len(contents))
	}
}

// Op4: a copy of which the disk has changed a byte counts as none, and the log says so.
func TestOp4CopyWithAChangedByteIsReported(t *testing.T) {
	dir := t.TempDir()
	open(t, dir).Good("/etc/aliases", []byte("a: b\n"), 0, nil)
	file := dir + "/" + Dir + "/router/" + name("/etc/aliases")
	text := assert.Get(os.ReadFile(file))(t)
	text[len(text)-2] ^= 1
	assert.Must(t, os.WriteFile(file, text, 0o600))
	log := &logtest.Buffer{}
	s := assert.Get(Open(dir, "router", log.Logger()))(t)
	if k := s.Last("/etc/aliases"); k != nil {
		t.Errorf("got %q", k.Text)
	}
	log.Expect(t, 1, "msg=copy-trouble")
}
