package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// ListDeferred lists the names in deferred/, "<ino>.<why>".
func (p *PostOffice) ListDeferred() ([]string, error) {
	entries, err := p.fs.ReadDir(Deferred)
	if err != nil {
		return nil, fmt.Errorf("list deferred: %w", err)
	}
	var list []string
	for _, e := range entries {
		ino, _, _ := strings.Cut(e.Name, ".")
		if _, ok := decimal(ino); ok && (e.Type == 0 || e.Type == fs.ModeIrregular) {
			list = append(list, e.Name)
		}
	}
	return list, nil
}

// Resubmit moves deferred/name back to router/ (M10). The name is taken from the
// file itself, not from its old name.
func (p *PostOffice) Resubmit(name string) (Accepted, error) {
	name = path.Base(name)
	info, err := p.fs.Stat(Deferred + "/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return Accepted{}, fmt.Errorf("resubmit %s: %w: %w", name, ErrGone, err)
	}
	if err != nil {
		return Accepted{}, fmt.Errorf("resubmit %s: %w", name, err)
	}
	return p.RecallTo(p.RouterDir(), Deferred, name, IDOf(info))
}

// RecallTo moves a message that is put aside, dir/name, to a router directory, under its
// inode number, whatever number its name has: somebody may have put a mended copy in its
// place. Its time stays, so it is no younger. ErrGone: it has moved on, or another
// message is there by now; ErrOccupied: the name is taken.
func (p *PostOffice) RecallTo(to, dir, name string, id SpoolID) (Accepted, error) {
	if to == Router {
		to = p.RouterDir()
	}
	a := Accepted{ID: id}
	info, err := p.same(dir, name, id)
	if err == nil {
		a.Size = info.Size
		if was, ok := asideNumber(name); ok {
			p.renumber(info, was)
		}
		// Crash: where it was, or in the router directory.
		a.Name, err = p.moveIn(dir+"/"+name, to, id.Ino, "")
	}
	if err == nil {
		err = p.syncDirs(dir, to)
	}
	if err != nil {
		return a, fmt.Errorf("move %s/%s to %s: %w", dir, name, to, err)
	}
	return a, nil
}
