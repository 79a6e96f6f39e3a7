package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
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
	from := Deferred + "/" + path.Base(name)
	info, err := p.fs.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return Accepted{}, fmt.Errorf("resubmit %s: %w: %w", name, ErrGone, err)
	}
	if err != nil {
		return Accepted{}, fmt.Errorf("resubmit %s: %w", name, err)
	}
	a := Accepted{ID: IDOf(info), Name: Router + "/" + strconv.FormatUint(info.Ino, 10), Size: info.Size}
	// Crash: deferred/ or router/.
	if err := p.move(from, a.Name); err != nil {
		return Accepted{}, fmt.Errorf("resubmit %s: %w", name, err)
	}
	return a, nil
}
