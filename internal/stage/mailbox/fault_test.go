package mailbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
)

// The trap "a local fault answered with 5xx": it is never permanent.
func TestFaultsHaveTheirStatus(t *testing.T) { // K14
	wrap := func(e error) error {
		return fmt.Errorf("deliver: %w", &fs.PathError{Op: "write", Path: "/var/mail/jim", Err: e})
	}
	for name, c := range map[string]struct {
		err  error
		code string
	}{
		"over quota":          {wrap(unix.EDQUOT), "4.2.2"},
		"disk full":           {wrap(unix.ENOSPC), "4.3.1"},
		"not permitted":       {wrap(unix.EACCES), "4.3.5"},
		"missing directory":   {wrap(unix.ENOENT), "4.3.5"},
		"read-only":           {wrap(unix.EROFS), "4.3.5"},
		"symbolic link":       {wrap(unix.ELOOP), "4.3.5"},
		"broken disk":         {wrap(unix.EIO), "4.3.0"},
		"no descriptors left": {wrap(unix.EMFILE), "4.3.0"},
		"anything else":       {errors.New("what"), "4.3.0"},
		"one that knows":      {fmt.Errorf("x: %w", &fault{code: status.BadMailbox, text: "no"}), "5.1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			code, text := classify(c.err)
			if code.String() != c.code {
				t.Errorf("got %s, want %s", code, c.code)
			}
			if strings.Contains(text, "/var/mail") {
				t.Errorf("got %q: the sender may read it, and sees a path", text)
			}
		})
	}
}

func TestTroubleWithTheStoreDefersAndWhatIsWrongWithTheNameFails(t *testing.T) {
	mkdir := func(p *post, name string) { p.must(os.Mkdir(filepath.Join(p.mail, name), 0o700)) }
	file := func(p *post, name string) { p.must(os.WriteFile(filepath.Join(p.mail, name), nil, 0o600)) }
	for name, c := range map[string]struct {
		template string
		address  string
		prepare  func(p *post)
		status   string
		word     string
	}{
		"mbox is a directory":           {"$MAIL/%u", "jim@a.example", func(p *post) { mkdir(p, "jim") }, "4.3.5", "deferred"},
		"mbox is a symbolic link":       {"$MAIL/%u", "jim@a.example", func(p *post) { p.must(os.Symlink("x", filepath.Join(p.mail, "jim"))) }, "4.3.5", "deferred"},
		"mbox is a fifo":                {"$MAIL/%u", "jim@a.example", func(p *post) { p.must(unix.Mkfifo(filepath.Join(p.mail, "jim"), 0o600)) }, "4.3.5", "deferred"},
		"Maildir is a file":             {"$MAIL/%u/", "jim@a.example", func(p *post) { file(p, "jim") }, "4.3.5", "deferred"},
		"a file on the way":             {"$MAIL/%d/%u/", "jim@a.example", func(p *post) { file(p, "a.example") }, "4.3.5", "deferred"},
		"home of a user unknown to all": {"%h/Maildir/", "jim@a.example", func(*post) {}, "4.3.5", "deferred"},
		"template wants a domain":       {"$MAIL/%d/%u", "jim", func(*post) {}, "4.3.5", "deferred"},
		"list of users is gone":         {"$MAIL/%u", "jim@a.example", func(p *post) { p.must(os.Remove(p.mailbox.users.list)) }, "4.3.0", "deferred"},
		"unknown user":                  {"$MAIL/%u", "jack@a.example", func(*post) {}, "5.1.1", "error2"},
		"comment in the list":           {"$MAIL/%u", "#@a.example", func(*post) {}, "5.1.1", "error2"},
		"user with a slash":             {"$MAIL/%u", "../jim@a.example", func(*post) {}, "5.1.3", "error2"},
		"user is the directory above":   {"$MAIL/%u/", "..@a.example", func(*post) {}, "5.1.3", "error2"},
		"user is the directory":         {"$MAIL/%u/", ".@a.example", func(*post) {}, "5.1.3", "error2"},
		"quoted user with a slash":      {"$MAIL/%u", `"a/../jim"@a.example`, func(*post) {}, "5.1.3", "error2"},
		"empty user":                    {"$MAIL/%u", "@a.example", func(*post) {}, "5.1.3", "error2"},
		"domain is the directory above": {"$MAIL/%d/%u", "jim@..", func(*post) {}, "5.1.3", "error2"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPost(t, c.template)
			c.prepare(p)
			before := tree(t, p.mail)
			r := mailTo(c.address)
			id := p.queue("s@example.org", "Subject: x\n\n", "b\n", r)
			p.one(p.do(id), "\t"+c.word+" "+c.status+" ")
			assert.Equal(t, tree(t, p.mail), before, "files")
			if c.word != "deferred" {
				d := p.Spec(id).Diagnostics
				if len(d) != 1 || d[0].Notary.Status != c.status || !strings.HasPrefix(d[0].Notary.Diagnostic, "x-local; ") {
					t.Errorf("got diagnostics %+v", d)
				}
			} else if !strings.Contains(p.log.String(), "msg=local-trouble") {
				t.Errorf("got log %q, want the trouble in it", p.log)
			}
		})
	}
}

// tree is every name below a directory.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		names = append(names, name+" "+d.Type().String())
		return err
	})
	assert.Must(t, err)
	return strings.Join(names, "\n")
}

func TestPathThatIsNotPlainIsRefused(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	for _, path := range []string{p.mail + "/../x", p.mail + "//x", "x", "/", "", p.mail + "/./x"} {
		if path == "" {
			continue // no r line can say it
		}
		p.one(p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n", fileTo(path))), "\terror2 5.1.3 ")
	}
	// A user of the channel local is never a file, whatever its name.
	got := p.do(p.queue("s@example.org", "Subject: x\n\n", "b\n",
		workspec.Recipient{Channel: "local", Host: "/etc/x@a.example", Address: "/etc/x@a.example", Privilege: "0"}))
	p.one(got, "\terror2 5.1.3 ")
}

func TestUserIsFoundInLowerCaseAndQuoted(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	for _, address := range []string{"JIM@a.example", `"jim"@a.example`, `"j\im"@a.example`, "jim"} {
		p.deliver("s@example.org", "Subject: x\n\n", "b\n", mailTo(address))
	}
	assert.Equal(t, strings.Count(p.read(filepath.Join(p.mail, "jim")), "\nReceived: "), 4, "messages")
}

func TestUserIsFoundWithATag(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	for _, address := range []string{"jim+a@a.example", `"jim+a b"@a.example`, "JIM+@a.example"} {
		to := mailTo(address)
		to.Host = "jim@a.example"
		p.deliver("s@example.org", "Subject: x\n\n", "b\n", to)
	}
	assert.Equal(t, strings.Count(p.read(filepath.Join(p.mail, "jim")), "\nReceived: "), 3, "messages")
}

// A look-up holds for a minute, and no longer; an unknown user is looked for again.
func TestUsersAreRememberedForAMinute(t *testing.T) {
	now := testTime
	list := filepath.Join(t.TempDir(), "users")
	write := func(s string) {
		assert.Must(t, os.WriteFile(list, []byte(s), 0o600))
	}
	u := newUsers(list, func() time.Time { return now })
	known := func(login string) bool {
		_, err := u.find(login)
		return err == nil
	}
	write("jim\n")
	got := []bool{known("jim"), known("joe")}
	write("joe\n")
	got = append(got, known("jim"), known("joe"))
	now = now.Add(rememberFor)
	got = append(got, known("jim"), known("joe"))
	if want := []bool{true, false, true, true, false, true}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestHomeDirectoryIsNeverMade(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	home := filepath.Join(p.mail, "home", "jim")
	err := p.mailbox.makeStore(filepath.Join(home, "Maildir"), target{home: home})
	code, _ := classify(err)
	if code != configTrouble {
		t.Errorf("got %v, want 4.3.5", err)
	}
	if _, err := os.Stat(filepath.Dir(home)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory above was made: %v", err)
	}
	p.must(os.MkdirAll(home, 0o700))
	p.must(p.mailbox.makeStore(filepath.Join(home, "mail", "Maildir"), target{home: home}))
}
