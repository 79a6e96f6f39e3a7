package postoffice

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// M2: a draft that was refused and cannot be removed loses its execute bit, so that no
// sweep takes it for accepted: its submitter offers the message again.
func TestRefusedDraftThatStaysIsNotAccepted(t *testing.T) {
	_, dir := newPostOffice(t, 0)
	below := assert.Get(durable.NewOS(dir))(t)
	disk := faultfs.New(below)
	p := assert.Get(Open(Config{FS: disk}))(t)
	d := assert.Get(p.Submissions.NewDraft("test"))(t)
	assert.Get(io.WriteString(d, "to a\n\n"))(t)
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
