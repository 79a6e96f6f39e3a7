package filesystem

import (
	"context"
	"errors"
	"flag"
	"os"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/fusefs"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// on is a directory on a mounted GlusterFS, NFS or CephFS.
var on = flag.String("on", "", "have the postoffice in a `directory`, on any file system, in place of one that the test serves")

// C7: on a file system without RENAME_NOREPLACE messages of every kind arrive once, also when
// all programs are killed in the middle; nothing is left, and nothing goes to quarantine/.
func TestC7MailArrivesOnceWhereNamesAreLinked(t *testing.T) {
	s := &suite.Suite{Bin: bin, Dir: t.TempDir(), Settings: map[string]string{"ROUTERPOLL": "1s", "SCHEDULERPOLL": "1s"}}
	l := assert.Get(load.Prepare(s))(t)
	t.Cleanup(l.Close)
	if *on == "" {
		if why := fusefs.Supported(); why != "" {
			t.Skip(why)
		}
		assert.Must(t, s.Init())
		mount(t, s, fusefs.Faults{NoRenameFlags: true})
	} else {
		there := assert.Get(os.MkdirTemp(*on, "postoffice"))(t)
		assert.Must(t, errors.Join(os.Chmod(there, 0o755), os.Mkdir(s.PostOffice(), 0o755), syscall.Mount(there, s.PostOffice(), "", syscall.MS_BIND, "")))
		t.Cleanup(func() { _ = syscall.Unmount(s.PostOffice(), syscall.MNT_DETACH) })
		assert.Must(t, s.Init())
	}
	assert.Must(t, s.Start())
	t.Cleanup(s.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for round := range 3 {
		assert.Must(t, l.Round(ctx, round))
		if round < 2 {
			s.Kill()
			assert.Must(t, s.Start())
		}
	}
	if _, err := l.Drain(ctx); err != nil {
		t.Fatalf("%v\n%s", err, s.Log())
	}
	audit := assert.Get(l.Audit())(t)
	t.Log(audit)
	if audit.Bad() || audit.Accepted == 0 {
		t.Error(s.Log())
	}
	assert.Equal(t, s.Count("disbelieved"), 0, "quarantined")
	assert.Must(t, s.Stop())
}
