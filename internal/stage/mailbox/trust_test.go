package mailbox

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// wantRefused has mail for jim, who is otherUID, wait, with a line that names the path.
func (p *post) wantRefused(path string) {
	p.Helper()
	r := mailTo("jim@a.example")
	r.Privilege = strconv.Itoa(otherUID)
	p.one(p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", r)), "\tdeferred 4.3.5 ")
	if log := p.log.String(); !strings.Contains(log, "msg=local-trouble") || !strings.Contains(log, "owner uid ") || !strings.Contains(log, path) {
		p.Errorf("log: got %q, want local-trouble with the owner and the path %s", log, path)
	}
}

// openMail returns a post with a mail directory that everybody writes to, as with mode 1777.
func openMail(t *testing.T, template string) *post {
	t.Helper()
	p := asRoot(t, template)
	p.must(os.Chmod(p.mail, 0o777|os.ModeSticky))
	return p
}

const attackerUID = otherUID + 1

// Sec6: a file, a link or a directory that another user has made in a mail directory with
// mode 1777 gets no mail, and no file elsewhere is written to: the mail waits.
func TestSec6PlantedMboxIsNotWritten(t *testing.T) {
	const before = "From somebody\n\nas it was\n\n"
	for what, plant := range map[string]func(p *post, box, victim string) error{
		"another's file": func(p *post, box, _ string) error {
			if err := os.WriteFile(box, []byte(before), 0o666); err != nil {
				return err
			}
			if err := os.Chmod(box, 0o666); err != nil {
				return err
			}
			return os.Chown(box, attackerUID, attackerUID)
		},
		"a hard link": func(_ *post, box, victim string) error { return os.Link(victim, box) },
	} {
		t.Run(what, func(t *testing.T) {
			p := openMail(t, "$MAIL/%u")
			box, victim := filepath.Join(p.mail, "jim"), filepath.Join(p.mail, "victim")
			p.must(os.WriteFile(victim, []byte(before), 0o600))
			p.must(os.Chown(victim, otherUID, otherUID))
			p.must(plant(p, box, victim))
			p.wantRefused(box)
			for _, file := range []string{box, victim} {
				assert.Equal(t, p.read(file), before, file)
			}
		})
	}
}

// plainName returns a template as the name of a test, of which its directories are named.
func plainName(template string) string {
	return strings.NewReplacer("$MAIL/", "", "%u", "user").Replace(template)
}

// Sec6: the same for directories on the way to a mailbox, and for a Maildir.
func TestSec6PlantedDirectoryGetsNoMail(t *testing.T) {
	for template, name := range map[string]string{"$MAIL/%u/": "jim", "$MAIL/%u/Maildir/": "jim", "$MAIL/%u/mbox": "jim"} {
		for what, plant := range map[string]func(p *post, path string) error{
			"directory": func(p *post, path string) error {
				for _, dir := range []string{path, path + "/tmp", path + "/new", path + "/cur", path + "/Maildir"} {
					if err := os.Mkdir(dir, 0o777); err != nil {
						return err
					}
					if err := os.Chmod(dir, 0o777); err != nil {
						return err
					}
					if err := os.Chown(dir, attackerUID, attackerUID); err != nil {
						return err
					}
				}
				return nil
			},
			"symbolic link": func(p *post, path string) error {
				elsewhere := filepath.Join(p.mail, "elsewhere")
				for _, dir := range []string{elsewhere, elsewhere + "/Maildir"} {
					if err := os.Mkdir(dir, 0o700); err != nil {
						return err
					}
					if err := os.Chown(dir, otherUID, otherUID); err != nil {
						return err
					}
				}
				if err := os.Symlink(elsewhere, path); err != nil {
					return err
				}
				return os.Lchown(path, attackerUID, attackerUID)
			},
		} {
			t.Run(plainName(template)+" "+what, func(t *testing.T) {
				p := openMail(t, template)
				path := filepath.Join(p.mail, name)
				p.must(plant(p, path))
				p.wantRefused(path)
				p.must(filepath.WalkDir(p.mail, func(path string, d os.DirEntry, err error) error {
					if err == nil && d.Type().IsRegular() {
						t.Errorf("%s was made", path)
					}
					return err
				}))
			})
		}
	}
}

// Sec6: a file that a table names is checked in the same way where everybody may make it.
func TestSec6PlantedArchiveIsNotWritten(t *testing.T) {
	p := openMail(t, "$MAIL/%u")
	box := filepath.Join(p.mail, "archive")
	p.must(os.WriteFile(box, nil, 0o666))
	p.must(os.Chmod(box, 0o666))
	p.must(os.Chown(box, attackerUID, attackerUID))
	r := fileTo(box)
	r.Privilege = strconv.Itoa(otherUID)
	p.one(p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", r)), "\tdeferred 4.3.5 ")
	assert.Equal(t, p.read(box), "")
}

// Sec6: what belongs to its recipient is delivered to as before in such a directory, also
// by links of root's, and what is not there is made.
func TestSec6OwnMailboxInAnOpenDirectoryGetsMail(t *testing.T) {
	for _, template := range []string{"$MAIL/%u", "$MAIL/%u/", "$MAIL/by-link/%u", "$MAIL/by-link/%u/"} {
		t.Run(plainName(template), func(t *testing.T) {
			p := openMail(t, template)
			p.must(os.Symlink(".", filepath.Join(p.mail, "by-link")))
			r := mailTo("jim@a.example")
			r.Privilege = strconv.Itoa(otherUID)
			for range 2 {
				p.deliver("s@example.org", "Subject: x\n\n", "b\n", r)
			}
			info, err := os.Stat(filepath.Join(p.mail, "jim"))
			p.must(err)
			p.wantOwner(filepath.Join(p.mail, "jim"), otherUID, info.Mode().Perm())
			if strings.HasSuffix(template, "/") {
				if got := p.names(filepath.Join(p.mail, "jim", "new")); len(got) != 2 {
					t.Errorf("got %q, want two messages", got)
				}
			} else if got := strings.Count(p.read(filepath.Join(p.mail, "jim")), "\nSubject: x\n"); got != 2 {
				t.Errorf("got %d messages, want 2", got)
			}
		})
	}
}

// Sec6: in a mail directory with mode 1777 a lock file of another user's keeps no mail
// out, whatever it is; one of the recipient's or of root's does.
func TestSec6ForeignLockFileIsIgnored(t *testing.T) {
	for what, tt := range map[string]struct {
		plant func(p *post, lock string) error
		waits bool
	}{
		"another's file": {func(_ *post, lock string) error { return lockOf(lock, attackerUID) }, false},
		"another's link": {func(_ *post, lock string) error {
			return errors.Join(os.Symlink("nothing", lock), os.Lchown(lock, attackerUID, attackerUID))
		}, false},
		"another's directory": {func(_ *post, lock string) error {
			return errors.Join(os.Mkdir(lock, 0o777), os.Chown(lock, attackerUID, attackerUID))
		}, false},
		"a link to root's file": {func(p *post, lock string) error {
			return errors.Join(lockOf(p.mail+"/elsewhere", 0), os.Link(p.mail+"/elsewhere", lock))
		}, false},
		"the recipient's file": {func(_ *post, lock string) error { return lockOf(lock, otherUID) }, true},
		"root's file":          {func(_ *post, lock string) error { return lockOf(lock, 0) }, true},
	} {
		t.Run(what, func(t *testing.T) {
			p := openMail(t, "$MAIL/%u")
			p.mailbox.c.LockWait = 50 * time.Millisecond
			p.must(tt.plant(p, filepath.Join(p.mail, "jim.lock")))
			r := mailTo("jim@a.example")
			r.Privilege = strconv.Itoa(otherUID)
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", r))
			want := "\tok3 "
			if tt.waits {
				want = "\tdeferred 4.2.0 "
			}
			p.one(got, want)
			if said := strings.Contains(p.log.String(), "msg=foreign-lock"); said == tt.waits {
				t.Errorf("log: %q", p.log.String())
			}
		})
	}
}

// lockOf makes a user's lock file.
func lockOf(path string, uid int) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644), os.Chtimes(path, testTime, testTime), os.Chown(path, uid, uid))
}
