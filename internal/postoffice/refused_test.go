package postoffice

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
)

// M2: a draft that was refused and cannot be removed loses its execute bit, so that no
// sweep takes it for accepted: its submitter offers the message again.
func TestRefusedDraftThatStaysIsNotAccepted(t *testing.T) {
	_, dir := newPostOffice(t, 0)
	below, err := durable.NewOS(dir)
	if err != nil {
		t.Fatal(err)
	}
	disk := faultfs.New(below)
	p, err := Open(Config{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Submissions.NewDraft("test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(d, "to a\n\n"); err != nil {
		t.Fatal(err)
	}
	disk.Fail(faultfs.Sync, "public/*", unix.EIO, 1)
	disk.Fail(faultfs.Remove, "public/*", unix.EIO, 1)
	if _, err := d.Commit(); !errors.Is(err, unix.EIO) {
		t.Fatalf("got %v, want EIO", err)
	}
	if names, err := below.ReadDir(Public); err != nil || len(names) != 1 {
		t.Fatalf("public/: got %v, %v, want the draft", names, err)
	}
	if done, err := p.Router.Recover(RouterRecovery{Complete: func([]byte) bool { return true }}); err != nil || len(done) > 0 {
		t.Errorf("recovery: got %+v, %v, want it left alone", done, err)
	}
}
