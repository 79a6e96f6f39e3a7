package mailbox

import (
	"errors"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/agent"
	"zmailer/internal/workspec"
)

// What wrote the specification, the daemons' user, must not have root write where it likes.
func TestFilesOfRootsTablesAreTheDaemonsUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root delivers as others")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("there is no user nobody")
	}
	for name, tt := range map[string]struct{ daemons, privilege, want string }{
		"root's, daemons are root's":   {"", "0", "0"},
		"root's, daemons are not root": {"nobody", "0", nobody.Uid},
		"another's":                    {"nobody", "4711", "4711"},
		"root's, no such user":         {"no-such-user-here", "0", ""},
		"root's, daemons' user: root":  {"root", "0", ""},
	} {
		m, err := New(Config{Template: "/var/mail/%u", LocalUsers: "passwd", Hostname: "h", FileUser: tt.daemons})
		assert.Must(t, err)
		r := &agent.Recipient{Recipient: &workspec.Recipient{Channel: "file", Host: "file.x", Address: "/x", Privilege: tt.privilege}}
		got, err := m.fileTarget(r)
		if (err == nil) != (tt.want != "") || err == nil && strconv.Itoa(got.as.uid) != tt.want {
			t.Errorf("%s: got %+v, %v, want uid %q", name, got.as, err, tt.want)
		}
	}
}

func TestTemplates(t *testing.T) {
	for s, want := range map[string]string{
		"/var/mail/%u":        "/var/mail/jim",
		"/var/mail/%u/":       "/var/mail/jim/",
		"/m/%d/%u/":           "/m/a.example/jim/",
		"%h/Maildir/":         "/home/jim/Maildir/",
		"/m%%/%u-%u":          "/m%/jim-jim",
		"":                    "", // refused from here on
		"mail/%u":             "",
		"/var/mail":           "",
		"/var/mail/%d":        "",
		"/var/mail/%x":        "",
		"/var/mail/%u%":       "",
		"./var/demo/mail/%u/": "",
	} {
		p, err := parseTemplate(s)
		var bad *TemplateError
		if want == "" {
			if !errors.As(err, &bad) {
				t.Errorf("%q: got %v, want a TemplateError", s, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: got %v", s, err)
			continue
		}
		if got, err := p.expand("jim", "/home/jim/", "a.example"); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", s, got, err, want)
		}
	}
}

// No address leads out of the directory that the template names.
func FuzzMailboxStaysInItsPlace(f *testing.F) {
	for _, s := range []string{"jim@a.example", "../x@a", "..@a", `"a/b"@c`, "a@..", "a@b/c", "a\x00b@c", `"\.."@x`, "@", "", ".", `"..\/x"@y`} {
		f.Add(s)
	}
	p, err := parseTemplate("/base/mail/%d/%u/")
	assert.Must(f, err)
	f.Fuzz(func(t *testing.T, address string) {
		login, domain := cutAddress(address)
		if !safeElement(login) || !safeElement(domain) {
			return
		}
		got, err := p.expand(login, "/home", domain)
		assert.Must(t, err)
		bare := strings.TrimSuffix(got, "/")
		if path.Clean(bare) != bare || !strings.HasPrefix(bare, "/base/mail/") || strings.Count(bare, "/") != 4 || strings.ContainsAny(bare, "\x00\n") {
			t.Errorf("%q: got %q", address, got)
		}
	})
}
