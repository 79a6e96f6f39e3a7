package durabletest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

func open(t *testing.T, f durable.FS, name string) durable.File {
	t.Helper()
	file, err := f.Open(name, os.O_RDWR|os.O_CREATE, 0o600)
	assert.Must(t, err)
	return file
}

func try(t *testing.T, what string, file durable.File, want bool) {
	t.Helper()
	got, err := file.TryLock()
	if got != want || err != nil {
		t.Errorf("%s: got %v, %v, want %v", what, got, err, want)
	}
}

func flockExcludes(t *testing.T, f durable.FS) {
	a, b := open(t, f, "x"), open(t, f, "x")
	try(t, "free file", a, true)
	try(t, "again by its holder", a, true)
	try(t, "by another open file", b, false)
	assert.Must(t, f.RenameNew("x", "y"))
	try(t, "after a rename", b, false)
	assert.Must(t, a.Unlock())
	try(t, "after unlock", b, true)
	assert.Must(t, b.Close())
	try(t, "after close", a, true)
	assert.Must(t, a.Close())
}

func share(t *testing.T, what string, file durable.File, want bool) {
	t.Helper()
	got, err := file.TryShare()
	if got != want || err != nil {
		t.Errorf("%s: got %v, %v, want %v", what, got, err, want)
	}
}

func flockIsShared(t *testing.T, f durable.FS) {
	a, b, c := open(t, f, "x"), open(t, f, "x"), open(t, f, "x")
	share(t, "free file", a, true)
	share(t, "beside another", b, true)
	share(t, "again by its holder", a, true)
	try(t, "exclusive, shared by two", c, false)
	try(t, "exclusive by one of the two", a, false)
	share(t, "after a refusal", a, true)
	assert.Must(t, b.Close())
	try(t, "exclusive by the last that shares", a, true)
	share(t, "held by another", c, false)
	share(t, "by the holder, who gives up the exclusive one", a, true)
	share(t, "beside it", c, true)
	assert.Must(t, a.Unlock())
	assert.Must(t, c.Close())
	try(t, "after unlock and close", a, true)
	assert.Must(t, a.Close())
}

func flockIsWaitedFor(t *testing.T, f durable.FS) {
	a, b := open(t, f, "x"), open(t, f, "x")
	assert.Must(t, a.WaitLock())
	var released atomic.Bool
	got := make(chan error, 1)
	go func() {
		err := b.WaitLock()
		if err == nil && !released.Load() {
			err = errors.New("the lock was given while it was held")
		}
		got <- err
	}()
	released.Store(true)
	assert.Must(t, a.Unlock())
	assert.Must(t, <-got)
	try(t, "after the other got it", a, false)
	assert.Must(t, a.Close())
	assert.Must(t, b.Close())
}

func lockExcludes(t *testing.T, f durable.FS) {
	l, err := f.Lock("l", []byte("pid 1\n"))
	assert.Must(t, err)
	assert.Equal(t, read(t, f, "l"), "pid 1\n")
	_, err = f.Lock("l", []byte("pid 2\n"))
	refused(t, "second lock", err, durable.ErrLocked, "l")
	assert.Equal(t, read(t, f, "l"), "pid 1\n")
	assert.Must(t, l.Release())
	_, err = f.Stat("l")
	refused(t, "lock file after release", err, fs.ErrNotExist, "l")
	l, err = f.Lock("l", nil)
	assert.Must(t, err)
	// Somebody removed the file by hand: release is still no error.
	assert.Must(t, f.Remove("l"))
	assert.Must(t, l.Release())
}

func leftLockFileIsTaken(t *testing.T, f durable.FS) {
	write(t, f, "l", "a process that died, with a long line\n")
	l, err := f.Lock("l", []byte("pid 2\n"))
	assert.Must(t, err)
	assert.Equal(t, read(t, f, "l"), "pid 2\n")
	assert.Must(t, l.Release())
}

// Many take and release one lock; between open and flock the file may have been
// unlinked and made again, and two must never both believe that they have it.
func lockIsNeverHeldTwice(t *testing.T, f durable.FS) {
	const takers, rounds = 6, 25
	var holders, taken atomic.Int32
	var wait sync.WaitGroup
	for range takers {
		wait.Go(func() {
			for done := 0; done < rounds; {
				l, err := f.Lock("l", []byte("x"))
				if errors.Is(err, durable.ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				assert.Equal(t, holders.Add(1), 1, "holders")
				taken.Add(1)
				holders.Add(-1)
				if err := l.Release(); err != nil {
					t.Error(err)
					return
				}
				done++
			}
		})
	}
	wait.Wait()
	assert.Equal(t, taken.Load(), takers*rounds)
}

// M19: lines that several processes append with one write each stay whole.
func appendersDoNotMix(t *testing.T, f durable.FS) {
	const writers, lines = 8, 100
	write(t, f, "x", "")
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			file, err := f.Open("x", os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range lines {
				if _, err := fmt.Fprintf(file, "%d %d %s\n", w, i, strings.Repeat("x", 50+i)); err != nil {
					t.Error(err)
				}
			}
			assert.NoError(t, file.Close())
		})
	}
	wait.Wait()
	next := [writers]int{}
	for line := range strings.Lines(read(t, f, "x")) {
		var w, i int
		var rest string
		if _, err := fmt.Sscanf(line, "%d %d %s\n", &w, &i, &rest); err != nil || i != next[w] || len(rest) != 50+i {
			t.Fatalf("got %q (%v), want line %d of writer %d", line, err, next[w], w)
		}
		next[w]++
	}
	for w, n := range next {
		assert.Equal(t, n, lines, "lines of writer %d", w)
	}
}
