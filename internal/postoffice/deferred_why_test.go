package postoffice

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// setAsideOffice is a postoffice with a router's number.
type setAsideOffice struct {
	*PostOffice
	dir   string
	owner *Owner
}

func newSetAside(t *testing.T) *setAsideOffice {
	t.Helper()
	p, dir := newPostOffice(t, 0)
	o := assert.Get(p.Owners.Take("router"))(t)
	t.Cleanup(func() { o.Release() })
	return &setAsideOffice{p, dir, o}
}

// claimed returns a message that the router has.
func (o *setAsideOffice) claimed(t *testing.T) (Accepted, *Claim) {
	t.Helper()
	a := submit(t, o.PostOffice, "from <a@b.example>\nto <c@d.example>\nenv-end\nSubject: x\n\nx\n")
	c := assert.Get(o.Router.Claim(o.owner, strings.TrimPrefix(a.Name, Router+"/")))(t)
	return a, c
}

// M10: the text beside a message keeps each line, of each message that had the number.
func TestReasonsAreKeptForEachMessage(t *testing.T) {
	line := Reason{ID: SpoolID{Ino: 12, MTime: 5}, Time: time.Date(2026, 11, 22, 3, 0, 1, 0, time.UTC), Who: "a b", What: WasDeferred,
		Text: "users: two\nlines \x1b[2J of it"}
	want := line
	want.Who, want.Text = "a_b", "users: two lines [2J of it"
	b := line.append(nil)
	if n := strings.Count(string(b), "\n"); n != 1 {
		t.Fatalf("got %q, want one line", b)
	}
	other := Reason{ID: SpoolID{Ino: 12, MTime: 6}, Time: want.Time, Who: "router", What: WasSetAside}
	b = other.append(append(b, "torn S12A 2026\nS12A5 2026-11-22T03:00:01Z\n"...))
	assert.Same(t, ParseReasons(append(b, "S12A5 2026-11-22T03:00:01Z router deferred torn"...)), []Reason{want, other})
	long := Reason{ID: line.ID, Time: line.Time, Text: strings.Repeat("x", 2*maxReason)}
	if got := len(long.append(nil)); got > maxReason+100 {
		t.Errorf("a line of %d bytes", got)
	}
}

// M10: whoever sees deferred/I.why finds deferred/reason.I; it goes with the message, and
// what is left of it is swept.
func TestReasonGoesWithItsMessage(t *testing.T) {
	o := newSetAside(t)
	a, c := o.claimed(t)
	now := time.Now()
	explain := func(dir, what, text string) {
		t.Helper()
		assert.Must(t, o.Aside.Explain(dir, Reason{ID: a.ID, Time: now, Who: "router", What: what, Text: text}))
	}
	there := func(name string, want bool) {
		t.Helper()
		if _, err := o.FS().Stat(name); err == nil != want || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want it there: %v", name, err, want)
		}
	}
	name := reasonFile(Deferred, a.ID.Ino)
	explain(Deferred, WasDeferred, "users: no answer")
	assert.Must(t, c.Defer("users"))
	if done, err := o.Aside.SweepReasons(now.Add(time.Hour), false); err != nil || len(done) != 0 {
		t.Errorf("beside its message: swept %v, %v", done, err)
	}
	if list, err := o.Aside.ListDeferred(); err != nil || len(list) != 1 {
		t.Errorf("ListDeferred: got %q, %v, want the message alone", list, err)
	}
	assert.Get(o.Aside.Resubmit(strings.TrimPrefix(name, Deferred+"/reason.") + ".users"))(t)
	explain(Deferred, WasResubmitted, "")
	got, err := o.Aside.Reasons(a.ID)
	if err != nil || len(got) != 2 || got[0].Text != "users: no answer" || got[1].What != WasResubmitted {
		t.Errorf("Reasons: got %+v, %v", got, err)
	}
	if list, err := o.Aside.Reasons(SpoolID{Ino: a.ID.Ino, MTime: 1}); err != nil || len(list) != 0 {
		t.Errorf("of another message with that number: got %+v, %v", list, err)
	}
	c = assert.Get(o.Router.Claim(o.owner, strings.TrimPrefix(a.Name, Router+"/")))(t)
	if done, err := o.Aside.SweepReasons(now.Add(time.Hour), false); err != nil || len(done) != 0 {
		t.Errorf("while it is routed again: swept %v, %v", done, err)
	}
	there(name, true)
	assert.Must(t, c.Discard())
	there(name, false)
	// Another process's, or a dead one's.
	explain(Freezer, WasFrozen, "spam")
	o.Aside.reasons.take(a.ID.Ino)
	name = reasonFile(Freezer, a.ID.Ino)
	for _, step := range []struct {
		after time.Duration
		dry   bool
		swept int
		left  bool
	}{{0, false, 0, true}, {time.Hour, true, 1, true}, {time.Hour, false, 1, false}, {time.Hour, false, 0, false}} {
		done, err := o.Aside.SweepReasons(now.Add(step.after), step.dry)
		if err != nil || len(done) != step.swept {
			t.Errorf("after %v: swept %v, %v, want %d", step.after, done, err, step.swept)
		}
		there(name, step.left)
	}
}

// A message that was copied keeps its lines under its new number.
func TestReasonFollowsACopy(t *testing.T) {
	o := newSetAside(t)
	a, c := o.claimed(t)
	assert.Must(t, o.Aside.Explain(Deferred, Reason{ID: a.ID, Time: time.Now(), Who: "router", What: WasDeferred, Text: "why"}))
	assert.Must(t, c.Defer("users"))
	was := filepath.Join(o.dir, Deferred, strings.TrimPrefix(a.Name, Router+"/")+".users")
	b := assert.Get(os.ReadFile(was))(t)
	at := a.ID.Time()
	assert.Must(t, errors.Join(os.WriteFile(was+".new", b, 0o600), os.Chtimes(was+".new", at, at), os.Rename(was+".new", was)))
	r := assert.Get(o.BeginRepair())(t)
	defer r.End()
	to, again, err := r.RenumberAside(Deferred + "/" + filepath.Base(was))
	if err != nil || again {
		t.Fatalf("got %v, %v", again, err)
	}
	info := assert.Get(o.FS().Stat(to))(t)
	got, err := o.Aside.Reasons(IDOf(info))
	if err != nil || len(got) != 1 || got[0].Text != "why" || got[0].ID != IDOf(info) {
		t.Errorf("got %+v, %v", got, err)
	}
}
