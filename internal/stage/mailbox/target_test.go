package mailbox

import (
	"os"
	"os/user"
	"strconv"
	"testing"

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
		"root's, daemons are root's":  {"", "0", "0"},
		"root's, daemons are nobody":  {"nobody", "0", nobody.Uid},
		"another's":                   {"nobody", "4711", "4711"},
		"root's, no such user":        {"no-such-user-here", "0", ""},
		"root's, daemons' user: root": {"root", "0", ""},
	} {
		m, err := New(Config{Template: "/var/mail/%u", LocalUsers: "passwd", Hostname: "h", FileUser: tt.daemons})
		if err != nil {
			t.Fatal(err)
		}
		r := &agent.Recipient{Recipient: &workspec.Recipient{Channel: "file", Host: "file.x", Address: "/x", Privilege: tt.privilege}}
		got, err := m.fileTarget(r)
		if (err == nil) != (tt.want != "") || err == nil && strconv.Itoa(got.as.uid) != tt.want {
			t.Errorf("%s: got %+v, %v, want uid %q", name, got.as, err, tt.want)
		}
	}
}
