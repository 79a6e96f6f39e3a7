package postoffice

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

func inodeOf(t *testing.T, p *PostOffice, name string) uint64 {
	t.Helper()
	info := assert.Get(p.FS().Stat(name))(t)
	return info.Ino
}

// A15: names in removed/ tell where a message was; strange names are no messages.
func TestNamesInRemovedAreRead(t *testing.T) {
	id := SpoolID{Ino: 12, MTime: 1795220010123456789}
	for name, want := range map[string]RemovedMessage{
		id.String() + ".queue":                {From: Queue},
		id.String() + ".router":               {From: Router},
		id.String() + ".deferred.users":       {From: Deferred, Why: "users"},
		id.String() + ".freezer.a.b":          {From: Freezer, Why: "a.b"},
		id.String() + ".postman":              {From: Postman},
		id.String() + ".postman.loop":         {From: Postman, Why: "loop"},
		id.String() + ".spec":                 {},
		id.String() + ".queue.x":              {},
		id.String() + ".transport":            {},
		id.String():                           {},
		"12.queue":                            {},
		"notes.txt":                           {},
		"S12A.queue":                          {},
		"S012A" + id.String()[4:] + ".router": {},
	} {
		got, ok := parseRemoved(name)
		if ok != (want.From != "") {
			t.Errorf("%s: read %v", name, ok)
			continue
		}
		if ok && (got.ID != id || got.From != want.From || got.Why != want.Why || got.Name != name) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// A15: only what has been there for long is dropped, and nothing that is on its way.
func TestRemovedMessagesAreDroppedByAge(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	id := func(ino uint64) string { return SpoolID{Ino: ino, MTime: 5}.String() }
	for _, name := range []string{
		id(10) + ".queue", id(10) + ".spec", // removed
		id(11) + ".queue", // its specification is on its way: below
		id(12) + ".queue", // nothing is left of it
		id(13) + ".deferred.users", id(14) + ".spec", "notes.txt",
	} {
		put(t, dir, Removed+"/"+name, "x")
	}
	now := time.Now()
	list, err := p.Removed.Sweep(now, time.Hour)
	if err != nil || len(list) != 0 {
		t.Fatalf("dropped %+v, %v; want nothing yet", list, err)
	}
	inode := inodeOf(t, p, Removed+"/"+id(11)+".queue")
	put(t, dir, Transport+"/"+Name{Ino: inode, Owner: 1}.String(), "x")
	assert.Get(p.Removed.Sweep(now.Add(2*time.Hour), time.Hour))(t)
	entries := assert.Get(p.FS().ReadDir(Removed))(t)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name)
	}
	want := []string{id(11) + ".queue", id(14) + ".spec", "notes.txt"}
	slices.Sort(left)
	slices.Sort(want)
	assert.Same(t, left, want, "left")
}

// A15: a name that belongs to another message by now is not put away.
func TestPutAwayChecksTheSpoolID(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	put(t, dir, Deferred+"/12.users", "x")
	if err := p.Removed.PutAway(Deferred, "12.users", SpoolID{Ino: 12, MTime: 5}); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	if err := p.Removed.PutAway(Deferred, "../owners/1", SpoolID{}); err == nil {
		t.Error("a name outside was taken")
	}
	inodeOf(t, p, Deferred+"/12.users")
}
