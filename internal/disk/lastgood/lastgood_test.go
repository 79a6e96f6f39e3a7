package lastgood

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
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
