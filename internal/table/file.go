package table

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// file is a text table in memory, read again when it has changed.
type file struct {
	path string
	kind text.Kind
	o    Options

	mu      sync.Mutex
	sig     signature
	uid     uint32
	entries map[string]record
	bad     error // why the file that is there now is not the one in entries
}

func openFile(s Source, o Options) (Table, error) {
	f := &file{path: s.Rest, kind: text.Kind(o.Name), o: o}
	if !slices.Contains(text.Kinds(), f.kind) {
		return nil, &config.Error{File: s.Text, Reason: fmt.Sprintf("%q is no kind of table", o.Name)}
	}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

func silent(string, int64, int64) {}

// settled is how old a change must be before it is believed whole.
const settled = 100 * time.Millisecond

func (f *file) read() error {
	h, list, err := readText(f.kind, f.path, silent)
	if err != nil {
		return err
	}
	entries := make(map[string]record, len(list))
	for _, e := range list {
		entries[e.Key] = record{e.Line, e.Text}
	}
	f.sig, f.uid, f.entries = h.sig, h.UID, entries
	return nil
}

// Lookup returns the value of a key in the file as it is now. A file that turned bad is
// logged once, and what was read before stays; one that is gone is an error.
func (f *file) Lookup(_ context.Context, key string) (Value, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			f.sig = signature{}
		}
		return Value{}, false, fmt.Errorf("file:%s: %w", f.path, bare(err))
	}
	if age := f.o.Now().Sub(info.ModTime()); sign(info) != f.sig && (age < 0 || age >= settled) {
		err := f.read()
		if err != nil && (f.bad == nil || f.bad.Error() != err.Error()) {
			f.o.Log.Error("table-refused", "file", f.path, "reason", err, "kept", "the table as it was read before")
		} else if err == nil {
			f.o.Log.Info("table-read", "file", f.path)
		}
		f.bad, f.sig = err, sign(info)
	}
	r, ok := f.entries[key]
	if !ok {
		return Value{}, false, nil
	}
	return Value{r.text, f.uid, fmt.Sprintf("%s:%d", f.path, r.line)}, true, nil
}

// Close forgets the table.
func (f *file) Close() error { return nil }
