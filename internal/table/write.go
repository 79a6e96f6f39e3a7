package table

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// Made is the result of Compile.
type Made struct {
	Entries int
	Size    int64
}

// Compile reads the text form of a table and puts a compiled table in the place of out.
// Readers have the old one or the new one, whole. progress gets how many of how many
// bytes were read or entries written. An error of the text is a
// *config.Error, and what was at out before stays.
func Compile(kind text.Kind, in, out string, progress func(phase string, done, of int64)) (Made, error) {
	h, entries, err := readText(kind, in, progress)
	if err != nil {
		return Made{}, err
	}
	if err := sweep(out); err != nil {
		return Made{}, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(out), temporary(out)+"*")
	if err != nil {
		return Made{}, fmt.Errorf("write %s: %w", out, err)
	}
	tmp.Close()
	size, err := writeDB(tmp.Name(), h.header, entries, progress)
	if err == nil {
		err = settle(tmp.Name(), out, h.sig)
	}
	if err != nil {
		return Made{}, errors.Join(fmt.Errorf("write %s: %w", out, err), os.Remove(tmp.Name()))
	}
	return Made{len(entries), size}, nil
}

// Check reads the text form of a table and gives the number of its entries; errors and
// progress are as Compile's.
func Check(kind text.Kind, in string, progress func(phase string, done, of int64)) (int, error) {
	_, entries, err := readText(kind, in, progress)
	return len(entries), err
}

// textHeader is what is known of a text form.
type textHeader struct {
	header
	sig signature
}

// readText reads and sorts the entries of a text form.
func readText(kind text.Kind, in string, progress func(string, int64, int64)) (textHeader, []text.Entry, error) {
	f, err := os.OpenFile(in, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return textHeader{}, nil, &config.Error{File: in, Reason: "cannot be read", Err: bare(err)}
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return textHeader{}, nil, &config.Error{File: in, Reason: "cannot be read", Err: bare(err)}
	}
	read := &counter{r: f, of: info.Size(), progress: progress}
	var entries []text.Entry
	err = text.Scan(kind, in, read, func(e text.Entry) error {
		if len(e.Key) > bbolt.MaxKeySize-len(keyPrefix) {
			return &config.Error{File: in, Line: e.Line, Reason: fmt.Sprintf("a key of %d bytes: a compiled table takes %d", len(e.Key), bbolt.MaxKeySize-len(keyPrefix))}
		}
		e.Values = nil // checked; the text is what is kept
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return textHeader{}, nil, err
	}
	// One that grew while it was read may have given half a line.
	if after, err := f.Stat(); err != nil || sign(after) != sign(info) {
		return textHeader{}, nil, &config.Error{File: in, Reason: "was changed while it was read; try again", Err: err}
	}
	slices.SortStableFunc(entries, func(a, b text.Entry) int { return cmp.Compare(a.Key, b.Key) })
	if entries, err = unique(kind, in, entries); err != nil {
		return textHeader{}, nil, err
	}
	return textHeader{header{
		Format: format, Kind: string(kind), Source: in, UID: Privilege(in, info),
		Entries: len(entries), Made: time.Now().UTC().Format(time.RFC3339),
	}, sign(info)}, entries, nil
}

// unique refuses a key that occurs twice; of localnames the second says nothing new.
func unique(kind text.Kind, in string, entries []text.Entry) ([]text.Entry, error) {
	if kind == text.LocalNames {
		return slices.CompactFunc(entries, func(a, b text.Entry) bool { return a.Key == b.Key }), nil
	}
	var worst error
	line := 0
	for i := 1; i < len(entries); i++ {
		if a, b := entries[i-1], entries[i]; a.Key == b.Key && (line == 0 || b.Line < line) {
			line = b.Line
			worst = &config.Error{File: in, Line: b.Line, Reason: fmt.Sprintf("%s is in line %d already", b.Key, a.Line)}
		}
	}
	return entries, worst
}

type counter struct {
	r        io.Reader
	done, of int64
	progress func(string, int64, int64)
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.done += int64(n)
	c.progress("read", c.done, c.of)
	return n, err
}

// batch is how many entries one transaction of a new table writes.
const batch = 20_000

// writeDB writes a compiled table into an empty file. Nothing of it counts before the
// file has its name, so no transaction is synced by itself.
func writeDB(path string, h header, entries []text.Entry, progress func(string, int64, int64)) (size int64, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: time.Second, NoSync: true, NoGrowSync: true, NoFreelistSync: true, NoStatistics: true,
		FreelistType: bbolt.FreelistMapType,
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.Update(func(tx *bbolt.Tx) error {
		head, err := h.encode()
		if err != nil {
			return err
		}
		b, err := tx.CreateBucket([]byte(headBucket))
		if err == nil {
			err = b.Put([]byte(headBucket), head)
		}
		if err == nil {
			_, err = tx.CreateBucket([]byte(entriesBucket))
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	keyAt := func(i int) []byte {
		switch {
		case i < 0:
			return []byte(firstKey)
		case i >= len(entries):
			return nil
		}
		return []byte(keyPrefix + entries[i].Key)
	}
	for start := -1; start < len(entries); start += batch {
		end := min(start+batch, len(entries))
		err := db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(entriesBucket))
			b.FillPercent = 1 // keys come in order, and nothing is added later
			for i := start; i < end; i++ {
				var r record
				if i >= 0 {
					r = record{entries[i].Line, entries[i].Text}
				}
				if err := b.Put(keyAt(i), r.encode(keyAt(i), keyAt(i+1))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		progress("write", int64(end), int64(len(entries)))
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), db.Sync()
}

// settle gives a new table the owner and mode of its text form, as far as we may, and
// its name: who may read or change the one may the other.
func settle(tmp, out string, of signature) error {
	if err := os.Chown(tmp, int(of.uid), int(of.gid)); err != nil {
		if os.Geteuid() == 0 {
			return err
		}
		_ = os.Chown(tmp, -1, int(of.gid)) // our groups may not hold it; then the mode decides
	}
	if err := os.Chmod(tmp, os.FileMode(of.mode)&0o666); err != nil {
		return err
	}
	// Its owner and mode are to be as durable as its content.
	if err := syncFile(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, out); err != nil {
		return err
	}
	// Crash: until the directory is synced the name leads to the old table or the new
	// one, both whole.
	return syncFile(filepath.Dir(out))
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// temporary returns how names of unfinished tables begin.
func temporary(out string) string { return "." + filepath.Base(out) + ".newdb-" }

// sweep removes what killed writers have left. One that is being written is locked.
func sweep(out string) error {
	left, err := os.ReadDir(filepath.Dir(out))
	if err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	for _, entry := range left {
		info, err := entry.Info()
		if !strings.HasPrefix(entry.Name(), temporary(out)) || err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // younger: its writer may be about to lock it
		}
		f, err := os.Open(filepath.Join(filepath.Dir(out), entry.Name()))
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			// Crash: nothing reads it, whether it is there or not.
			err = os.Remove(f.Name())
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("remove what an earlier writer has left: %w", err)
		}
	}
	return nil
}
