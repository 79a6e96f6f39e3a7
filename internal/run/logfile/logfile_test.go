package logfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func lost(lines int) []byte { return fmt.Appendf(nil, "lost %d\n", lines) }

func text(t *testing.T, name string) string {
	t.Helper()
	b := assert.Get(os.ReadFile(name))(t)
	return string(b)
}

// M42: a rotation while many write loses no line and parts none: each is whole in one file.
func TestReopenLosesAndPartsNoLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := assert.Get(Open(path, false, lost))(t)
	const writers, each, rotations = 4, 3000, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range each {
				if _, err := fmt.Fprintf(l.In(), "writer %d line %d %s\n", w, n, strings.Repeat("x", n%200)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range rotations {
		assert.Must(t, os.Rename(path, fmt.Sprintf("%s.%d", path, n)))
		assert.Must(t, l.Reopen())
	}
	wg.Wait()
	assert.Must(t, l.Close())
	got := 0
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) != rotations+1 {
		t.Fatalf("got %d files, %v", len(names), err)
	}
	for _, name := range names {
		for line := range strings.Lines(text(t, name)) {
			got++
			if !strings.HasPrefix(line, "writer ") || !strings.HasSuffix(line, "\n") || strings.Count(line, "writer") != 1 {
				t.Fatalf("%s: got %q", name, line)
			}
		}
	}
	assert.Equal(t, got, writers*each, "lines")
}

// A full disk holds up no one; how much was lost is logged when there is room again.
func TestFullDiskLosesLinesAndTellsHowMany(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	assert.Must(t, os.Symlink("/dev/full", path))
	l := assert.Get(Open(path, false, lost))(t)
	for n := range 1000 { // more than a pipe holds
		assert.Get(fmt.Fprintf(l.In(), "%d %s\n", n, strings.Repeat("x", 500)))(t)
	}
	deadline := time.After(20 * time.Second)
	for dropped := 0; dropped < 1000; {
		select {
		case <-deadline:
			t.Fatalf("got %d lines dropped", dropped)
		case <-time.After(time.Millisecond):
			l.mu.Lock()
			dropped = l.dropped
			l.mu.Unlock()
		}
	}
	assert.Must(t, os.Remove(path))
	assert.Must(t, l.Reopen())
	fmt.Fprintln(l.In(), "again")
	assert.Must(t, l.Close())
	assert.Equal(t, text(t, path), "lost 1000\nagain\n")
}

// A Reopen that fails leaves the old file in use.
func TestReopenThatFailsKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	l := assert.Get(Open(path, false, lost))(t)
	old := path + ".1"
	assert.Must(t, os.Rename(path, old))
	assert.Must(t, os.Mkdir(path, 0o700))
	if err := l.Reopen(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error with the name", err)
	}
	fmt.Fprint(l.In(), "still here\nwithout an end")
	assert.Must(t, l.Close())
	assert.Equal(t, text(t, old), "still here\nwithout an end")
	if _, err := Open(path, false, lost); err == nil {
		t.Error("a directory was opened as a log")
	}
}

// What is there is appended to, and the mode shuts out others.
func TestOpenAppends(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for range 2 {
		l := assert.Get(Open(path, false, lost))(t)
		fmt.Fprintln(l.In(), "a line")
		assert.Must(t, l.Close())
	}
	info := assert.Get(os.Stat(path))(t)
	if got := text(t, path); got != "a line\na line\n" || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("got %q, %v", got, info.Mode())
	}
}

// Op1: the directory of a log is made; what Check has no objection to can be opened, and what it
// refuses cannot.
func TestOp1LogIsMadeWithItsDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	assert.Must(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]bool{
		filepath.Join(dir, "made", "log"):   true,
		filepath.Join(dir, "log"):           true,
		file:                                true,
		dir:                                 false,
		filepath.Join(file, "log"):          false,
		filepath.Join(file, "x", "log"):     false,
		filepath.Join(dir, "a", "b", "log"): false,
	} {
		assert.Equal(t, Check(path) == nil, want, path)
		f, err := OpenFile(path, false)
		assert.Equal(t, err == nil, want, path, err)
		if err == nil {
			assert.Must(t, f.Close())
		}
	}
}

// A disk that fills up takes a part of a line: the next begins on a line of its own.
func TestLineBehindATornOneStandsAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := assert.Get(OpenFile(path, false))(t)
	assert.Get(f.WriteString("one\ntw"))(t)
	l := &File{path: path, lost: lost, f: f, torn: true, dropped: 2}
	l.write([]byte("three\n"))
	l.write([]byte("four\n"))
	assert.Equal(t, text(t, path), "one\ntw\nlost 2\nthree\nfour\n")
	assert.Must(t, f.Close())
}
