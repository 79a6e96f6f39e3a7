package postoffice

import (
	"errors"
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

// The copy of a message whose right name is another file's goes on under a number taken
// at random, for then every stage takes the spool ID from the inode. Until it was written it
// is left alone.
func TestCopyWithoutItsRightNameGetsARandomNumber(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	o := assert.Get(p.Owners.Take("test"))(t)
	defer func() { _ = o.Release() }()
	copied := filepath.Join(dir, Router, "1")
	assert.Must(t, os.WriteFile(copied, []byte("to <a@b>\n\n"), 0o700))
	info := assert.Get(p.fs.Stat(Router + "/1"))(t)
	right := Name{Ino: info.Ino, Owner: o.n}.String()
	assert.Must(t, os.WriteFile(filepath.Join(dir, Transport, right), []byte("another's"), 0o600))
	if _, err := p.Router.Claim(o, "1"); !errors.Is(err, ErrUnsettled) {
		t.Errorf("while it is written: got %v, want ErrUnsettled", err)
	}
	settle(t, copied)
	var told []SpoolID
	p.OnRenumber(func(id SpoolID, _ uint64) { told = append(told, id) })
	c := assert.Get(p.Router.Claim(o, "1"))(t)
	n, _ := ParseName(c.Name())
	if !IsRandom(n.Ino) || c.ID.Ino != info.Ino || len(told) != 1 || told[0] != c.ID {
		t.Errorf("it is %s, with the ID %v, and %v was told", c.Name(), c.ID, told)
	}
	// It keeps that number as long as its own is taken, and gets its own then.
	assert.Must(t, c.Release())
	again := assert.Get(p.Router.Claim(o, inodeName(n.Ino)))(t)
	assert.Equal(t, again.Name(), c.Name(), "name of the second claim")
	assert.Must(t, again.Release())
	assert.Must(t, os.Remove(filepath.Join(dir, Transport, right)))
	last := assert.Get(p.Router.Claim(o, inodeName(n.Ino)))(t)
	assert.Equal(t, last.Name(), right, "name of the third claim")
	last.Close()
}
