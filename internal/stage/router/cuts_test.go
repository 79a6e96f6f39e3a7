package router

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/workspec"
)

// cutter stops routers before each of their operations on a test disk.
type cutter struct {
	*testing.T
	po     postoffice.Config
	config Config
	step   time.Duration // that each life begins after the one before
}

func newCutter(t *testing.T, po postoffice.Config) *cutter {
	return &cutter{T: t, po: po, config: Config{Config: route.Config{Hostname: "mx.example.org", Rules: rules.Config{Dir: t.TempDir()}}}}
}

// start starts a router whose clock is ahead.
func (c *cutter) start(disk *cutfs.FS, ahead time.Duration) (*Router, error) {
	po, config := c.po, c.config
	po.FS = disk
	config.Now = func() time.Time { return time.Now().Add(ahead) }
	p, err := postoffice.Open(po)
	if err != nil {
		return nil, err
	}
	return New(p, config)
}

// live returns what a router does at its start.
func (c *cutter) live(disk *cutfs.FS, ahead time.Duration) (*Router, error) {
	r, err := c.start(disk, ahead)
	if err != nil {
		return nil, err
	}
	err = r.Recover()
	r.resubmits.done.Wait()
	_, rerr := r.RouteAll()
	return r, errors.Join(err, rerr)
}

// drain has further routers live, and the scheduler an hour after each: no process is between
// two renames then.
func (c *cutter) drain(disk *cutfs.FS, ahead time.Duration) (p *postoffice.PostOffice) {
	for round := range time.Duration(5) {
		r, err := c.live(disk.Process(), ahead+round*c.step)
		assert.Must(c, err)
		p = r.po
		_, err = p.Queue.Recover(time.Now().Add(time.Hour))
		assert.Must(c, err)
		assert.Must(c, p.Queue.List(func(name string) error {
			s, err := p.Queue.Open(name)
			if err != nil {
				return err
			}
			b, err := s.Read()
			if err := errors.Join(err, s.Close()); err != nil || workspec.Complete(b) {
				return err
			}
			return p.Queue.Reroute(name)
		}))
	}
	return p
}

// run has a router live after prepare. Cut before any operation, by a kill or a loss of power,
// it leaves what the next ones hand over: the messages with these subjects, each once. It
// returns what the router hands over uncut.
func (c *cutter) run(prepare func(*Router), ahead time.Duration, least int, subjects ...string) []routed {
	for n := 0; ; n++ {
		disk := cutfs.New()
		assert.Must(c, postoffice.Init(disk))
		r := assert.Get(c.start(disk, 0))(c)
		prepare(r)
		for _, dir := range postoffice.Directories() {
			assert.Must(c, disk.SyncDir(dir))
		}
		disk = disk.Process()
		disk.CutAfter(n)
		if n%2 == 1 {
			disk.CutInside(n)
		}
		r, _ = c.live(disk, ahead) // its errors are those of a process that is dying
		if !disk.Dead() {
			if n < least {
				c.Errorf("%d operations, want more", n)
			}
			return handedOver(c, r.po)
		}
		for _, loss := range disk.Losses() {
			var got []string
			for _, m := range handedOver(c, c.drain(disk.Restart(loss), ahead)) {
				_, s, _ := strings.Cut(m.header(), "Subject: ")
				got = append(got, strings.TrimSpace(s))
			}
			slices.Sort(got)
			if !slices.Equal(got, subjects) {
				c.Fatalf("cut before operation %d, %v: got %q, want %q\n%s", n, loss, got, subjects, disk.Log())
			}
		}
	}
}

func subject(s string) string {
	return "from <q@example.net>\nto <" + s + "@example.net>\nenv-end\nSubject: " + s + "\n\nbody\n"
}

// M7: a router that is cut off before any operation leaves what the next one routes, once.
func TestRouterCutAnywhereLosesAndRepeatsNothing(t *testing.T) {
	for name, po := range map[string]postoffice.Config{
		"usual": {}, "strict": {Strict: true}, "two hash levels": {HashLevels: 2},
	} {
		t.Run(name, func(t *testing.T) {
			newCutter(t, po).run(func(r *Router) {
				for _, s := range []string{"a", "b", "c"} {
					submit(t, r.po, subject(s))
				}
			}, 0, 15, "a", "b", "c")
		})
	}
}

// Dur5: the same for a usual attempt and the last one of a message that was deferred.
func TestDur5CutWhileResubmittingLosesAndRepeatsNothing(t *testing.T) {
	for name, after := range map[string]time.Duration{"again": 10 * time.Minute, "last": 100 * time.Hour} {
		for mode, strict := range map[string]bool{"": false, " strict": true} {
			t.Run(name+mode, func(t *testing.T) {
				c := newCutter(t, postoffice.Config{Strict: strict})
				c.config.Resubmit, c.step = byDefault, 200*time.Hour
				conf := c.config.Rules.Dir
				assert.Must(t, os.WriteFile(filepath.Join(conf, "aliases"), []byte("a: :include:"+conf+"/members\n"), 0o644))
				assert.Must(t, os.WriteFile(filepath.Join(conf, "localnames"), []byte("example.net\n"), 0o644))
				uncut := c.run(func(r *Router) {
					submit(t, r.po, subject("a"))
					_, err := r.RouteAll()
					assert.Must(t, err)
					list := assert.Get(r.po.Aside.ListDeferred())(t)
					assert.Equal(t, len(list), 1, "deferred messages")
				}, after, 5, "a")
				assert.Equal(t, len(uncut), map[string]int{"last": 1}[name], "messages of a router that is not cut")
			})
		}
	}
}
