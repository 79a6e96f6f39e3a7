package mailbox

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"

	"golang.org/x/sys/unix"
)

// otherUID is a user's number that no account has.
const otherUID = 54321

// asRoot makes a post whose mail directory other users can reach.
func asRoot(t *testing.T, template string) *post {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may become another user")
	}
	p := newPost(t, template)
	for dir := p.mail; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		p.must(err)
		if info.Mode().Perm()&0o011 != 0o011 {
			p.must(os.Chmod(dir, info.Mode().Perm()|0o055))
		}
	}
	return p
}

func (p *post) wantOwner(name string, uid int, mode fs.FileMode) {
	p.Helper()
	info, err := os.Lstat(name)
	p.must(err)
	if got := info.Sys().(*syscall.Stat_t).Uid; int(got) != uid || info.Mode().Perm() != mode {
		p.Errorf("%s: got uid %d, mode %o, want %d, %o", name, got, info.Mode().Perm(), uid, mode)
	}
}

// Root's agent makes stores in a directory of root's, as /var/mail, for the user and
// as the user's.
func TestStoreInTheSpoolBelongsToTheUser(t *testing.T) {
	r := mailTo("jim@a.example")
	r.Privilege = strconv.Itoa(otherUID)
	t.Run("Maildir", func(t *testing.T) {
		p := asRoot(t, "$MAIL/%d/%u/")
		for range 2 {
			p.deliver("s@example.org", "Subject: x\n\n", "b\n", r)
		}
		dir := filepath.Join(p.mail, "a.example", "jim")
		p.wantOwner(filepath.Dir(dir), 0, 0o755) // other users' are in it too
		for _, sub := range []string{"", "/tmp", "/new", "/cur"} {
			p.wantOwner(dir+sub, otherUID, 0o700)
		}
		for _, name := range p.names(dir + "/new") {
			p.wantOwner(dir+"/new/"+name, otherUID, 0o600)
		}
	})
	t.Run("mbox", func(t *testing.T) {
		p := asRoot(t, "$MAIL/%u")
		for range 2 {
			p.deliver("s@example.org", "Subject: x\n\n", "b\n", r)
		}
		p.wantOwner(filepath.Join(p.mail, "jim"), otherUID, 0o600)
		if got := p.names(p.mail); len(got) != 1 {
			t.Errorf("files: got %q, want the dot lock gone", got)
		}
	})
}

// A known login is delivered to as its own user, whatever the r line says.
func TestLoginIsDeliveredToAsItsUser(t *testing.T) {
	p := asRoot(t, "$MAIL/%u")
	account, err := user.LookupId(strconv.Itoa(nobody))
	if err != nil {
		t.Skip("no account with uid 65534")
	}
	p.must(os.WriteFile(p.mailbox.users.list, []byte(account.Username+"\n"), 0o644))
	r := mailTo(account.Username + "@a.example")
	r.Privilege = "0"
	p.deliver("s@example.org", "Subject: x\n\n", "b\n", r)
	p.wantOwner(filepath.Join(p.mail, account.Username), nobody, 0o600)
}

// A file is written with the rights of its privilege, no others: root's directory is
// closed to it, and root makes nothing there for it.
func TestFileIsWrittenWithTheRightsOfItsPrivilege(t *testing.T) { // M48
	p := asRoot(t, "$MAIL/%u")
	to := func(name string, uid string) []string {
		r := fileTo(filepath.Join(p.mail, name))
		r.Privilege = uid
		return p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", r))
	}
	for _, uid := range []string{strconv.Itoa(otherUID), "none", "-1"} {
		p.one(to("archive", uid), "\tdeferred 4.3.5 ")
	}
	if got := p.names(p.mail); len(got) != 0 {
		t.Errorf("files: got %q, want none", got)
	}
	p.must(os.Mkdir(filepath.Join(p.mail, "open"), 0o700))
	p.must(os.Chown(filepath.Join(p.mail, "open"), otherUID, -1))
	p.one(to("open/archive", strconv.Itoa(otherUID)), "\tok3 ")
	p.wantOwner(filepath.Join(p.mail, "open/archive"), otherUID, 0o600)
	// A link that the user puts there leads to what the user may write.
	p.must(os.WriteFile(filepath.Join(p.mail, "secret"), []byte("root's\n"), 0o600))
	p.must(os.Symlink(p.mail, filepath.Join(p.mail, "open", "up")))
	p.one(to("open/up/secret", strconv.Itoa(otherUID)), "\tdeferred 4.3.5 ")
	assert.Equal(t, p.read(filepath.Join(p.mail, "secret")), "root's\n")
}

func TestRootMakesNothingWhereEverybodyWrites(t *testing.T) {
	p := asRoot(t, "$MAIL/%u/")
	p.must(os.Chmod(p.mail, 0o757))
	fd, err := openAbove(filepath.Join(p.mail, "x"), 0)
	p.must(err)
	defer unix.Close(fd)
	if p.mailbox.mayMakeIn(fd) {
		t.Error("got true for a directory that everybody writes to")
	}
	p.must(os.Chmod(p.mail, 0o755))
	if !p.mailbox.mayMakeIn(fd) {
		t.Error("got false for root's own directory")
	}
}

// The thread is root's again after each piece of work, other threads are never
// anything else, and what fails within comes out.
func TestIdentityIsOfOneThreadAndGivenBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may become another user")
	}
	c, err := ownCredentials()
	assert.Must(t, err)
	uid := func() int {
		n, _ := unix.SetfsuidRetUid(-1)
		return n
	}
	failure := errors.New("within")
	var working sync.WaitGroup
	for i := range 20 {
		working.Go(func() {
			for range 50 {
				id := identity{uid: otherUID + i, gid: otherUID}
				err := c.as(id, func() error {
					assert.Equal(t, uid(), id.uid, "uid")
					runtime.Gosched()
					err := c.asRoot(id, func() error {
						assert.Equal(t, uid(), 0, "as root: uid")
						return failure
					})
					assert.Equal(t, uid(), id.uid, "after asRoot: uid")
					return err
				})
				assert.Equal(t, err, failure)
				runtime.LockOSThread()
				assert.Equal(t, uid(), 0, "after: uid")
				if groups, err := unix.Getgroups(); err != nil || len(groups) != len(c.groups) {
					t.Errorf("after: got groups %v, %v, want %v", groups, err, c.groups)
				}
				runtime.UnlockOSThread()
			}
		})
	}
	working.Wait()
	func() {
		defer func() { recover() }()
		_ = c.as(identity{otherUID, otherUID}, func() error { panic("within") })
	}()
	assert.Equal(t, uid(), 0, "after a panic: uid")
}

func TestInvalidPrivilegeMeansUserNobody(t *testing.T) {
	for s, want := range map[string]int{"0": 0, "1000": 1000, "": nobody, "-1": nobody, "root": nobody, "99999999999": nobody} {
		assert.Equal(t, privilege(s), want, s)
	}
}
