package view

import (
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// Dirs returns the directories of this postoffice.
func (s *Files) Dirs() []string {
	dirs := postoffice.Directories()
	for _, dir := range s.RouterDirs() {
		if dir != postoffice.Router {
			dirs = append(dirs, dir)
		}
	}
	return dirs
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
