package postoffice

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func TestRouterDirsAreCheckedAndOrdered(t *testing.T) {
	for name, c := range map[string]struct {
		list string
		want string // in the error; "": none
	}{
		"none":             {"", ""},
		"one":              {"router2", ""},
		"gaps":             {"router2 router7 router12", ""},
		"router itself":    {"router", "want router and a number"},
		"no number":        {"slow", "want router and a number"},
		"leading zero":     {"router02", "want router and a number"},
		"too large":        {"router100", "from 1 to 99"},
		"a path":           {"router2/x", "want router and a number"},
		"descending":       {"router3 router2", "router2 stands behind router3"},
		"the same twice":   {"router2 router2", "router2 stands behind router2"},
		"another's prefix": {"routers", "want router and a number"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRouterDirs(strings.Fields(c.list))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for priority, want := range []string{"router", "router2", "router5", "router5"} {
		if got := PriorityDir([]string{"router2", "router5"}, priority); got != want {
			t.Errorf("priority %d: got %s, want %s", priority, got, want)
		}
	}
	if got := PriorityDir(nil, 3); got != Router {
		t.Errorf("without ROUTERDIRS: got %s", got)
	}
}

// submitInto accepts a message in a router directory.
func submitInto(t *testing.T, p *PostOffice, dir string) Accepted {
	t.Helper()
	d := assert.Get(p.Submissions.NewDraft("test"))(t)
	d.Into(dir)
	assert.Get(d.Write([]byte("to bond\nenv-end\n\nx\n")))(t)
	a := assert.Get(d.Commit())(t)
	return a
}

// M3: further directories come behind router/, in the order of their numbers, whichever
// is older; a name that only looks like one is none.
func TestFurtherRouterDirectoriesComeBehind(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, p.Router.EnsureDirs([]string{"router2", "router10"}))
	assert.Must(t, os.Mkdir(filepath.Join(dir, "router02"), 0o700))
	assert.Must(t, os.Symlink("router2", filepath.Join(dir, "router3")))
	dirs, err := p.Router.Dirs()
	if want := []string{"router", "router2", "router10"}; err != nil || !slices.Equal(dirs, want) {
		t.Fatalf("got %v, %v, want %v", dirs, err, want)
	}
	last, second, first := submitInto(t, p, "router10"), submitInto(t, p, "router2"), submitInto(t, p, Router)
	list := assert.Get(p.Router.List(true, time.Now()))(t)
	var got []string
	for _, l := range list {
		got = append(got, RouterPath(l.Name))
	}
	if want := []string{first.Name, second.Name, last.Name}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	info, err := os.Stat(filepath.Join(dir, "router2"))
	if err != nil || info.Mode()&(os.ModePerm|os.ModeSticky) != modeOfRouterDir {
		t.Errorf("router2/: got %v, %v, want router/'s mode", info.Mode(), err)
	}
	assert.Must(t, os.RemoveAll(filepath.Join(dir, "router10")))
	if a := submitInto(t, p, "router10"); !strings.HasPrefix(a.Name, Router+"/") {
		t.Errorf("got %s, want it in router/, since router10/ is not there", a.Name)
	}
}

// A claim in a further directory, its work file and its marker are found and given back
// there when their owner is dead; its hand-over is finished.
func TestClaimInFurtherDirectoryIsRecoveredThere(t *testing.T) {
	const dead = 77
	for name, c := range map[string]struct {
		plant func(t *testing.T, p *PostOffice, c *Claim)
		want  func(a Accepted) []string // names that are there afterwards
	}{
		"claimed": {
			func(*testing.T, *PostOffice, *Claim) {},
			func(a Accepted) []string { return []string{a.Name, marker("router2", a.ID.Ino)} },
		},
		"routing": {
			func(t *testing.T, _ *PostOffice, c *Claim) { writeWork(t, c, "half") },
			func(a Accepted) []string { return []string{a.Name, marker("router2", a.ID.Ino)} },
		},
		"handed over": {
			func(t *testing.T, p *PostOffice, c *Claim) {
				writeWork(t, c, "complete")
				assert.Must(t, p.move(c.path(), Queue+"/"+c.Name()))
			},
			func(a Accepted) []string {
				n := Name{a.ID.Ino, dead}.String()
				return []string{Queue + "/" + n, Transport + "/" + n}
			},
		},
		"handed over, work file torn": {
			func(t *testing.T, p *PostOffice, c *Claim) {
				writeWork(t, c, "half")
				assert.Must(t, p.move(c.path(), Queue+"/"+c.Name()))
			},
			func(a Accepted) []string { return []string{Router + "/" + inodeName(a.ID.Ino)} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, dir := newPostOffice(t, 0)
			assert.Must(t, p.Router.EnsureDirs([]string{"router2"}))
			a := submitInto(t, p, "router2")
			o := assert.Get(p.Owners.takeNumber(dead, []byte("router pid 0\n")))(t)
			claim := assert.Get(p.Router.Claim(o, a.Name))(t)
			if claim.Dir() != "router2" || claim.path() != a.Name+"-77" {
				t.Errorf("claimed as %s in %s", claim.path(), claim.Dir())
			}
			c.plant(t, p, claim)
			// While the owner lives nothing of it is touched, by the scheduler neither.
			recoverHourLater(t, p)
			if borne, err := p.Owners.borne(func([]byte) []int { return nil }); err != nil || !borne[dead] {
				if name != "handed over" && name != "handed over, work file torn" || err != nil {
					t.Errorf("owner: borne %v, %v", borne, err)
				}
			}
			assert.Must(t, o.Leave())
			recoverHourLater(t, p)
			recoverHourLater(t, p)
			var got []string
			for _, d := range []string{Router, "router2", Queue, Transport, Postman, Deferred} {
				entries := assert.Get(os.ReadDir(filepath.Join(dir, d)))(t)
				for _, e := range entries {
					got = append(got, d+"/"+e.Name())
				}
			}
			want := c.want(a)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func writeWork(t *testing.T, c *Claim, content string) {
	t.Helper()
	f, err := c.CreateWork()
	if err == nil {
		_, err = f.Write([]byte(content))
		err = errors.Join(err, f.Close())
	}
	assert.Must(t, err)
}

// recoverHourLater is a look of a router and one of the scheduler, an hour from now.
func recoverHourLater(t *testing.T, p *PostOffice) {
	t.Helper()
	now := time.Now().Add(time.Hour)
	assert.Get(p.Router.Recover(RouterRecovery{Complete: func(b []byte) bool { return string(b) == "complete" }, Now: now}))(t)
	assert.Get(p.Queue.Recover(now))(t)
}

// A message that ends its routers in a further directory is put away as one in router/
// (M8).
func TestPoisonInFurtherDirectoryIsPutAway(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, p.Router.EnsureDirs([]string{"router2"}))
	a := submitInto(t, p, "router2")
	o := assert.Get(p.Owners.Take("router"))(t)
	const tries = 3
	for try := 1; try <= tries; try++ {
		c := assert.Get(p.Router.Claim(o, a.Name))(t)
		name, n, err := c.Panicked("panic: x", time.Now(), tries)
		if err != nil || n != try {
			t.Fatalf("try %d: got %d, %v", try, n, err)
		}
		want := a.Name
		if try == tries {
			want = Postman + "/" + inodeName(a.ID.Ino)
		}
		if name != want {
			t.Errorf("try %d: it is %s, want %s", try, name, want)
		}
		list, err := p.Router.List(true, time.Now())
		if err != nil || try < tries && (len(list) != 1 || list[0].Tries != try) {
			t.Errorf("try %d: listed %+v, %v", try, list, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "router2")); err != nil || len(entries) != 0 {
		t.Errorf("router2/ has %v, %v, want nothing", entries, err)
	}
}
