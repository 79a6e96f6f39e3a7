package mailbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/admin/importer"
	"zmailer/internal/run/assert"
	"zmailer/test/importertest"
)

const box = "From bob@x.example Mon Jan  2 15:04:05 2023\nSubject: one\nTo: A <a@y.example>, b@y.example\nBcc: c@y.example\n\nfirst\n>From here\n>>From there\n> From\n\n" +
	"From MAILER-DAEMON Mon Jan  2 15:04:06 2023\nReturn-Path: <real@x.example>\nSubject: two\nTo: a@y.example\n folded@y.example\n\nFrom: no start\nx\nFrom nor this\n\n" +
	"From MAILER-DAEMON Mon Jan  2 15:04:07 2023\nSubject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA\n\nx\n\n" +
	"From - Mon Jan  2 15:04:08 2023\nSubject: same\n\nx\n\n" +
	"From - Mon Jan  2 15:04:08 2023\nSubject: same\n\nx\n"

const testHost = "h.example"

func write(t *testing.T, name, text string) string {
	t.Helper()
	assert.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	assert.Must(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func TestMboxIsReadMessageByMessage(t *testing.T) {
	m, err := OpenMbox(write(t, filepath.Join(t.TempDir(), "box"), box), Envelope{To: []string{"new@z.example"}}, testHost)
	assert.Must(t, err)
	defer m.Close()
	importertest.Golden(t, "testdata/mbox.golden", importertest.Text(t, m))
}

func TestRecipientsOfTheHeaderAreTaken(t *testing.T) {
	m, err := OpenMbox(write(t, filepath.Join(t.TempDir(), "box"), box), Envelope{Extract: true, From: "", HasFrom: true}, testHost)
	assert.Must(t, err)
	defer m.Close()
	importertest.Golden(t, "testdata/extract.golden", importertest.Text(t, m))
}

// What was taken has the same key when mail was added behind it.
func TestKeysStayWhenAnMboxGrows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "box")
	keys := func(text string) (list []string) {
		m, err := OpenMbox(write(t, file, text), Envelope{To: []string{"new@z.example"}}, testHost)
		assert.Must(t, err)
		defer m.Close()
		refs, err := m.List(t.Context())
		assert.Must(t, err)
		for _, r := range refs {
			if l, err := m.Open(r); err == nil {
				list = append(list, l.Key)
			}
		}
		return list
	}
	before := keys(box)
	after := keys(box + "\nFrom - Mon Jan  2 15:04:08 2023\nSubject: same\n\nx\n")
	if len(before) != 4 || len(after) != 5 || !slices.Equal(before, after[:4]) || slices.Contains(before, after[4]) {
		t.Errorf("before %q, after %q", before, after)
	}
}

func TestMboxIsEmptiedWhenAllIsTaken(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "box"), box)
	m, err := OpenMbox(file, Envelope{}, testHost)
	assert.Must(t, err)
	defer m.Close()
	refs, err := m.List(t.Context())
	if err != nil || len(refs) != 5 {
		t.Fatalf("%v, %v", refs, err)
	}
	for i, r := range refs {
		err := m.Remove(r)
		b, rerr := os.ReadFile(file)
		if last := i == 4; rerr != nil || last != (err == nil) || last != (len(b) == 0) {
			t.Errorf("after %d: %v, %d bytes", i+1, err, len(b))
		}
	}
}

func TestMboxThatIsLockedIsLeftAlone(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "box"), box)
	f, err := os.Open(file)
	assert.Must(t, err)
	defer f.Close()
	assert.Must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	if _, err := OpenMbox(file, Envelope{}, testHost); !errors.Is(err, importer.ErrRunning) {
		t.Errorf("got %v, want %v", err, importer.ErrRunning)
	}
}

// The lock file is there while the mailbox is open, and gone afterwards; one of a dead
// writer, and one that has grown old, are removed.
func TestMboxIsLockedByALockFile(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "box"), box)
	dead := exec.Command("true")
	assert.Must(t, dead.Run())
	living := fmt.Sprintf("%d %s\n", os.Getppid(), testHost)
	tests := map[string]struct {
		text string // of a lock file that is there; "-": none is
		age  time.Duration
		host string
		want error
		left bool
	}{
		"none":                 {"-", 0, testHost, nil, false},
		"a living writer's":    {living, 10 * time.Minute, testHost, importer.ErrRunning, true},
		"a dead writer's":      {fmt.Sprintf("%d %s\n", dead.Process.Pid, testHost), 0, testHost, nil, false},
		"another host's":       {"1 other.example\n", time.Minute, testHost, importer.ErrRunning, true},
		"another host's, old":  {"1 other.example\n", 6 * time.Minute, testHost, nil, false},
		"another program's":    {"", time.Minute, testHost, importer.ErrRunning, true},
		"a living one's, aged": {living, 2 * time.Hour, testHost, nil, false},
		"one who only looks":   {living, 0, "", nil, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			lock := file + ".lock"
			_ = os.Remove(lock) // of the one before
			if tt.text != "-" {
				write(t, lock, tt.text)
				at := time.Now().Add(-tt.age)
				assert.Must(t, os.Chtimes(lock, at, at))
			}
			m, err := OpenMbox(file, Envelope{}, tt.host)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err == nil {
				b, err := os.ReadFile(lock)
				if want := fmt.Sprintf("%d %s\n", os.Getpid(), testHost); tt.host != "" && string(b) != want {
					t.Errorf("got %q, %v, want %q", b, err, want)
				}
				assert.NoError(t, m.Close())
			}
			if _, err := os.Stat(lock); tt.left != (err == nil) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// What has taken the mailbox's name since it was looked at is not read as one.
func TestMboxThatIsReplacedIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "box"), box)
	q, err := importer.OpenQueue(dir)
	assert.Must(t, err)
	m := &Mbox{q: q}
	seen, writable, err := m.look("box")
	if err != nil || !writable {
		t.Fatalf("%v, %v", writable, err)
	}
	assert.Must(t, os.Rename(write(t, file+".new", "no mailbox\n"), file))
	if err := m.take("box", seen, writable); !errors.Is(err, importer.ErrRunning) {
		t.Errorf("got %v, want %v", err, importer.ErrRunning)
	}
	assert.NoError(t, m.Close())
}

func TestOtherFilesAreNoMbox(t *testing.T) {
	if _, err := OpenMbox("/etc/passwd", Envelope{}, testHost); !errors.Is(err, importer.ErrNoQueue) {
		t.Errorf("got %v, want %v", err, importer.ErrNoQueue)
	}
	if _, err := os.Stat("/etc/passwd.lock"); err == nil {
		t.Error("there is a lock file beside it")
	}
	if _, err := OpenMaildir(t.TempDir(), Envelope{}); !errors.Is(err, importer.ErrNoQueue) {
		t.Errorf("got %v, want %v", err, importer.ErrNoQueue)
	}
}

func TestMaildirIsReadMessageByMessage(t *testing.T) {
	dir := t.TempDir()
	stamp := time.Unix(1_700_000_000, 0)
	for name, text := range map[string]string{
		"new/1700000000.M1.host":      "Return-Path: <s@x.example>\r\nSubject: crlf\r\n\r\nx\r\n.\r\n",
		"cur/1700000001.M2.host:2,S":  "Subject: no sender\n\nFrom here\n>From there\n",
		"cur/1700000002.M3.host:2,ST": "Subject: in the trash\n\nx\n",
		"tmp/1700000003.M4.host":      "half",
		"new/.hidden":                 "x",
	} {
		write(t, filepath.Join(dir, name), text)
		assert.Must(t, os.Chtimes(filepath.Join(dir, name), stamp, stamp))
	}
	m, err := OpenMaildir(dir, Envelope{To: []string{"new@z.example"}})
	assert.Must(t, err)
	defer m.Close()
	importertest.Golden(t, "testdata/maildir.golden", importertest.Text(t, m))
}

func FuzzMbox(f *testing.F) {
	f.Add([]byte(box))
	f.Add([]byte("From \n\nFrom x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := write(t, filepath.Join(t.TempDir(), "box"), string(text))
		m, err := OpenMbox(file, Envelope{To: []string{"a@b"}, Extract: true}, testHost)
		if err != nil {
			return
		}
		defer m.Close()
		refs, err := m.List(t.Context())
		assert.Must(t, err)
		var size int64
		for _, r := range refs {
			size += r.Size
			l, err := m.Open(r)
			if err != nil {
				continue
			}
			var b bytes.Buffer
			assert.Must(t, l.Write(&b))
			if strings.HasPrefix(strings.ToLower(b.String()), "return-path:") {
				t.Fatalf("%q begins with Return-Path", b.String())
			}
		}
		if size != int64(len(text)) {
			t.Fatalf("%d of %d bytes are in messages", size, len(text))
		}
	})
}
