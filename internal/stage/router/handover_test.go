package router

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// reason is what stands beside a message in a directory.
func (o *office) reason(dir string, a postoffice.Accepted) string {
	o.t.Helper()
	b, err := os.ReadFile(filepath.Join(o.dir, dir, "reason."+strconv.FormatUint(a.ID.Ino, 10)))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		o.t.Fatal(err)
	}
	return string(b)
}

// M10: cat tells the whole reason, each time that the message came back, and it goes when
// the message is routed; the message's bytes are as they came.
func TestTroubleIsExplainedBesideTheMessage(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"aliases": "team: :include:/nowhere/at/all\n"})
	a := o.submit(plain("team@example.org"))
	was, err := os.ReadFile(filepath.Join(o.dir, a.Name))
	assert.Must(t, err)
	for n := 1; n <= 2; n++ {
		o.route()
		text := o.reason("deferred", a)
		if got := strings.Count(text, a.ID.String()+" "); got != n || strings.Count(text, " router deferred include: ") != n || !strings.Contains(text, "/nowhere/at/all: no such file") {
			t.Errorf("round %d: %s", n, text)
		}
		name := strconv.FormatUint(a.ID.Ino, 10) + ".include"
		if now, err := os.ReadFile(filepath.Join(o.dir, "deferred", name)); err != nil || string(now) != string(was) {
			t.Errorf("round %d: the message is %q, %v", n, now, err)
		}
		if _, err := o.po.Aside.Resubmit(name); err != nil {
			t.Fatal(err)
		}
	}
	o.table("aliases", "team: bond\n")
	o.r = o.router()
	if err := o.r.Recover(); err != nil { // it learns what stands there, as at a start
		t.Fatal(err)
	}
	o.route()
	o.expect("mended", map[string]int{"queue": 1, "transport": 1})
	if text := o.reason("deferred", a); text != "" {
		t.Errorf("beside nothing: %s", text)
	}
}

// M12: the reason stands beside an only copy, and beside a copy of what went on.
func TestPostmansMailIsExplained(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) { c.PostmanCopy = true })
	broken := o.submit("from <a@b>\nto <c d>\nenv-end\n\nx\n")
	odd := o.submit("from <x@example.net>\nto <bond@example.org>\nenv-end\nSubject: x\nno field at all\n\nx\n")
	o.route()
	if text := o.reason("postman", broken); !strings.Contains(text, " router set-aside envelope line 3") {
		t.Errorf("an only copy: %q", text)
	}
	if text := o.reason("postman", odd); !strings.Contains(text, " router copied header: ") {
		t.Errorf("a copy: %q", text)
	}
}

// M13: a frozen message has its cause in the name and the reason beside it; what an operator
// has thawed a policy leaves alone.
func TestFrozenMessageIsExplained(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	a := o.submit(plain("bond@example.org"))
	c, err := o.po.Router.Claim(o.r.owner, filepath.Base(a.Name))
	assert.Must(t, err)
	assert.Must(t, o.r.freeze(c, "Flood of mail!", "300 messages of bond in a minute"))
	ino := strconv.FormatUint(a.ID.Ino, 10)
	if got := o.names("freezer"); len(got) != 1 || got[0] != ino+".flood-of-mail-" {
		t.Errorf("freezer/ holds %q", got)
	}
	o.logged(1, "msg=frozen", "id="+a.ID.String(), "name=freezer/"+ino+".flood-of-mail-", "300 messages", "zmctl freezer thaw")
	if text := o.reason("freezer", a); !strings.Contains(text, "router frozen Flood of mail!: 300 messages of bond") {
		t.Errorf("got %q", text)
	}
}

// M12: copies go after POSTMANKEEP, an only copy does not; each is told once.
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
