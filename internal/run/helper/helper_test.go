package helper

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/helper/helpertest"
)

// A message comes with its files, which what we start does not get; one that is none leaves
// no file open.
func TestMessagesComeWithTheirFiles(t *testing.T) {
	ours, theirs := helpertest.Pair(t)
	r, w, err := os.Pipe()
	assert.Must(t, err)
	defer r.Close()
	for _, text := range []string{`{"n":7}`, `{"n":`} {
		if _, _, err := theirs.WriteMsgUnix([]byte(text), unix.UnixRights(int(w.Fd())), nil); err != nil {
			t.Fatal(err)
		}
	}
	assert.Must(t, errors.Join(w.Close(), theirs.Close()))
	var got struct{ N int }
	files, err := Receive(ours, 100, &got)
	if err != nil || got.N != 7 || len(files) != 1 {
		t.Fatalf("got %+v, %d files, %v", got, len(files), err)
	}
	if flags, err := unix.FcntlInt(files[0].Fd(), syscall.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %x, %v", flags, err)
	}
	files[0].Close()
	if files, err := Receive(ours, 100, &got); err == nil || len(files) != 0 {
		t.Errorf("a message that is none: %d files, %v", len(files), err)
	}
	// No process has the other end any more.
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the pipe: %v", err)
	}
	if _, err := Receive(ours, 100, &got); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}
