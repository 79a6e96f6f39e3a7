package closed

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

func TestPolicyKeepsSecretsOfUsersClosed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	const person, part = 4711, 105
	for name, tt := range map[string]struct {
		path  string // below a directory of the file's owner
		link  string // leads to it, below the same directory; ""
		owner int
		dir   os.FileMode // of the link's directory, or the file's; 0: 0700
		foe   bool        // that directory is another user's
		open  bool
	}{
		"a user's .forward":                {path: ".forward", owner: person, open: true},
		"one that begins so":               {path: ".forward-friends", owner: person, open: true},
		"a user's list":                    {path: "lists/friends", owner: person, open: true},
		"a system user's .forward":         {path: ".forward", owner: part, open: true},
		"a system user's key":              {path: "munge.key", owner: part},
		"a key of ssh":                     {path: ".ssh/id_ed25519", owner: person},
		"a hidden file":                    {path: ".netrc", owner: person},
		"a link to a hidden file":          {path: ".netrc", link: "netrc", owner: person},
		"a .forward that is a link":        {path: ".dotfiles/forward", link: ".forward", owner: person, open: true},
		"a .forward that another has made": {path: ".ssh/id_ed25519", link: "x/.forward", owner: person, foe: true},
		"a .forward that all could make":   {path: ".ssh/id_ed25519", link: "x/.forward", owner: person, dir: 0o777},
		"root's .forward":                  {path: ".forward", owner: 0},
		"a passing user's":                 {path: "data", owner: 61200},
		"nobody's":                         {path: "data", owner: nobody},
		"a big number":                     {path: "lists/friends", owner: 1234500000, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			file := filepath.Join(home, tt.path)
			asked, dir := file, home
			err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600), os.Chown(file, tt.owner, -1))
			if tt.link != "" {
				asked = filepath.Join(home, tt.link)
				dir = filepath.Dir(asked)
				err = errors.Join(err, os.MkdirAll(dir, 0o700), os.Symlink(file, asked))
			}
			owner, mode := tt.owner, os.FileMode(0o700)
			if tt.foe {
				owner = 4712
			}
			if tt.dir != 0 {
				mode = tt.dir
			}
			err = errors.Join(err, os.Chown(dir, owner, -1), os.Chmod(dir, mode))
			assert.Must(t, err)
			fd, err := Policy{Lowest: 1000, Forward: "~/.forward"}.open(asked)
			if err == nil {
				unix.Close(fd)
			}
			if (err == nil) != tt.open || err != nil && !errors.Is(err, fs.ErrPermission) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestNamesOfForwards(t *testing.T) {
	for name, tt := range map[string]struct {
		template, path string
		want           bool
	}{
		"usual":               {"~/.forward", "/home/x/.forward", true},
		"another":             {"~/.forward", "/home/x/.profile", false},
		"in a directory":      {"~/mail/.fwd-%u", "/home/x/mail/.fwd-x", true},
		"path from the root":  {"/var/forward/%u", "/var/forward/x", true},
		"another's directory": {"/var/forward/%u", "/var/forward/x/y", false},
		"elsewhere":           {"/var/forward/.%u", "/home/x/.netrc", false},
		"off":                 {"off", "/home/x/.forward", false},
		"none":                {"", "/home/x/.forward", false},
		"a star is a star":    {"/var/*/%u", "/var/forward/x", false},
	} {
		assert.Equal(t, (Policy{Forward: tt.template}).named(tt.path), tt.want, name)
	}
}

func TestLowestUserIsReadFromLoginDefs(t *testing.T) {
	for text, want := range map[string]uint32{
		"":                                    1000,
		"#UID_MIN 5\nSYS_UID_MIN 100\n":       1000,
		"UID_MAX 60000\nUID_MIN\t\t\t  500\n": 500,
		"UID_MIN x\n":                         1000,
		"UID_MIN 0\n":                         1000,
	} {
		file := filepath.Join(t.TempDir(), "login.defs")
		assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
		assert.Equal(t, LowestUser(file), want, text)
	}
	assert.Equal(t, LowestUser("/nonexistent"), 1000, "without the file")
}
