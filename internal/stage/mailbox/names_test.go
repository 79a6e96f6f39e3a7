package mailbox

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"

	"golang.org/x/sys/unix"
)

// recorded are the machine's directories; it notes which names were made durable.
type recorded struct {
	directories
	synced []string
	err    error
}

func (r *recorded) sync(name string, t target, asRoot bool) error {
	r.synced = append(r.synced, name)
	return errors.Join(r.err, r.directories.sync(name, t, asRoot))
}

// count returns how often a name was made durable.
func (r *recorded) count(name string) int {
	n := 0
	for _, s := range r.synced {
		if s == name {
			n++
		}
	}
	return n
}

// Dur3: an mbox that a killed attempt has made and not synced is synced by the next one,
// whatever it holds, once in each process; and again when it is another file.
func TestDur3MboxOfAKilledAttemptIsSynced(t *testing.T) {
	const before = "From x Sat Nov 21 00:12:50 2026\nSubject: other\n\nx\n\n"
	for name, content := range map[string]string{"empty": "", "with another message": before} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, "$MAIL/sub/%u")
			r := &recorded{directories: p.mailbox.dirs}
			p.mailbox.dirs = r
			box := filepath.Join(p.mail, "sub", "jim")
			p.must(os.Mkdir(filepath.Dir(box), 0o700))
			p.must(os.WriteFile(box, []byte(content), 0o600))
			for i, want := range []int{1, 1, 2} {
				p.deliver("s@example.org", "Subject: x\n\n", "b\n", mailTo("jim@example.org"))
				assert.Equal(t, r.count(box), want, "times the mbox was synced")
				if r.count(filepath.Dir(box)) != 1 {
					t.Errorf("synced %q, want the directory above as well, once", r.synced)
				}
				if i == 1 {
					p.must(os.Rename(box, box+".read"))
				}
			}
		})
	}
}

// Dur3: a store whose name cannot be made durable is no delivery.
func TestDur3NameThatCannotBeSyncedDefers(t *testing.T) {
	for _, template := range []string{"$MAIL/%u", "$MAIL/%u/"} {
		p := newPost(t, template)
		p.mailbox.dirs = &recorded{directories: p.mailbox.dirs, err: unix.EIO}
		p.one(p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", mailTo("jim@example.org"))), "\tdeferred ")
	}
}

// Dur3: all names of a new Maildir are synced, up to the home directory and not above it.
func TestDur3NewMaildirIsSyncedUpToTheHome(t *testing.T) {
	p := newPost(t, "$MAIL/%u/")
	r := &recorded{directories: p.mailbox.dirs}
	p.mailbox.dirs = r
	box := filepath.Join(p.mail, "jim", "a", "b")
	home := filepath.Join(p.mail, "jim")
	p.must(os.MkdirAll(box, 0o700))
	p.must(os.Mkdir(filepath.Join(box, "new"), 0o700))
	p.must(p.mailbox.syncStore(box, target{path: box + "/", home: home + "/"}))
	assert.Same(t, r.synced, []string{box + "/new", box, filepath.Dir(box)})
}

// Dur3: the store that a killed agent of root's has left as root's goes to its user, and
// nothing else of root's does.
func TestDur3StoreLeftAsRootsGoesToItsUser(t *testing.T) {
	r := mailTo("jim@a.example")
	r.Privilege = strconv.Itoa(otherUID)
	for name, c := range map[string]struct {
		template string
		leave    func(p *post, box string) error
		given    bool
	}{
		"mbox": {"$MAIL/%u", func(_ *post, box string) error { return os.WriteFile(box, nil, 0o600) }, true},
		"mbox with content": {"$MAIL/%u", func(_ *post, box string) error {
			return os.WriteFile(box, []byte("x"), 0o600)
		}, false},
		"mbox with two names": {"$MAIL/%u", func(p *post, box string) error {
			return errors.Join(os.WriteFile(box, nil, 0o600), os.Link(box, filepath.Join(p.Dir, "other")))
		}, false},
		"mbox of another mode": {"$MAIL/%u", func(_ *post, box string) error {
			return errors.Join(os.WriteFile(box, nil, 0o600), os.Chmod(box, 0o640))
		}, false},
		"mbox where others make names": {"$MAIL/%u", func(p *post, box string) error {
			return errors.Join(os.WriteFile(box, nil, 0o600), os.Chmod(p.mail, 0o777))
		}, false},
		"Maildir": {"$MAIL/%u/", func(_ *post, box string) error { return os.Mkdir(box, 0o700) }, true},
		"Maildir with something in it": {"$MAIL/%u/", func(_ *post, box string) error {
			return errors.Join(os.Mkdir(box, 0o700), os.WriteFile(filepath.Join(box, "x"), nil, 0o600))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := asRoot(t, c.template)
			box := filepath.Join(p.mail, "jim")
			p.must(c.leave(p, box))
			before, err := os.Lstat(box)
			p.must(err)
			got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", r))
			if delivered := len(got) == 1 && strings.HasPrefix(got[0], "\tok3 "); delivered != c.given {
				t.Errorf("got %q, delivered is to be %v", got, c.given)
			}
			if c.given {
				p.wantOwner(box, otherUID, before.Mode().Perm())
			} else {
				p.wantOwner(box, 0, before.Mode().Perm())
			}
		})
	}
}
