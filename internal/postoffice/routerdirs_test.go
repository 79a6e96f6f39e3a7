package postoffice

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func TestRouterDirsAreCheckedAndOrdered(t *testing.T) {
	for list, ok := range map[string]bool{
		"": true, "router2": true, "router2 router7 router12": true,
		"router": false, "slow": false, "router02": false, "router100": false, "router2/x": false, "routers": false,
		"router3 router2": false, "router2 router2": false,
	} {
		if _, err := ParseRouterDirs(strings.Fields(list)); (err == nil) != ok {
			t.Errorf("%q: got %v, want it taken: %v", list, err, ok)
		}
	}
	for priority, want := range []string{"router", "router2", "router5", "router5"} {
		assert.Equal(t, PriorityDir([]string{"router2", "router5"}, priority), want, "priority %d", priority)
	}
	assert.Equal(t, PriorityDir(nil, 3), Router, "without ROUTERDIRS")
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
	last, second, first := submitInto(t, p, "router10", "to bond\n\n"), submitInto(t, p, "router2", "to bond\n\n"), submitInto(t, p, Router, "to bond\n\n")
	list := assert.Get(p.Router.List(true, time.Now()))(t)
	var got []string
	for _, l := range list {
		got = append(got, RouterPath(l.Name))
	}
	assert.Same(t, got, []string{first.Name, second.Name, last.Name})
	info, err := os.Stat(filepath.Join(dir, "router2"))
	if err != nil || info.Mode()&(os.ModePerm|os.ModeSticky) != modeOfRouterDir {
		t.Errorf("router2/: got %v, %v, want router/'s mode", info.Mode(), err)
	}
	assert.Must(t, os.RemoveAll(filepath.Join(dir, "router10")))
	if a := submitInto(t, p, "router10", "to bond\n\n"); !strings.HasPrefix(a.Name, Router+"/") {
		t.Errorf("got %s, want it in router/, since router10/ is not there", a.Name)
	}
}

// A message that ends its routers in a further directory is put away as one in router/
// (M8).
func TestPoisonInFurtherDirectoryIsPutAway(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, p.Router.EnsureDirs([]string{"router2"}))
	a := submitInto(t, p, "router2", "to bond\n\n")
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
		assert.Equal(t, name, want, "try %d", try)
		list, err := p.Router.List(true, time.Now())
		if err != nil || try < tries && (len(list) != 1 || list[0].Tries != try) {
			t.Errorf("try %d: listed %+v, %v", try, list, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "router2")); err != nil || len(entries) != 0 {
		t.Errorf("router2/ has %v, %v, want nothing", entries, err)
	}
}
