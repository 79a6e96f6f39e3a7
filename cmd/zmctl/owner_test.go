package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/test/office"
)

// K10: an administrator's commands in a user's postoffice leave nothing there that
// belongs to root: that user's daemons could not open the ledger or a specification.
func TestRootLeavesNothingOfItsOwnInAUsersPostoffice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root works in another user's postoffice")
	}
	const uid = 65534
	o := office.New(t)
	queued, _, _ := o.Enqueue(t, "a@a.example.com")
	o.Submit(t, office.PlainMail)
	o = o.Copy(t, 0)
	for _, dir := range []string{postoffice.Quarantine, postoffice.Removed, postoffice.Ledger} {
		assert.Must(t, os.RemoveAll(filepath.Join(o.Dir, dir)))
	}
	each := func(fn func(path string) error) {
		t.Helper()
		err := filepath.WalkDir(o.Dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				err = fn(path)
			}
			return err
		})
		assert.Must(t, err)
	}
	each(func(path string) error { return os.Chown(path, uid, uid) })
	exits(t, 0, "check", "--repair")
	var list []*view.Message
	_, err := view.New(o.PostOffice, queued.ID.Time()).Each(t.Context(), selector.Selector{}, func(m *view.Message) error {
		list = append(list, m)
		return nil
	})
	if err != nil || len(list) != 2 {
		t.Fatalf("%d messages, %v", len(list), err)
	}
	for _, m := range list {
		exits(t, 0, "remove", m.ID)
	}
	each(func(path string) error {
		info, err := os.Lstat(path)
		if err == nil && info.Sys().(*syscall.Stat_t).Uid != uid {
			t.Errorf("%s belongs to uid %d", path, info.Sys().(*syscall.Stat_t).Uid)
		}
		return err
	})
}

// A user who may not read a specification gets that as the error, and not that the scheduler
// cannot read it either.
func TestUnreadableSpecificationErrorNamesItsOwner(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	o := office.New(t)
	a, name, _ := o.Enqueue(t, "a@a.example.com")
	assert.Must(t, os.Chmod(o.Path("transport/"+name), 0))
	out, _, _ := invoke(t, "show", a.ID.String())
	wantIn(t, out, "(not known)", "Only root and the owner of the file may read its work specification")
	if out, _, _ = invoke(t, "check", "--problems"); strings.Contains(out, "The scheduler leaves it alone") {
		t.Errorf("got %s", out)
	}
}
