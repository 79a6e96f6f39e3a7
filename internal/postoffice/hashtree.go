package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"zmailer/internal/disk/durable"
)

// hashTree is queue/ or transport/ with its hash directories, in which a file may be at any
// depth: where it belongs at the configured one, where it belonged at another, or where an
// operator has moved it (K10).
type hashTree struct {
	p   *spool
	top string
}

func (p *spool) tree(top string) hashTree { return hashTree{p, top} }

// HashDir returns the directory of an inode below queue/ and transport/: "" for no
// levels, "X" or "Y/X" else (docs/spool.md).
func HashDir(ino uint64, levels int) string {
	x := string(rune('A' + ino%26))
	switch levels {
	case 1:
		return x
	case 2:
		return string(rune('A'+ino/26%26)) + "/" + x
	}
	return ""
}

// isHashDir reports whether a directory has a name that HashDir returns.
func isHashDir(s string) bool { return len(s) == 1 && s[0] >= 'A' && s[0] <= 'Z' }

// placeOf returns where a file of a name belongs below queue/ and transport/.
func (p *spool) placeOf(n Name) string {
	if h := HashDir(n.Ino, p.levels); h != "" {
		return h + "/" + n.String()
	}
	return n.String()
}

// seek returns the name of a file below the tree's top, "" if it is nowhere. It looks where
// the file belongs at each depth first, and in every other hash directory then.
func (t hashTree) seek(n Name) (string, error) {
	in := func(dir string) (string, error) {
		rel := n.String()
		if dir != "" {
			rel = dir + "/" + rel
		}
		if ok, err := t.p.exists(t.top + "/" + rel); err != nil || !ok {
			return "", err
		}
		return rel, nil
	}
	for levels := 0; levels <= 2; levels++ {
		if rel, err := in(HashDir(n.Ino, levels)); rel != "" || err != nil {
			return rel, err
		}
	}
	for x := 'A'; x <= 'Z'; x++ {
		dir := string(x)
		// A directory that does not exist spares the look into those below.
		if ok, err := t.p.exists(t.top + "/" + dir); err != nil {
			return "", err
		} else if !ok {
			continue
		}
		if rel, err := in(dir); rel != "" || err != nil {
			return rel, err
		}
		for y := 'A'; y <= 'Z'; y++ {
			if rel, err := in(dir + "/" + string(y)); rel != "" || err != nil {
				return rel, err
			}
		}
	}
	return "", nil
}

// list calls fn for the name of each message or specification below the top, and other, if
// it is not nil, for those of notes (ParseNote) and copies (ParseCopy), until one errs.
func (t hashTree) list(fn, other func(name string) error) error { return t.listIn("", 2, fn, other) }

func (t hashTree) listIn(sub string, depth int, fn, other func(name string) error) error {
	dir := t.top
	if sub != "" {
		dir = t.top + "/" + sub
		sub += "/"
	}
	var ferr error // fn's, which names its object by itself
	err := durable.ReadDirFunc(t.p.fs, dir, func(part []durable.Entry) error {
		for _, e := range part {
			if ferr = t.entry(sub, e, depth, fn, other); ferr != nil {
				return ferr
			}
		}
		return nil
	})
	switch {
	case ferr != nil:
		return ferr
	case errors.Is(err, fs.ErrNotExist) && sub != "":
		return nil // a hash directory that was removed meanwhile
	case err != nil:
		return fmt.Errorf("list %s: %w", dir, err)
	}
	return nil
}

func (t hashTree) entry(sub string, e durable.Entry, depth int, fn, other func(name string) error) error {
	switch {
	case depth > 0 && e.Type.IsDir() && isHashDir(e.Name):
		return t.listIn(sub+e.Name, depth-1, fn, other)
	case e.Type != 0 && e.Type != fs.ModeIrregular:
		return nil
	case other != nil && (strings.HasPrefix(e.Name, notePrefix) || strings.HasPrefix(e.Name, copyPrefix)):
		return other(sub + e.Name)
	}
	if _, ok := ParseName(e.Name); !ok {
		return nil
	}
	return fn(sub + e.Name)
}

// hashDirs calls fn for each hash directory on the way to a directory below queue/ or
// transport/, that directory included and the upper first.
func hashDirs(dir string, fn func(dir, above string) error) error {
	for end, c := range dir + "/" {
		above := strings.LastIndexByte(dir[:end], '/')
		if c != '/' || above < 0 {
			continue
		}
		if err := fn(dir[:end], dir[:above]); err != nil {
			return err
		}
	}
	return nil
}
