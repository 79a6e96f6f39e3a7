package postoffice

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
)

// A socket is made in place of one that a dead process has left, and at any depth of
// directories; nothing else is replaced.
func TestSocketTakesThePlaceOfADeadOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	assert.Must(t, os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, QuerySocket)
	if _, err := DialSocket(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
	dead := assert.Get(ListenSocket(path, 0o660))(t)
	assert.Must(t, dead.Close())
	if _, err := DialSocket(t.Context(), path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("with a dead one: %v", err)
	}
	l := assert.Get(ListenSocket(path, 0o640))(t)
	defer func() { _ = l.Close() }()
	conn := assert.Get(DialSocket(t.Context(), path))(t)
	_ = conn.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o640 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	file := filepath.Join(dir, "file")
	assert.Must(t, os.WriteFile(file, []byte("x"), 0o600))
	if _, err := ListenSocket(file, 0o660); err == nil {
		t.Error("a file was replaced")
	}
}
