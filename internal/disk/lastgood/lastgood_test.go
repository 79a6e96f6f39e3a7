package lastgood

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	return assert.Get(Open(dir, "router", slog.New(slog.DiscardHandler)))(t)
}

func findings(t *testing.T, dir string) []Finding {
	t.Helper()
	disk := assert.Get(durable.NewOS(dir))(t)
	defer disk.Close()
	return Findings(disk, time.Now())
}

// Op4: what was good is there for the next process; what is bad is a finding until it is good.
func TestOp4CopyOutlivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Good("/etc/aliases", []byte("a: b\n"), 7, nil)
	s.Bad("/etc/aliases", errors.New("line 1"), true)
	s = open(t, dir)
	k := s.Last("/etc/aliases")
	if k == nil || string(k.Text) != "a: b\n" || k.UID != 7 {
		t.Fatalf("got %+v", k)
	}
	if f := findings(t, dir); len(f) != 1 || f[0].Path != "/etc/aliases" || f[0].Program != "router" || !f[0].Held || f[0].Reason != "line 1" {
		t.Errorf("got %+v", f)
	}
	s.Good("/etc/aliases", []byte("a: c\n"), 7, nil)
	assert.Equal(t, len(findings(t, dir)), 0, "findings")
	assert.Equal(t, string(open(t, dir).Last("/etc/aliases").Text), "a: c\n", "copy")
	if open(t, dir).Last("/etc/routes") != nil {
		t.Error("a copy of another file")
	}
	// A file that is not there any more has none.
	s = open(t, dir)
	s.Good("/etc/aliases", nil, 0, nil)
	if s.Last("/etc/aliases") != nil {
		t.Error("the copy of a file that is gone")
	}
}

// Op4: a damaged copy counts as none.
func TestOp4DamagedCopyIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Good("/etc/aliases", []byte("a: b\nc: d\n"), 0, nil)
	path := filepath.Join(dir, Dir, "router", name("/etc/aliases"))
	text := assert.Get(os.ReadFile(path))(t)
	for cut := range len(text) {
		assert.Must(t, os.WriteFile(path, text[:cut], 0o600))
		if k := s.Last("/etc/aliases"); k != nil {
			t.Fatalf("cut at %d: got %q", cut, k.Text)
		}
	}
}

// Op4: settings that no longer name a file leave nothing of it; a certificate near its end is
// a finding.
func TestOp4SettleForgetsAndCertificatesEnd(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Expires("/etc/mx.pem", time.Now().Add(5*24*time.Hour))
	s.Good("/etc/mx.pem", []byte("x"), 0, nil)
	s.Expires("/etc/later.pem", time.Now().Add(90*24*time.Hour))
	s.Good("/etc/later.pem", []byte("x"), 0, nil)
	if f := findings(t, dir); len(f) != 1 || f[0].Path != "/etc/mx.pem" || f[0].Until.IsZero() {
		t.Errorf("got %+v", f)
	}
	s = open(t, dir)
	s.Bad("/etc/later.pem", fs.ErrPermission, true)
	s.Settle()
	if f := findings(t, dir); len(f) != 1 || f[0].Path != "/etc/later.pem" {
		t.Errorf("got %+v", f)
	}
	if s.Last("/etc/later.pem") == nil || s.Last("/etc/mx.pem") != nil {
		t.Error("the wrong copy was removed")
	}
}

// Op4: of a program whose processes read only some files each, what is about files that settings
// name no more goes, and what is about the others stays.
func TestOp4NotesOfFilesThatAreNamedNoMoreGo(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Good("/etc/old.key", []byte("secret"), 0, nil)
	for _, file := range []string{"/etc/old.key", "/etc/other.key"} {
		s.Bad(file, fs.ErrPermission, true)
	}
	other := open(t, dir) // it has read neither
	other.Only([]string{"/etc/other.key", "/etc/dkim"})
	if f := findings(t, dir); len(f) != 1 || f[0].Path != "/etc/other.key" {
		t.Errorf("got %+v", f)
	}
	if other.Last("/etc/old.key") != nil {
		t.Error("the copy of the key that is named no more is there")
	}
	// It is named again, and bad as before.
	s.Only([]string{"/etc/other.key"})
	s.Bad("/etc/old.key", fs.ErrPermission, false)
	if f := findings(t, dir); len(f) != 2 {
		t.Errorf("got %+v", f)
	}
}

// Whoever has taken over a daemon puts links in the place of the directories: root, who opens the
// store before it is the daemons' user, makes, replaces and removes nothing behind them.
func TestRootFollowsNoLinksOfTheDaemonsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for name, link := range map[string]string{"the directory": Dir, "a program's": Dir + "/router", "a program's, its target too": Dir + "/."} {
		t.Run(name, func(t *testing.T) {
			dir, roots := t.TempDir(), t.TempDir()
			assert.Must(t, os.Mkdir(filepath.Join(roots, "router"), 0o755))
			for _, path := range []string{"passwd", "router/passwd"} {
				assert.Must(t, os.WriteFile(filepath.Join(roots, path), nil, 0o600))
			}
			switch link {
			case Dir:
				assert.Must(t, os.Symlink(roots, filepath.Join(dir, link)))
			case Dir + "/router":
				assert.Must(t, os.Mkdir(filepath.Join(dir, Dir), 0o700))
				assert.Must(t, os.Symlink(roots, filepath.Join(dir, link)))
			default:
				assert.Must(t, os.MkdirAll(filepath.Join(dir, "aside"), 0o700))
				assert.Must(t, os.Symlink("aside", filepath.Join(dir, Dir)))
				assert.Must(t, os.Symlink(roots, filepath.Join(dir, "aside", "router")))
			}
			if s, err := Open(dir, "router", slog.New(slog.DiscardHandler)); err == nil {
				s.Good("/etc/aliases", []byte("a: b\n"), 0, nil)
				s.Bad("/etc/routes", errors.New("bad"), false)
				s.Settle()
			}
			for _, sub := range []string{"", "router"} {
				list := assert.Get(os.ReadDir(filepath.Join(roots, sub)))(t)
				for _, e := range list {
					if e.Name() != "passwd" && e.Name() != "router" {
						t.Errorf("root made %s", filepath.Join(sub, e.Name()))
					}
				}
				if _, err := os.Stat(filepath.Join(roots, sub, "passwd")); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// What root writes before it is the daemons' user is that user's, who reads it at a reload.
func TestCopiesOfRootAreTheDaemonsUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	assert.Must(t, os.Chown(dir, 4711, 4712))
	s := assert.Get(Open(dir, "router", slog.New(slog.DiscardHandler)))(t)
	s.Good("/etc/aliases", []byte("a: b\n"), 0, nil)
	for _, path := range []string{Dir, Dir + "/router", Dir + "/router/" + name("/etc/aliases")} {
		info := assert.Get(os.Lstat(filepath.Join(dir, path)))(t)
		st := info.Sys().(*syscall.Stat_t)
		assert.Equal(t, st.Uid == 4711 && st.Gid == 4712, true, "%s belongs to %d:%d", path, st.Uid, st.Gid)
	}
}
