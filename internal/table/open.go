package table

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/config"
)

// Open opens a source; its error is a *config.Error. Of servers, databases and
// directories nothing is asked yet: one that is down is an error of Lookup.
func Open(source string, o Options) (Table, error) {
	o = o.withDefaults()
	s, err := Parse(source, o.Dir)
	if err != nil {
		return nil, err
	}
	var t Table
	switch s.Scheme {
	case "file":
		return openFile(s, o)
	case "db":
		return openDB(s, o) // faster than a cache
	case "regexp":
		return openPatterns(s, o)
	case "pipemap", "unionmap":
		return openCombined(s, o)
	case "socket":
		t, err = openSocket(s, o)
	case "exec":
		t, err = openExec(s, strings.Fields(s.Rest), "", o)
	default:
		t, err = openLookup(s, o)
	}
	if err != nil {
		return nil, err
	}
	return newCached(t, o), nil
}

// openLookup makes a table of what the program lookup asks. Its settings are checked; it
// reads them again by itself when they change.
func openLookup(s Source, o Options) (Table, error) {
	open := func(path string) (*os.File, error) { return config.OpenSecret(o.Keeper, path) }
	if err := settings.Check(open, s.Scheme, s.Rest); err != nil {
		return nil, err
	}
	dir := o.Programs
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, &config.Error{File: s.Text, Reason: "the program lookup cannot be found", Err: err}
		}
		dir = filepath.Dir(self)
	}
	// It is to say that it had no time before we believe that it is dead.
	limit := o.Timeout - o.Timeout/10
	return openExec(s, []string{
		filepath.Join(dir, "lookup"), "--timeout", limit.Truncate(time.Millisecond).String(), s.Scheme + ":" + s.Rest,
	}, s.Rest, o)
}
