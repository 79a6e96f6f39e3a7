package logread

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// longest is how many bytes of one line are kept.
const longest = 1 << 20

// Each gives every line of a reader to fn, without its end, until fn errs. fn must not
// keep it.
func Each(r io.Reader, fn func(line []byte) error) error {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(b)
		if len(line) > 0 || err == nil {
			if ferr := fn(line); ferr != nil {
				return ferr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readLine reads to the end of a line; of a longer one the first megabyte.
func readLine(b *bufio.Reader) ([]byte, error) {
	part, err := b.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.TrimRight(part, "\r\n"), err
	}
	line := bytes.Clone(part)
	for errors.Is(err, bufio.ErrBufferFull) {
		part, err = b.ReadSlice('\n')
		if len(line) < longest {
			line = append(line, part...)
		}
	}
	return bytes.TrimRight(line, "\r\n"), err
}

// rotated returns what logrotate makes of a name: log.1, log.2.gz, log-20261122,
// log-20261122.zst.
func rotated() *regexp.Regexp { return regexp.MustCompile(`^[.-][0-9][0-9-]*(\.(gz|zst))?$`) }

// Rotated lists the files that were rotated away from path and written to since, oldest
// first.
func Rotated(path string, since time.Time) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("find older logs: %w", err)
	}
	type old struct {
		name string
		at   time.Time
	}
	var list []old
	form := rotated()
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), filepath.Base(path))
		if !ok || !form.MatchString(rest) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil || info.ModTime().Before(since) {
			continue // it has gone, or is too old
		}
		list = append(list, old{filepath.Join(filepath.Dir(path), e.Name()), info.ModTime()})
	}
	slices.SortStableFunc(list, func(a, b old) int { return a.at.Compare(b.at) })
	var names []string
	for _, o := range list {
		names = append(names, o.name)
	}
	return names, nil
}

// biggestWindow is the largest window of a .zst file that is read, as for zstd itself: it is
// held in memory. Bytes.
const biggestWindow = 128 << 20

// openLog opens a file of the log; a compressed one is read uncompressed.
func openLog(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	var r io.Reader
	in, done := bufio.NewReaderSize(f, 256<<10), f.Close
	switch filepath.Ext(path) {
	case ".gz":
		r, err = gzip.NewReader(in)
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(in, zstd.WithDecoderMaxWindow(biggestWindow)); err == nil {
			r, done = z, func() error {
				z.Close() // before the file that it reads ahead of us
				return f.Close()
			}
		}
	default:
		return f, nil
	}
	if errors.Is(err, io.EOF) { // its compression has just begun
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log %s: %w", path, errors.Join(err, f.Close()))
	}
	return struct {
		io.Reader
		io.Closer
	}{r, closer(done)}, nil
}

type closer func() error

func (c closer) Close() error { return c() }

// EachOf gives every line of a file to fn; of a compressed one, too.
func EachOf(path string, fn func(line []byte) error) error {
	r, err := openLog(path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err = Each(r, fn); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read the log %s: %w", path, err)
	}
	return nil // one that is being compressed ends early
}

// everyLook is how often a followed file is looked at.
const everyLook = 200 * time.Millisecond

// Follow gives the lines of a file from its start, and then those that are added, until
// ctx is done: by its name, so that it goes on in the new file when it is rotated.
// atEnd is called each time that there is no more for now.
func Follow(ctx context.Context, path string, fn func(line []byte) error, atEnd func() error) error {
	tick := time.NewTicker(everyLook)
	defer tick.Stop()
	var t tail
	defer t.close()
	for {
		if err := t.read(path, fn); err != nil {
			return fmt.Errorf("follow the log %s: %w", path, err)
		}
		if err := atEnd(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// tail is a file that grows.
type tail struct {
	f    *os.File
	at   int64
	part []byte // of a line whose end is not written yet
}

func (t *tail) close() {
	if t.f != nil {
		_ = t.f.Close() // it was read only
	}
	t.f, t.at, t.part = nil, 0, nil
}

// read passes on added lines; when the name leads to another file, first the rest of the
// old one.
func (t *tail) read(path string, fn func([]byte) error) error {
	if t.f != nil {
		if err := t.rest(fn); err != nil {
			return err
		}
		old, err := t.f.Stat()
		if err != nil {
			return err
		}
		now, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (os.SameFile(old, now) || now.Size() == 0) {
			return nil // the daemons write to the old one until they reopen it
		}
		if err != nil {
			return err
		}
		// What was written between the two looks.
		if err := t.rest(fn); err != nil {
			return err
		}
		t.close()
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it comes
	}
	if err != nil {
		return err
	}
	t.f = f
	return t.rest(fn)
}

// rest passes on the complete lines after those that were read. A file that has become shorter is
// read from its start.
func (t *tail) rest(fn func([]byte) error) error {
	info, err := t.f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < t.at {
		t.at, t.part = 0, nil
	}
	b := make([]byte, 64<<10)
	for {
		n, err := t.f.ReadAt(b, t.at)
		t.at += int64(n)
		t.part = append(t.part, b[:n]...)
		for {
			i := bytes.IndexByte(t.part, '\n')
			if i < 0 {
				break
			}
			line := bytes.TrimRight(t.part[:i], "\r")
			t.part = t.part[i+1:]
			if len(line) == 0 {
				continue
			}
			if err := fn(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
