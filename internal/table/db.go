package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"zmailer/internal/run/config"
)

// grace is how long the table that was read before serves after its file was taken away
// or replaced by one that cannot be used: a replacement that is not atomic may be under
// way. Then its lookups fail.
const grace = time.Minute

// again is how long a file that could not be used is not tried again, unless it changes.
const again = time.Second

// db is a compiled table. It is mapped into memory, of which a lookup touches as many
// pages as the tree is deep, and opened anew when another file has its path.
type db struct {
	path   string
	source string // for operators
	o      Options

	mu     sync.RWMutex // held for reading while file is used
	file   *dbFile      // nil: none could be opened
	closed bool
	failed time.Time // when the path first had no table that could be used; zero: it has one
	reason error     // why
	next   time.Time // when that is tried again, if it is still the file
	tried  signature // that could not be used
}

// dbFile is one state of a compiled table.
type dbFile struct {
	bolt *bbolt.DB
	sig  signature
	uid  uint32 // privilege of its values
	// damaged is set by a lookup that found it so.
	damaged bool
}

// openDB opens a compiled table, which must be there.
func openDB(s Source, o Options) (Table, error) {
	d := &db{path: s.Rest, source: s.Scheme + ":" + s.Rest, o: o}
	f, err := d.open()
	if err != nil {
		reason := "cannot be used"
		if errors.Is(err, fs.ErrNotExist) {
			reason = "is not there; zmctl newdb makes it from its text form"
		}
		return nil, &config.Error{File: d.path, Reason: reason, Err: bare(err)}
	}
	d.file = f
	return d, nil
}

// bare removes the path from an error that will follow it.
func bare(err error) error {
	if perr := (*os.PathError)(nil); errors.As(err, &perr) {
		return perr.Err
	}
	return err
}

// Lookup returns the value of a key, or the proof that there is none.
func (d *db) Lookup(ctx context.Context, key string) (v Value, ok bool, err error) {
	// Once more if the file was changed under the first.
	for range 2 {
		var f *dbFile
		if f, err = d.current(); err != nil {
			break // current holds no lock then
		}
		var r record
		r, ok, err = f.lookup(key)
		uid := f.uid
		d.mu.RUnlock()
		if err == nil {
			return Value{r.text, uid, fmt.Sprintf("%s:%d", d.source, r.line)}, ok, nil
		}
		d.damaged(f)
		if ctx.Err() != nil {
			break
		}
	}
	return Value{}, false, fmt.Errorf("%s: %w", d.source, bare(err))
}

// current returns the file of now, with d.mu held for reading.
func (d *db) current() (*dbFile, error) {
	sig, err := signPath(d.path)
	d.mu.RLock()
	if d.file != nil && err == nil && sig == d.file.sig && !d.file.damaged && d.reason == nil {
		return d.file, nil
	}
	d.mu.RUnlock()
	if err := d.reopen(); err != nil {
		return nil, err
	}
	d.mu.RLock()
	if d.file == nil {
		defer d.mu.RUnlock()
		return nil, fs.ErrClosed
	}
	return d.file, nil
}

// reopen puts the file that has the path now in place of d.file. A file that was moved
// away or over, and so is whole, goes on to serve for a while if that cannot be done.
func (d *db) reopen() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	sig, err := signPath(d.path)
	if err == nil && d.file != nil && sig == d.file.sig && !d.file.damaged {
		d.failed, d.reason = time.Time{}, nil
		return nil // it is back, or another goroutine was faster
	}
	now := d.o.Now()
	var f *dbFile
	switch {
	case d.closed:
		return fs.ErrClosed
	case err != nil:
	case d.reason != nil && sig == d.tried && now.Before(d.next):
		err = d.reason // it cannot be used, as was found before
	default:
		d.next = now.Add(again)
		f, err = d.open()
	}
	if err == nil {
		if d.file == nil || d.file.sig != f.sig {
			d.o.Log.Info("table-read", "file", d.path)
		}
		if d.file != nil {
			d.file.bolt.Close()
		}
		d.file, d.failed, d.reason = f, time.Time{}, nil
		return nil
	}
	// One that was written to in place is not what it was.
	intact := d.file != nil && !d.file.damaged && (errors.Is(err, fs.ErrNotExist) || sig.ino != d.file.sig.ino || sig.dev != d.file.sig.dev)
	if d.failed.IsZero() {
		d.failed = now
	}
	if d.reason == nil || d.reason.Error() != err.Error() {
		kept := "nothing: its mail is deferred"
		if intact {
			kept = fmt.Sprintf("the table as it was read before, for %v", grace)
		}
		d.o.Log.Error("table-refused", "file", d.path, "reason", err, "kept", kept)
	}
	d.reason, d.tried = err, sig
	if intact && now.Sub(d.failed) < grace {
		return nil
	}
	return err
}

func (d *db) damaged(f *dbFile) {
	d.mu.Lock()
	f.damaged = true
	d.mu.Unlock()
}

// Close ends the use of the file.
func (d *db) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file == nil {
		return nil
	}
	err := d.file.bolt.Close()
	d.file, d.closed = nil, true
	return err
}

// open opens the file at the path and checks that it is a compiled table of our kind.
func (d *db) open() (*dbFile, error) {
	f := &dbFile{}
	// bbolt would make an empty file a table, and wait for the other end of a pipe.
	info, err := os.Stat(d.path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, errors.New("no compiled table: not a regular file, or empty")
	}
	var opened fs.FileInfo
	err = guard(func() (err error) {
		f.bolt, err = bbolt.Open(d.path, 0, &bbolt.Options{
			ReadOnly: true, Timeout: time.Second, NoStatistics: true,
			OpenFile: func(name string, _ int, _ os.FileMode) (*os.File, error) {
				file, err := os.Open(name)
				if err != nil {
					return nil, err
				}
				opened, err = file.Stat()
				return file, err
			},
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("no compiled table: %w", bare(err))
	}
	f.sig = sign(opened)
	h, err := f.header()
	if err == nil && d.o.Name != "" && h.Kind != d.o.Name {
		err = fmt.Errorf("made of %s, not of %s", h.Kind, d.o.Name)
	}
	if err != nil {
		f.bolt.Close()
		return nil, err
	}
	f.uid = Nobody
	if owner := privilege(d.path, f.sig); owner != Nobody {
		f.uid = actsAs(owner, h.UID)
	}
	return f, nil
}

// guard runs do. That a file was cut shorter than its map, or that its tree is nonsense,
// is an error and no crash.
func guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged, or being overwritten: %v", p)
		}
	}()
	return do()
}

func (f *dbFile) view(do func(tx *bbolt.Tx) error) error {
	return guard(func() error { return f.bolt.View(do) })
}

func (f *dbFile) header() (h header, err error) {
	err = f.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(headBucket))
		if b == nil || tx.Bucket([]byte(entriesBucket)) == nil {
			return errors.New("no compiled table: another program's bbolt file")
		}
		h, err = decodeHeader(bytes.Clone(b.Get([]byte(headBucket))))
		return err
	})
	return h, err
}

// lookup returns the record of a key; false: it is proven that there is none.
func (f *dbFile) lookup(key string) (r record, ok bool, err error) {
	err = f.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(entriesBucket))
		if b == nil {
			return errDamaged
		}
		want := []byte(keyPrefix + key)
		c := b.Cursor()
		k, v := c.Seek(want)
		if bytes.Equal(k, want) {
			// The map may change under what is being checked.
			k, v = bytes.Clone(k), bytes.Clone(v)
			next, _ := c.Next()
			r, err = decode(k, bytes.Clone(next), v)
			ok = err == nil
			return err
		}
		next := bytes.Clone(k)
		before, v := c.Prev()
		if k == nil {
			before, v = c.Last()
		}
		before = bytes.Clone(before)
		if _, err := decode(before, next, bytes.Clone(v)); err != nil {
			return err
		}
		if bytes.Compare(before, want) >= 0 || next != nil && bytes.Compare(want, next) >= 0 {
			return errDamaged
		}
		return nil
	})
	return r, ok && err == nil, err
}
