package postoffice

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
)

// stale submits a message and makes it the claim of a dead owner.
func stale(t *testing.T, p *PostOffice, dir string, owner int) Accepted {
	t.Helper()
	a := submit(t, p, "to bond\n\n")
	deadOwner(t, dir, owner)
	staleAgain(t, p, a, owner)
	return a
}

func staleAgain(t *testing.T, p *PostOffice, a Accepted, owner int) {
	t.Helper()
	assert.Must(t, p.move(a.Name, fmt.Sprintf("%s-%d", a.Name, owner)))
}

func recoverRouter(t *testing.T, p *PostOffice, tries int) []Recovered {
	t.Helper()
	done := assert.Get(p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now(), Tries: tries}))(t)
	for _, r := range done {
		if r.Action == Unreadable {
			t.Errorf("recovery: %+v", r)
		}
	}
	return done
}

// M8: each router that dies with a message is noted; after so many the message is put
// away, and the marker goes.
func TestMessageThatEndsItsRoutersIsPutAway(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	a := stale(t, p, dir, 55)
	for try := 1; try < 3; try++ {
		recoverRouter(t, p, 3)
		tries, err := p.Router.crashes.of(Router, a.ID.Ino, a.ID)
		if err != nil || len(tries) != try || tries[try-1].Owner != 55 || tries[try-1].Why != "owner 55 died with it" {
			t.Fatalf("tries: got %+v, %v, want %d", tries, err, try)
		}
		staleAgain(t, p, a, 55)
	}
	done := recoverRouter(t, p, 3)
	if len(done) != 1 || done[0].Action != SetAside || done[0].ID != a.ID {
		t.Errorf("got %+v, want set-aside of %v", done, a.ID)
	}
	assert.Equal(t, tree(t, dir), fmt.Sprintf("postman/%d", a.ID.Ino))
}

// M12 M8: what is in postman/ under that number is another's only copy.
func TestPutAwayMessageNeverReplacesAnother(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	a := stale(t, p, dir, 55)
	assert.Must(t, os.WriteFile(filepath.Join(dir, Postman, fmt.Sprint(a.ID.Ino)), []byte("another"), 0o600))
	recoverRouter(t, p, 1)
	assert.Equal(t, tree(t, dir), fmt.Sprintf("deferred/%d.crash postman/%d", a.ID.Ino, a.ID.Ino))
}

// M8 M4: marked messages come last, in both orders; another's marker counts for nothing.
func TestMarkedMessagesAreListedLast(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	poison := stale(t, p, dir, 55)
	recoverRouter(t, p, 3)
	early := time.Now().Add(-time.Hour)
	assert.Must(t, os.Chtimes(filepath.Join(dir, poison.Name), early, early))
	// Its spool ID is another now: as a file that was given the inode number again.
	var want []string
	for range 3 {
		want = append(want, filepath.Base(submit(t, p, "to bond\n\n").Name))
	}
	list, err := p.Router.List(true, time.Now())
	if err != nil || len(list) != 4 || list[0].Name != filepath.Base(poison.Name) || list[0].Tries != 0 {
		t.Fatalf("another message's marker: got %+v, %v, want it first", list, err)
	}
	staleAgain(t, p, poison, 55)
	recoverRouter(t, p, 3)
	for _, sorted := range []bool{true, false} {
		list, err := p.Router.List(sorted, time.Now())
		if err != nil || len(list) != 4 || list[3].Name != filepath.Base(poison.Name) || list[3].Tries != 1 {
			t.Errorf("sorted %v: got %+v, %v, want the marked one last", sorted, list, err)
			continue
		}
		for i := range want {
			if sorted && list[i].Name != want[i] {
				t.Errorf("place %d: got %s, want %s", i, list[i].Name, want[i])
			}
		}
	}
}

// M4: mail that is left from before the clock was set back does not wait behind all
// that comes until the clock is there again.
func TestMailFromBeforeTheClockWasSetBackIsOldest(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	now := time.Now()
	ages := map[string]time.Duration{}
	var list []Accepted
	for i, age := range []time.Duration{time.Minute, -23 * time.Hour, 5 * time.Second, -24 * time.Hour} {
		list = append(list, submit(t, p, "to bond\n\n"))
		at := now.Add(-age)
		assert.Must(t, os.Chtimes(filepath.Join(dir, list[i].Name), at, at))
		ages[filepath.Base(list[i].Name)] = age
	}
	pending := assert.Get(p.Router.List(true, now))(t)
	var got []time.Duration
	for _, m := range pending {
		got = append(got, ages[m.Name])
	}
	assert.Same(t, got, []time.Duration{-23 * time.Hour, -24 * time.Hour, time.Minute, 5 * time.Second}, "ages")
}

// K4 K9: the marker of a message that is in router/, claimed or not, stays; one whose
// message is gone, or is another one, is swept.
func TestMarkersAreSweptWithTheirMessages(t *testing.T) {
	steps := map[string]struct {
		do    func(t *testing.T, p *PostOffice, dir string, a Accepted)
		stays bool
	}{
		"waiting": {func(*testing.T, *PostOffice, string, Accepted) {}, true},
		"claimed by a living router": {func(t *testing.T, p *PostOffice, _ string, a Accepted) {
			o := assert.Get(p.Owners.Take("router"))(t)
			assert.Get(p.Router.Claim(o, filepath.Base(a.Name)))(t)
		}, true},
		"gone": {func(t *testing.T, p *PostOffice, _ string, a Accepted) {
			assert.Must(t, p.remove(a.Name))
		}, false},
		"another message with its number": {func(t *testing.T, _ *PostOffice, dir string, a Accepted) {
			at := time.Now().Add(time.Second)
			assert.Must(t, os.Chtimes(filepath.Join(dir, a.Name), at, at))
		}, false},
		"gone, and a router writes a line": {func(t *testing.T, p *PostOffice, _ string, a Accepted) {
			assert.Must(t, p.remove(a.Name))
			f, err := p.Router.crashes.open(Router, a.ID.Ino)
			if err != nil || f == nil {
				t.Fatalf("marker: %v, %v", f, err)
			}
			t.Cleanup(func() { f.Close() })
		}, true},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			p, dir := newPostOffice(t, 0)
			a := stale(t, p, dir, 55)
			recoverRouter(t, p, 3)
			step.do(t, p, dir, a)
			recoverRouter(t, p, 3)
			ok, err := p.exists(marker(Router, a.ID.Ino))
			if err != nil || ok != step.stays {
				t.Errorf("got %v, %v, want %v: %s", ok, err, step.stays, tree(t, dir))
			}
		})
	}
}

// A listing deletes nothing, whatever it finds.
func TestListingRemovesNothing(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	live := assert.Get(p.Submissions.NewDraft("report"))(t)
	t.Cleanup(func() { live.Abort() })
	for _, name := range []string{"router/.tries.7", "router/..7-3", "router/.tries.x", "public/smtp.1.a.b", "public/report.1.a.b", "queue/7-3", "transport/8-3"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	before := tree(t, dir)
	nothing := func(string) error { return nil }
	_, lerr := p.Router.List(true, time.Now())
	_, rerr := p.Submissions.ListPrepared(time.Now())
	_, derr := p.Aside.ListDeferred()
	assert.Must(t, errors.Join(lerr, rerr, derr, p.Queue.ListMessages(nothing), p.Queue.List(nothing)))
	assert.Equal(t, tree(t, dir), before)
}

// Anybody may make a file in router/: a marker that somebody else made is not
// believed, and is not written to.
func TestMarkerOfSomebodyElseIsNotBelieved(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	a := stale(t, p, dir, 55)
	forged := strings.Repeat(fmt.Sprintf("%s 55 2026-01-01T00:00:00Z x\n", a.ID), 9)
	target := filepath.Join(dir, "victim")
	assert.Must(t, os.WriteFile(target, []byte(forged), 0o644))
	// A second name of a file has two links, whoever owns it.
	assert.Must(t, os.Link(target, filepath.Join(dir, marker(Router, a.ID.Ino))))
	if tries, err := p.Router.crashes.of(Router, a.ID.Ino, a.ID); err != nil || len(tries) != 0 {
		t.Errorf("got %+v, %v, want none", tries, err)
	}
	recoverRouter(t, p, 3)
	if tries, err := p.Router.crashes.of(Router, a.ID.Ino, a.ID); err != nil || len(tries) != 1 {
		t.Errorf("got %+v, %v, want our one", tries, err)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != forged {
		t.Errorf("the other file: got %q, %v, want it as it was", b, err)
	}
	if os.Getuid() != 0 {
		return
	}
	assert.Must(t, os.Chown(filepath.Join(dir, marker(Router, a.ID.Ino)), 65534, 65534))
	if tries, err := p.Router.crashes.of(Router, a.ID.Ino, a.ID); err != nil || len(tries) != 0 {
		t.Errorf("of another uid: got %+v, %v, want none", tries, err)
	}
}

// M8 K7: taking up a claim is cut off before each operation, by a kill or by a loss of
// power: the message is there afterwards, once, and its tries are not forgotten by a
// kill.
func TestGivingAClaimBackCutAnywhereLosesNothing(t *testing.T) {
	for _, strict := range []bool{false, true} {
		for had := range 3 { // the last one puts it away
			var id SpoolID
			start := func() (disk *cutfs.FS, live func()) {
				disk, id = staleOn(t, had, strict)
				return disk, func() {
					if p, err := Open(Config{FS: disk, Strict: strict}); err == nil {
						// Its errors are those of a process that is dying.
						_, _ = p.Router.Recover(RouterRecovery{Complete: complete, Now: time.Now(), Tries: 3})
					}
				}
			}
			everyCut(t, 2, start, func(what string, loss cutfs.Loss, after *cutfs.FS) {
				checkGivenBack(t, fmt.Sprintf("%d tries, %s", had, what), after, id, had, !loss.Power)
			})
		}
	}
}

// staleOn makes a test disk with a dead owner's claim that has ended routers before.
func staleOn(t *testing.T, had int, strict bool) (*cutfs.FS, SpoolID) {
	t.Helper()
	disk := cutfs.New()
	p := newOn(t, disk, strict)
	a := submit(t, p, "to bond\n\n")
	o := assert.Get(p.Owners.Take("router"))(t)
	for range had {
		f := assert.Get(p.Router.crashes.open(Router, a.ID.Ino))(t)
		assert.Get(p.Router.crashes.add(f, Try{a.ID, 1, time.Now(), "died"}))(t)
		assert.Must(t, errors.Join(f.Sync(), f.Close()))
	}
	c := assert.Get(p.Router.Claim(o, filepath.Base(a.Name)))(t)
	c.Close()
	assert.Must(t, errors.Join(disk.SyncDir("."), disk.SyncDir(Public), disk.SyncDir(Router), disk.SyncDir(Owners)))
	return disk.Restart(cutfs.KeepAll()), a.ID
}

// checkGivenBack wants the message at one place, and after a kill as many tries noted
// as there were, or one or two more.
func checkGivenBack(t *testing.T, name string, disk *cutfs.FS, id SpoolID, had int, kill bool) {
	t.Helper()
	p, err := Open(Config{FS: disk})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	recoverRouter(t, p, 3)
	places := 0
	for _, at := range []string{Router, Postman} {
		ok, err := p.exists(fmt.Sprintf("%s/%d", at, id.Ino))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ok {
			places++
		}
	}
	if places != 1 {
		t.Fatalf("%s: the message is at %d places, want 1\n%s", name, places, disk.Log())
	}
	tries, err := p.Router.crashes.of(Router, id.Ino, id)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	aside, _ := p.exists(fmt.Sprintf("%s/%d", Postman, id.Ino))
	switch n := len(tries); {
	case aside && n != 0:
		t.Errorf("%s: put away, and the marker is there", name)
	case aside && had == 0:
		t.Errorf("%s: put away after one death", name)
	case !aside && kill && (n < had+1 || n > had+2):
		t.Errorf("%s: got %d tries, want %d or %d", name, n, had+1, had+2)
	}
}

func TestLinesThatAreNoTriesArePassedOver(t *testing.T) {
	id := SpoolID{Ino: 7, MTime: 1e18}
	at := time.Date(2026, 11, 21, 3, 4, 5, 0, time.UTC)
	good := Try{id, 55, at, "panic: index out of range\n[5]" + strings.Repeat("x", 400)}
	b := append(good.append([]byte("torn li\n\x00\x00\x00\nS7A1 -3 x y\nS7A1 3\n")), []byte(id.String()+" 55 2026-11-21T03:04:05Z torn")...)
	got := ParseTries(b)
	if len(got) != 1 || got[0].ID != id || got[0].Owner != 55 || !got[0].Time.Equal(at) ||
		!strings.HasPrefix(got[0].Why, "panic: index out of range [5]xx") || len(got[0].Why) != maxWhy {
		t.Errorf("got %+v", got)
	}
}

func FuzzParseTries(f *testing.F) {
	f.Add("S7A1 55 2026-11-21T03:04:05Z owner 55 died with it\n")
	f.Add("S7A1 55 2026-11-21T03:04:05Z \n\x00")
	f.Fuzz(func(t *testing.T, s string) {
		for _, try := range ParseTries([]byte(s)) {
			again := ParseTries(try.append(nil))
			if len(again) != 1 || again[0].ID != try.ID || again[0].Owner != try.Owner || !again[0].Time.Equal(try.Time.Truncate(time.Second)) {
				t.Errorf("%+v is written as %q, which reads as %+v", try, try.append(nil), again)
			}
		}
	})
}
