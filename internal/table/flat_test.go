package table

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/table/text"
)

// largeTable compiles n aliases.
func largeTable(t testing.TB, n int) string {
	t.Helper()
	return compiled(t, t.TempDir(), text.Aliases, manyAliases(n))
}

// depth returns how many pages of the tree lead to an entry.
func depth(t testing.TB, path string) int {
	t.Helper()
	db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true})
	assert.Must(t, err)
	defer db.Close()
	deep := 0
	err = db.View(func(tx *bbolt.Tx) error {
		deep = tx.Bucket([]byte(entriesBucket)).Stats().Depth
		return nil
	})
	assert.Must(t, err)
	return deep
}

// pagesRead returns how many pages a lookup reads from the disk if none is in memory, in the
// middle of some lookups; 0: this file system keeps all in memory.
func pagesRead(t *testing.T, path string, n int) int64 {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all []int64
	for range 21 {
		f := assert.Get(os.Open(path))(t)
		assert.Must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		f.Close()
		k := assert.Get(Open("db:"+path, Options{Name: "aliases"}))(t)
		key := fmt.Sprintf("user%d", rand.IntN(n))
		var before, after unix.Rusage
		assert.Must(t, unix.Getrusage(unix.RUSAGE_THREAD, &before))
		got := says(k, key)
		assert.Must(t, unix.Getrusage(unix.RUSAGE_THREAD, &after))
		if got == "error" || got == "none" {
			t.Fatalf("%s: got %s", key, got)
		}
		all = append(all, after.Majflt-before.Majflt)
		assert.Must(t, k.Close())
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// What a lookup costs does not grow with the table: as many pages as the tree is deep, a
// level more for a table a hundred times as large, and the same memory.
func TestLookupCostsTheSameInALargeTable(t *testing.T) {
	sizes := []int{10, 1000, 100_000}
	switch {
	case testing.Short():
		sizes = []int{10, 2000}
	case os.Getenv("LARGE_TABLES") != "":
		sizes = append(sizes, 1_000_000)
	}
	var least float64
	for i, n := range sizes {
		path := largeTable(t, n)
		deep, read := depth(t, path), pagesRead(t, path, n) // before it is held in memory
		k := openAs(t, "db:"+path, Options{Name: "aliases"})
		at := 0
		hit := testing.AllocsPerRun(200, func() {
			at += 7
			if got := says(k, "user"+fmt.Sprint(at%n)); got == "none" || got == "error" {
				t.Fatalf("got %s", got)
			}
		})
		miss := testing.AllocsPerRun(200, func() {
			if got := says(k, "zuser"); got != "none" {
				t.Fatalf("got %s", got)
			}
		})
		info := assert.Get(os.Stat(path))(t)
		t.Logf("%8d entries, %9d bytes: depth %d, %d pages read when cold, %.0f allocations for a hit, %.0f for a miss", n, info.Size(), deep, read, hit, miss)
		if i == 0 {
			least = hit + miss
		}
		if hit+miss > least+8 {
			t.Errorf("%d entries: %.0f and %.0f allocations, %.0f together with %d", n, hit, miss, least, sizes[0])
		}
		if deep > 4 {
			t.Errorf("%d entries: depth %d, want 4 at most", n, deep)
		}
		// Besides the tree: the page that says where it begins, and the next entry's.
		if limit := int64(deep + 2); read > limit {
			t.Errorf("%d entries: a lookup reads %d pages, want %d at most", n, read, limit)
		}
	}
}
