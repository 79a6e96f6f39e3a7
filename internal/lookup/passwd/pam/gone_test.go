package pam

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
)

// Who has gone is not told of as a PAM that does not answer.
func TestGoneAskerIsNoSlowPAM(t *testing.T) {
	dir := t.TempDir()
	began := filepath.Join(dir, "began")
	assert.Must(t, errors.Join(syscall.Mkfifo(began, 0o600), os.WriteFile(filepath.Join(dir, "lookup"), []byte("#!/bin/sh\necho >'"+began+"'\nexec sleep 60\n"), 0o755)))
	c, err := New("login", dir)
	assert.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	verified := make(chan error, 1)
	go func() {
		_, err := c.Verify(ctx, "joe", "x", "")
		verified <- err
	}()
	assert.Get(os.ReadFile(began))(t)
	cancel()
	if err := <-verified; !errors.Is(err, context.Canceled) || errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
}
