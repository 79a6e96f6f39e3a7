package router

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// M13: a frozen message has its cause in the name and the reason beside it; what an operator
// has thawed a policy leaves alone.
func TestFrozenMessageIsExplained(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	a := o.submit(plain("bond@example.org"))
	c := assert.Get(o.po.Router.Claim(o.r.owner, filepath.Base(a.Name)))(t)
	assert.Must(t, o.r.freeze(c, "Flood of mail!", "300 messages of bond in a minute"))
	ino := strconv.FormatUint(a.ID.Ino, 10)
	if got := o.names("freezer"); len(got) != 1 || got[0] != ino+".flood-of-mail-" {
		t.Errorf("freezer/ holds %q", got)
	}
	o.logged(1, "msg=frozen", "id="+a.ID.String(), "name=freezer/"+ino+".flood-of-mail-", "300 messages", "zmctl freezer thaw")
	assert.Contains(t, o.reason("freezer", a), "router frozen Flood of mail!: 300 messages of bond")
}

// M12: copies go after POSTMANKEEP, an only copy does not; each is logged once.
func TestRouterDropsOldCopies(t *testing.T) {
	t.Parallel()
	now := time.Now()
	o := newOffice(t, nil, func(c *Config) { c.PostmanKeep, c.Now = 24*time.Hour, func() time.Time { return now } })
	for _, name := range []string{"4711_header", "4712"} {
		assert.Must(t, os.WriteFile(filepath.Join(o.dir, "postman", name), []byte("x"), 0o600))
	}
	recover := func(want int) {
		t.Helper()
		assert.Must(t, o.r.Recover())
		o.logged(want, "msg=recovered", "action=dropped", "name=postman/4711_header")
	}
	recover(0)
	now = now.Add(25 * time.Hour)
	recover(1)
	recover(1)
	if got := o.names("postman"); len(got) != 1 || got[0] != "4712" {
		t.Errorf("left: %q", got)
	}
}
