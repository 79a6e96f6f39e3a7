package postoffice

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

func TestQuarantineKeepsEveryFileUnderANameThatTells(t *testing.T) {
	p, dir := newPostOffice(t, 1)
	long := strings.Repeat("x", 250)
	plant := map[string]func(path string) error{
		"public/smtp.1.x.y":   func(path string) error { return os.WriteFile(path, []byte("first"), 0o600) },
		"router/..12-5":       func(path string) error { return os.WriteFile(path, []byte("work"), 0o600) },
		"queue/A/fifo":        func(path string) error { return unix.Mkfifo(path, 0o600) },
		"deferred/directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"freezer/broken-link": func(path string) error { return os.Symlink("/nowhere", path) },
		"public/" + long:      func(path string) error { return os.WriteFile(path, []byte("long"), 0o600) },
	}
	for name, make := range plant {
		path := filepath.Join(dir, name)
		assert.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), make(path)))
		to := assert.Get(p.Aside.Quarantine(name, "No use!"))(t)
		want := "quarantine/" + strings.SplitN(name, "/", 2)[0] + "." + filepath.Base(name) + ".no-use-"
		if name == "public/"+long {
			want = "quarantine/public." + long[:160] + ".no-use-"
		}
		assert.Equal(t, to, want, name)
		if _, err := os.Lstat(filepath.Join(dir, to)); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	// The same name again: neither is lost.
	assert.Must(t, os.WriteFile(filepath.Join(dir, "public/smtp.1.x.y"), []byte("second"), 0o600))
	to, err := p.Aside.Quarantine("public/smtp.1.x.y", "No use!")
	if err != nil || to != "quarantine/public.smtp.1.x.y.no-use-.2" {
		t.Errorf("got %s, %v", to, err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "quarantine/public.smtp.1.x.y.no-use-")); string(b) != "first" {
		t.Errorf("the first file holds %q", b)
	}
	if _, err := p.Aside.Quarantine("public/none", "x"); !errors.Is(err, ErrGone) {
		t.Errorf("a name that is gone: got %v, want ErrGone", err)
	}
}

// A7, and the trap "listing that deletes a live writer's temporary file": what no one
// will finish is put away at the start; what somebody may still write, has accepted or
// has prepared stays; with strict nothing moves and the files are told.
func TestOnlyWhatNobodyWillFinishIsUnfinished(t *testing.T) {
	now := time.Now()
	boot := now.Add(-3 * time.Hour)
	const whole, short = "comment octets 0000000000000034\nto", "comment octets 0000000000000099\nto"
	cases := map[string]struct {
		file string
		mode os.FileMode
		age  time.Duration
		text string
		held bool
		why  string // "": it stays
	}{
		"lost bytes":                       {"smtp.77.dn0kpsb1upkv.1", 0o700, 2 * time.Minute, short, false, "incomplete"},
		"lost bytes with the power":        {"smtp.77.dn0kpsb1upkv.1", 0o700, 4 * time.Hour, short, false, "incomplete"},
		"being copied in":                  {"x", 0o700, 10 * time.Second, short, false, ""},
		"held, though it looks incomplete": {"smtp.77.dn0kpsb1upkv.1", 0o700, 4 * time.Hour, short, true, ""},
		"accepted":                         {"smtp.77.dn0kpsb1upkv.1", 0o700, 4 * time.Hour, whole, false, ""},
		"accepted, another program's":      {"foreign", 0o700, 4 * time.Hour, "to bond\n\n", false, ""},
		"written before the boot":          {"smtp.77.dn0kpsb1upkv.1", 0o600, 4 * time.Hour, short, false, "unfinished"},
		"written before the boot and held": {"smtp.77.dn0kpsb1upkv.1", 0o600, 4 * time.Hour, short, true, ""},
		"another's, before the boot":       {"foreign", 0o600, 4 * time.Hour, "to bo", false, "unfinished"},
		"another's, since the boot":        {"foreign", 0o600, 2 * time.Hour, "to bo", false, ""},
		"since the boot: swept later":      {"smtp.77.dn0kpsb1upkv.1", 0o600, 2 * time.Hour, short, false, ""},
		"prepared report":                  {"report.77.dn0kpsb1upkv.1", 0o600, 4 * time.Hour, whole, false, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p, dir := newPostOffice(t, 0)
			path := filepath.Join(dir, Public, c.file)
			at := now.Add(-c.age)
			assert.Must(t, errors.Join(os.WriteFile(path, []byte(c.text), c.mode), os.Chmod(path, c.mode), os.Chtimes(path, at, at)))
			if c.held {
				f := assert.Get(p.fs.Open(Public+"/"+c.file, os.O_RDWR, 0))(t)
				defer f.Close()
				if ok, err := f.TryLock(); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			_, err := p.Submissions.SettleUnfinished(now, boot, true)
			var refused *UnfinishedError
			if errors.As(err, &refused) != (c.why != "") || refused != nil && !strings.Contains(err.Error(), "public/"+c.file) {
				t.Errorf("strict: got %v, want it to refuse: %v", err, c.why != "")
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("strict has changed something: %v", err)
			}
			done := assert.Get(p.Submissions.SettleUnfinished(now, boot, false))(t)
			want := "quarantine/public." + c.file + "." + c.why
			if c.why == "" {
				want = "public/" + c.file
			} else if len(done) != 1 || done[0].Action != Quarantined || done[0].Name != want {
				t.Errorf("got %+v, want %s", done, want)
			}
			if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStagingDirectoryOfAnEarlierVersionIsRemoved(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	for _, d := range []string{".nursery/4711.dn0kpsb1upkv", ".nursery/4712.dn0kpsb1upkw"} {
		assert.Must(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	for name, content := range map[string]string{".nursery/4711.dn0kpsb1upkv/5999": "", ".nursery/4712.dn0kpsb1upkw/17": "not empty"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	assert.Get(p.Submissions.SettleUnfinished(time.Now(), time.Time{}, false))(t)
	left, err := os.ReadDir(filepath.Join(dir, Staging))
	if err != nil || len(left) != 1 || left[0].Name() != "4712.dn0kpsb1upkw" {
		t.Fatalf("left %v, %v: want the directory with the file that has content", left, err)
	}
	assert.Must(t, os.Remove(filepath.Join(dir, ".nursery/4712.dn0kpsb1upkw/17")))
	assert.Get(p.Submissions.SettleUnfinished(time.Now(), time.Time{}, false))(t)
	if _, err := os.Stat(filepath.Join(dir, Staging)); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", Staging, err)
	}
}
