package router

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/rules"
)

// M4, and the trap "new mail that starves old", in router/.
func TestOldestMessageIsRoutedFirst(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	at := time.Now().Truncate(time.Second)
	var want []string
	accepted := map[int]postoffice.Accepted{}
	// 7 has no divisor in common with 20: every age once, in no order.
	for i := range 20 {
		age := i * 7 % 20
		accepted[age] = o.submit(plain(fmt.Sprintf("age%d@example.net", age)))
		when := at.Add(-time.Duration(age) * time.Second)
		assert.Must(t, os.Chtimes(filepath.Join(o.dir, accepted[age].Name), when, when))
	}
	for age := 19; age >= 0; age-- {
		want = append(want, fmt.Sprint(accepted[age].ID.Ino))
	}
	o.route()
	var got []string
	for line := range strings.Lines(o.log.String()) {
		if _, rest, ok := strings.Cut(line, " name="); ok && strings.Contains(line, "msg=routed") {
			ino, _, _ := strings.Cut(rest, "-")
			got = append(got, ino)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("order: got %v, want %v", got, want)
	}
}

// M4
func TestUnsortedRouterLooksAtNoTimes(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) { c.Unsorted = true })
	for i := range 5 {
		o.submit(plain(fmt.Sprintf("u%d@example.net", i)))
	}
	stats := o.disk.On(faultfs.Stat, "router/*", faultfs.Always, func(name string) error {
		if !strings.Contains(name, "-") {
			return fs.ErrInvalid
		}
		return nil
	})
	defer stats.End()
	if n, err := o.r.RouteAll(); n != 5 || err != nil {
		t.Errorf("got %d, %v, want 5 without a stat of what waits", n, err)
	}
}

// M5
func TestOnlyRegularFilesWithANumberAreTaken(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil)
	a := o.submit(plain("a@example.net"))
	router := filepath.Join(o.dir, postoffice.Router)
	for _, err := range []error{
		os.WriteFile(filepath.Join(router, ".x"), nil, 0o600),
		os.WriteFile(filepath.Join(router, "core"), nil, 0o600),
		os.WriteFile(filepath.Join(router, "12x"), nil, 0o600),
		os.WriteFile(filepath.Join(router, "012"), nil, 0o600),
		os.Mkdir(filepath.Join(router, "13"), 0o700),
		os.Symlink(filepath.Join(o.dir, a.Name), filepath.Join(router, "14")),
		mkfifo(filepath.Join(router, "15")),
	} {
		assert.Must(t, err)
	}
	if n, err := o.r.RouteAll(); n != 1 || err != nil {
		t.Errorf("got %d, %v, want 1", n, err)
	}
	// By a hint, without a look at the directory.
	d := newDispatcher(o.r, nil)
	for _, got := range o.hinted(t, "13", "14", "15") {
		if !errors.Is(got.err, postoffice.ErrIrregular) {
			t.Errorf("hint at %s: got %v", got.name, got.err)
		}
		// It was released, which is a hint too: no worker follows that one.
		d.routed(got)
		d.named(postoffice.Router, got.name)
	}
	if d.classes.waiting() > 0 {
		t.Error("what is no message is tried again at once")
	}
	if got := o.hinted(t, "16"); !errors.Is(got[0].err, postoffice.ErrGone) {
		t.Errorf("hint at nothing: got %v", got[0].err)
	}
	if got, want := len(o.names("router")), 7; got != want {
		t.Errorf("left alone: got %q, want %d", o.names("router"), want)
	}
	for _, name := range []string{".x", "core", "12x"} {
		if isMessage(name) {
			t.Errorf("a hint at %s is taken", name)
		}
	}
}

// reason returns what is beside a message that was put aside.
func (o *office) reason(dir string, a postoffice.Accepted) string {
	o.t.Helper()
	b, err := os.ReadFile(filepath.Join(o.dir, dir, fmt.Sprint("reason.", a.ID.Ino)))
	if !errors.Is(err, fs.ErrNotExist) {
		assert.Must(o.t, err)
	}
	return string(b)
}

// M10: each time the whole reason is added beside the message, whose bytes stay; it goes when
// the message is routed.
func TestRoutingTroubleDefersUntilResubmitted(t *testing.T) {
	t.Parallel()
	o := newOffice(t, map[string]string{"aliases": "team: :include:/nowhere/at/all\n"})
	a := o.submit(plain("team@example.org"))
	was, err := os.ReadFile(filepath.Join(o.dir, a.Name))
	assert.Must(t, err)
	name := fmt.Sprintf("%d.include", a.ID.Ino)
	for n := 1; n <= 2; n++ {
		o.route()
		assert.Equal(t, strings.Join(o.names("deferred"), " "), name, "deferred")
		text := o.reason("deferred", a)
		assert.Equal(t, strings.Count(text, a.ID.String()+" "), n, "reasons in %s", text)
		assert.Equal(t, strings.Count(text, " router deferred include: :include:/nowhere/at/all: "), n, "reasons in %s", text)
		now, err := os.ReadFile(filepath.Join(o.dir, "deferred", name))
		assert.Must(t, err)
		assert.Equal(t, string(now), string(was), "message")
		_, err = o.po.Aside.Resubmit(name)
		assert.Must(t, err)
	}
	o.logged(2, "msg=deferred", "id="+a.ID.String(), "/nowhere/at/all")
	o.table("aliases", "team: bond, q@example.net\n")
	o.r = o.router()
	assert.Must(t, o.r.Recover()) // it learns what is there, as at a start
	got := o.route()
	o.expect("mended", map[string]int{"queue": 1, "transport": 1})
	if got[0].spec.Message != got[0].name || len(got[0].recipients()) != 2 || o.reason("deferred", a) != "" {
		t.Errorf("mended: got %+v, reason %q", got, o.reason("deferred", a))
	}
}

// M12: the only copy of what cannot be routed, with the reason; the parser of envelopes has
// tests of its own.
func TestBrokenEnvelopeGoesToThePostmanAsTheOnlyCopy(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"not an envelope":   "from <q@example.net>\nto <a@example.net>\n!!!\nenv-end\nSubject: x\n\n",
		"bad recipient":     "from <q@example.net>\nto <a b@example.net>\nto <a@example.net>\nenv-end\nTo: a@example.net\n\n",
		"no recipient left": "from <q@example.net>\nenv-end\nTo: undisclosed-recipients:;\n\nbody\n",
		"ends too early":    "from <q@example.net>\nto <a@exa",
		"lost its end":      plain("a@example.net"),
		"nothing":           "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// With soft copies wanted, too, there is the one hard copy.
			o := newOffice(t, nil, func(c *Config) { c.PostmanCopy = true })
			a := o.submit(text)
			if name == "lost its end" {
				assert.Must(t, os.Truncate(filepath.Join(o.dir, a.Name), a.Size-3))
			}
			o.route()
			o.expect(name, map[string]int{"postman": 1})
			copied := fmt.Sprintf("postman/%d", a.ID.Ino)
			o.logged(1, "msg=set-aside", "name="+copied+" ", "reason=")
			b := assert.Get(os.ReadFile(filepath.Join(o.dir, copied)))(t)
			if !strings.HasSuffix(string(b), text) && name != "lost its end" || !strings.Contains(o.reason("postman", a), " router set-aside ") {
				t.Errorf("copy %q, reason %q", b, o.reason("postman", a))
			}
		})
	}
}

// M12 M15: what has a broken header, or looks like a loop, goes on unharmed; with POSTMANCOPY a
// copy stays, with the reason. Package route has the faults.
func TestOddMessageGoesOnWithASoftCopy(t *testing.T) {
	t.Parallel()
	const head = "from <q@example.net>\nto <a@example.net>\nenv-end\nFrom: q@example.net\n"
	for why, text := range map[string]string{
		"header": head + "this is no field\nSubject: x\n\nbody\n",
		"loop":   head + strings.Repeat("Received: x\n", maxReceived+1) + "\nbody\n",
	} {
		for _, wanted := range []bool{true, false} {
			o := newOffice(t, nil, func(c *Config) { c.PostmanCopy = wanted })
			a := o.submit(text)
			m := o.route()[0]
			_, own, _ := strings.Cut(strings.TrimSuffix(text, "\nbody\n"), "env-end\n")
			if !strings.HasSuffix(m.header(), own) || string(m.message[m.spec.BodyOffset:]) != "body\n" {
				t.Errorf("got header %q and body %q", m.header(), m.message[m.spec.BodyOffset:])
			}
			if !wanted {
				o.expect("without", map[string]int{"queue": 1, "transport": 1})
				continue
			}
			o.expect("with copies", map[string]int{"queue": 1, "transport": 1, "postman": 1})
			copied := fmt.Sprintf("%d_%s", a.ID.Ino, why)
			o.logged(1, "msg=soft-copy", "name=postman/"+copied)
			b := assert.Get(os.ReadFile(filepath.Join(o.dir, "postman", copied)))(t)
			assert.Equal(t, string(b), string(m.message), "copy")
			assert.Contains(t, o.reason("postman", a), " router copied "+why+": ", "reason")
		}
	}
}

// M8: it goes behind all others, and to postman/ after so many tries.
func TestMessageThatMakesTheRouterPanicGoesLastAndIsSetAside(t *testing.T) {
	t.Parallel()
	o := newOffice(t, nil, func(c *Config) {
		c.Rules.LocalUsers, c.Rules.Passwd, c.Tries = "passwd", panics{}, 3
	})
	bad := o.submit(plain("bond@example.org"))
	marker := filepath.Join(o.dir, "router", fmt.Sprintf(".tries.%d", bad.ID.Ino))
	for try := 1; try < 3; try++ {
		for range 5 {
			o.submit(plain("a@example.net"))
		}
		if n, err := o.r.RouteAll(); n != 5 || !errors.Is(err, ErrPanic) {
			t.Errorf("try %d: got %d, %v, want 5 and a panic", try, n, err)
		}
		o.expect("panic", map[string]int{"router": 2, "queue": 5 * try, "transport": 5 * try})
		list, err := o.po.Router.List(true, time.Now())
		if err != nil || len(list) != 1 || list[0].Tries != try {
			t.Errorf("listed: got %+v, %v, want %d tries", list, err, try)
		}
		b, err := os.ReadFile(marker)
		if err != nil || strings.Count(string(b), bad.ID.String()+" ") != try || !strings.Contains(string(b), " panic: no users today\n") {
			t.Errorf("marker: got %q, %v, want %d lines", b, err, try)
		}
	}
	if n, err := o.r.RouteAll(); n != 1 || err != nil {
		t.Errorf("last try: got %d, %v, want 1", n, err)
	}
	o.expect("in the end", map[string]int{"postman": 1, "queue": 10, "transport": 10})
	o.logged(3, "msg=crash", "no users today", "router_test.go")
	o.logged(1, "msg=set-aside", "level=ERROR", "id="+bad.ID.String(), fmt.Sprintf("name=postman/%d", bad.ID.Ino), "no users today", "advice=")
}

// M8: the marker goes when the message leaves, whichever way.
func TestMarkerGoesWithItsMessage(t *testing.T) {
	t.Parallel()
	for name, rcpt := range map[string]string{"handed over": "a@example.net", "deferred": "team@example.org", "set aside": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, map[string]string{"aliases": "team: :include:/nowhere\n"})
			text := "from <q@example.net>\nenv-end\n\n"
			if rcpt != "" {
				text = plain(rcpt)
			}
			o.leave(o.submit(text), 7)
			assert.Must(t, o.r.Recover())
			if got := o.names("router"); len(got) != 2 {
				t.Fatalf("router/: got %q, want a message and its marker", got)
			}
			if n, err := o.r.RouteAll(); n != 1 || err != nil {
				t.Fatalf("got %d, %v, want 1", n, err)
			}
			if got := o.names("router"); len(got) != 0 {
				t.Errorf("router/: got %q, want nothing", got)
			}
		})
	}
}

// leave makes a message the claim of a dead owner.
func (o *office) leave(a postoffice.Accepted, owner int) {
	o.t.Helper()
	assert.Must(o.t, errors.Join(os.WriteFile(filepath.Join(o.dir, "owners", fmt.Sprint(owner)), nil, 0o644),
		os.Rename(filepath.Join(o.dir, a.Name), filepath.Join(o.dir, fmt.Sprintf("%s-%d", a.Name, owner)))))
}

// panics is a user database with a defect.
type panics struct{}

func (panics) Lookup(string) (rules.User, bool, error) { panic("no users today") }

func (panics) LookupUID(uint32) (rules.User, bool, error) { panic("no users today") }
