package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// router takes what is in a router directory, the oldest first, until ctx is done, and does
// something with each. It gives the IDs in the order in which they came, and how many
// there were at most.
func router(o *office.Office, ctx context.Context, dir string, do func(c *postoffice.Claim) error) (ids []postoffice.SpoolID, most int, err error) {
	for ctx.Err() == nil {
		list, err := o.Router.ListDir(dir, true, time.Now())
		if err != nil {
			return ids, most, err
		}
		most = max(most, len(list))
		if len(list) == 0 {
			<-time.After(time.Millisecond) // as a router that looks again
			continue
		}
		c, err := o.Router.Claim(o.Routing, list[0].Name)
		if err != nil {
			return ids, most, err
		}
		ids = append(ids, c.ID)
		if err := do(c); err != nil {
			return ids, most, err
		}
	}
	return ids, most, nil
}

// asRouter runs fn while a router works.
func asRouter(o *office.Office, t *testing.T, dir string, do func(c *postoffice.Claim) error, fn func()) (ids []postoffice.SpoolID, most int) {
	t.Helper()
	if o.Routing == nil {
		o.Routing = o.Run(t, "router")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		var err error
		ids, most, err = router(o, ctx, dir, do)
		done <- err
	}()
	fn()
	cancel()
	assert.Must(t, <-done)
	return ids, most
}

// M10: no more than the pace stand before a running router, the oldest first; so new mail
// waits for that many at most.
func TestResubmitKeepsItsPace(t *testing.T) {
	o := office.New(t)
	var want []postoffice.SpoolID
	for i := range 20 {
		a, name := o.Put(t, postoffice.Deferred, "users", office.PlainMail)
		// In another order than that in which they came.
		at := time.Now().Add(-time.Duration(i*7%20) * time.Hour)
		assert.Must(t, os.Chtimes(filepath.Join(o.Dir, "deferred", name), at, at))
		want = append(want, postoffice.SpoolID{Ino: a.ID.Ino, MTime: at.UnixNano()})
	}
	slices.SortFunc(want, func(a, b postoffice.SpoolID) int { return a.Time().Compare(b.Time()) })
	got, most := asRouter(o, t, postoffice.Router, (*postoffice.Claim).Discard, func() {
		exits(t, 0, "resubmit", "--pace", "4", "all")
		for len(o.Names(t, postoffice.Router)) > 0 {
			<-time.After(time.Millisecond)
		}
	})
	if most > 4 {
		t.Errorf("%d stood before the router, want at most 4", most)
	}
	if len(got) != 20 || !slices.EqualFunc(got[:4], want[:4], func(a, b postoffice.SpoolID) bool { return slices.Contains(want[:4], a) }) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// M10: what comes back shows that nothing is mended: the rest stays where it is, also if the
// router takes longer over each than the command waits before it looks again.
func TestResubmitStopsWhenTheyComeBack(t *testing.T) {
	for name, takes := range map[string]time.Duration{"at once": 0, "from a slow router": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			o := office.New(t)
			for range 12 {
				o.Put(t, postoffice.Deferred, "users", office.PlainMail)
			}
			var code int
			var err error
			ids, _ := asRouter(o, t, postoffice.Router, func(c *postoffice.Claim) error {
				<-time.After(takes) // a lookup that is answered late
				reason := postoffice.Reason{ID: c.ID, Time: time.Now(), Who: "router", What: postoffice.WasDeferred, Text: "users: still no answer"}
				if err := o.Aside.Explain(postoffice.Deferred, reason); err != nil {
					return err
				}
				return c.Defer("users")
			}, func() { _, code, err = invoke(t, "resubmit", "--pace", "3", "all") })
			if code != config.ExitTempFail || err == nil {
				t.Fatalf("got exit code %d, %v, want %d", code, err, config.ExitTempFail)
			}
			wantIn(t, err.Error(), "came back", "were left where they are", "users: still no answer", "zmctl resubmit --check")
			if len(ids) > 8 {
				t.Errorf("the router had to do with %d of 12", len(ids))
			}
		})
	}
}

// M3, M10: many go to the last router directory, where they let new mail go first; what a
// person names he waits for.
func TestResubmitGoesToTheLastRouterDirectory(t *testing.T) {
	o := office.New(t)
	assert.Must(t, o.Router.EnsureDirs([]string{"router2", "router3"}))
	_, name := o.Put(t, postoffice.Deferred, "users", office.PlainMail)
	o.Put(t, postoffice.Deferred, "users", office.PlainMail)
	for _, args := range [][]string{{"resubmit", name}, {"resubmit", "users"}} {
		exits(t, 0, args...)
	}
	for dir, want := range map[string]int{"router": 1, "router2": 0, "router3": 1} {
		if got := o.Names(t, dir); len(got) != want {
			t.Errorf("%s: got %q, want %d", dir, got, want)
		}
	}
}

// Two postmasters at once: each message goes once, and neither gets an error.
func TestTwoPostmastersResubmitEachMessageOnce(t *testing.T) {
	o := office.New(t)
	for range 60 {
		o.Put(t, postoffice.Deferred, "users", office.PlainMail)
	}
	type result struct {
		out  string
		code int
	}
	done := make(chan result)
	for range 2 {
		go func() {
			cmd := exec.Command(os.Args[0], "--postoffice", o.Dir, "resubmit", "all")
			cmd.Env = append(os.Environ(), "BE_ZMCTL=1")
			out, _ := cmd.CombinedOutput()
			done <- result{string(out), cmd.ProcessState.ExitCode()}
		}()
	}
	moved := 0
	for range 2 {
		r := <-done
		moved += strings.Count(r.out, " now\n")
		// The other one may have been faster with a message that was just looked at.
		if r.code != 0 && !strings.Contains(r.out, "it is not in deferred/ any more") {
			t.Errorf("exit code %d: %s", r.code, r.out)
		}
	}
	if got := o.Names(t, postoffice.Router); moved != 60 || len(got) != 60 {
		t.Errorf("%d moved, %d in router/, want 60", moved, len(got))
	}
}
