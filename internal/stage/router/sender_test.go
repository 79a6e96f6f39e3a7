package router

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// asUser gives a message file to another user, as if that one had submitted it.
func (o *office) asUser(a postoffice.Accepted, uid int) {
	o.t.Helper()
	assert.Must(o.t, os.Chown(filepath.Join(o.dir, a.Name), uid, -1))
}

// somebody is a uid with a login that is neither root nor ours.
func somebody(t *testing.T) (int, string) {
	t.Helper()
	for _, login := range []string{"daemon", "bin", "mail", "nobody"} {
		u, err := user.Lookup(login)
		if err != nil {
			continue
		}
		if uid, err := strconv.Atoi(u.Uid); err == nil && uid != 0 {
			return uid, login
		}
	}
	t.Skip("the system has none of the usual users")
	return 0, ""
}

// Loc5: SENDERCHECK chooses between the two.
func TestLoc5SenderCheckIsASetting(t *testing.T) {
	for text, want := range map[string]bool{"": false, "SENDERCHECK=any\n": false, "SENDERCHECK=owner\n": true} {
		path := filepath.Join(t.TempDir(), "zmailer.conf")
		assert.Must(t, os.WriteFile(path, []byte("HOSTNAME=mx.example.org\n"+text), 0o600))
		c, err := config.Load(path)
		assert.Must(t, err)
		if got, err := ConfigFrom(c); err != nil || got.OwnSenders != want {
			t.Errorf("%q: %v, %v", text, got.OwnSenders, err)
		}
	}
}

func TestTrustedUsersAreNamedByLoginOrNumber(t *testing.T) {
	dir := t.TempDir()
	load := func(text string) (Config, error) {
		path := filepath.Join(dir, "zmailer.conf")
		assert.Must(t, os.WriteFile(path, []byte("HOSTNAME=mx.example.org\n"+text), 0o600))
		c, err := config.Load(path)
		assert.Must(t, err)
		return ConfigFrom(c)
	}
	c, err := load("TRUSTED=\"root 1234\"\nROUTERWORKERS=3\nROUTERPOLL=1m\nHASHLEVELS=1\nSYNC=strict\n")
	if err != nil || fmt.Sprint(c.Trusted) != "[0 1234]" || c.Workers != 3 || c.Poll.Seconds() != 60 || c.HashLevels != 1 || !c.Strict || c.Rules.Dir != dir {
		t.Errorf("got %+v, %v", c, err)
	}
	_, err = load("TRUSTED=no-such-login\n")
	if config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), "zmailer.conf:2") || !strings.Contains(err.Error(), "no-such-login") {
		t.Errorf("got %v, want an error with line and login", err)
	}
}

func TestUnusablePostofficeOrTableEndsTheProgramWith78(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	c := o.config()
	c.Once = true
	c.PostOffice = t.TempDir()
	if err := Run(t.Context(), c); config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), "zmctl init") {
		t.Errorf("no postoffice: got %v", err)
	}
	c.PostOffice = o.dir
	o.table("routes", "a.example smtp!\nb.example nothing\n")
	if err := Run(t.Context(), c); config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), "routes:2: ") {
		t.Errorf("bad table: got %v", err)
	}
}
