package postoffice

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A socket is made in place of one that a dead process has left, and at any depth of
// directories; nothing else is replaced.
func TestSocketTakesThePlaceOfADeadOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, QuerySocket)
	if _, err := DialSocket(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
	dead, err := ListenSocket(path, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := DialSocket(t.Context(), path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("with a dead one: %v", err)
	}
	l, err := ListenSocket(path, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	conn, err := DialSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o640 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenSocket(file, 0o660); err == nil {
		t.Error("a file was replaced")
	}
}
