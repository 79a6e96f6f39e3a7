package view

import (
	"path"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// Dirs are the directories of this postoffice.
func (s *Files) Dirs() []string {
	dirs := postoffice.Directories()
	for _, dir := range s.RouterDirs() {
		if dir != postoffice.Router {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// EachHashDir calls fn for the hash directories of queue/ or transport/.
func (s *Files) EachHashDir(dir string, fn func(f File)) {
	var walk func(sub string, depth int)
	walk = func(sub string, depth int) {
		entries, err := s.FS.ReadDir(path.Join(dir, sub))
		if err != nil {
			return // reported where its files are listed, or it is gone
		}
		for _, e := range entries {
			if !isHashDir(e.Name) || !e.Type.IsDir() {
				continue
			}
			f, err := s.Stat(dir, path.Join(sub, e.Name))
			if err != nil {
				continue
			}
			fn(f)
			if depth > 1 {
				walk(f.Name, depth-1)
			}
		}
	}
	walk("", 2)
}

// IsOrder reports whether a file is that of an operation, in orders/.
func IsOrder(f File) bool {
	_, ok := postoffice.ParseOperationID(f.Name)
	return ok && f.Info.Mode.IsRegular()
}

// IsRemoved reports whether a file belongs to a removed message: removed/ID.queue, ID.deferred.why, ...
func IsRemoved(f File) bool {
	id, rest, ok := strings.Cut(f.Name, ".")
	_, err := postoffice.ParseSpoolID(id)
	return ok && err == nil && rest != "" && f.Info.Mode.IsRegular()
}

// PutAway reports whether the message of a specification is in removed/: an operator has
// removed it, or is putting it back.
func (s *Files) PutAway(spec *workspec.Spec) bool {
	for i := len(spec.History) - 1; i >= 0; i-- {
		if e := &spec.History[i]; e.Event == "removed" || e.Event == "restored" {
			return s.Exists(postoffice.Removed + "/" + e.Get("id") + ".queue")
		}
	}
	return false
}
