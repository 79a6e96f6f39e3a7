package postoffice

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

// A message that was copied or restored is reported before its name changes: what
// dies in between is reported again by the next claim.
func TestRenumberingIsToldBeforeTheName(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	o := assert.Get(p.Owners.Take("test"))(t)
	defer func() { _ = o.Release() }()
	assert.Must(t, os.WriteFile(filepath.Join(dir, Router, "1"), []byte("to <a@b>\n\n"), 0o700))
	settle(t, filepath.Join(dir, Router, "1"))
	var told []uint64
	p.OnRenumber(func(id SpoolID, from uint64) {
		told = append(told, from)
		if _, err := p.fs.Stat(Router + "/" + Name{Ino: id.Ino, Owner: o.n}.String()); err == nil {
			t.Error("it has its new name already")
		}
	})
	c, err := p.Router.Claim(o, "1")
	assert.Must(t, err)
	if len(told) != 1 || told[0] != 1 {
		t.Errorf("got %v, want 1", told)
	}
	assert.Must(t, c.Release())
	if c, err = p.Router.Claim(o, Name{Ino: c.ID.Ino}.String()); err != nil || len(told) != 1 {
		t.Errorf("under its own number: %v, told %v", err, told)
	}
	c.Close()
}
