package cutfs

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/durabletest"
	"zmailer/internal/run/assert"
)

// K1: in every model the test disk passes the suite of the real file system.
func TestEveryModelPassesTheSuite(t *testing.T) {
	for _, m := range []Model{Loose, POSIX} {
		t.Run(m.String(), func(t *testing.T) {
			durabletest.Run(t, func(*testing.T) durable.FS {
				f := New()
				f.SetModel(m)
				return f
			})
		})
	}
}

// pair returns a disk with two files that are durable as a/x and a/y, and directory b.
func pair(t *testing.T, m Model) *FS {
	t.Helper()
	f := New()
	f.SetModel(m)
	assert.Must(t, f.Mkdir("a", 0o700))
	assert.Must(t, f.Mkdir("b", 0o700))
	for _, name := range []string{"a/x", "a/y"} {
		file := createFile(t, f, name, name)
		assert.Must(t, file.Sync())
		assert.Must(t, file.Close())
	}
	for _, dir := range []string{"a", "b", "."} {
		assert.Must(t, f.SyncDir(dir))
	}
	return f
}

// where returns which of some names are there.
func where(t *testing.T, f *FS, names ...string) string {
	t.Helper()
	var there []string
	for _, name := range names {
		if show(t, f, name) != "-" {
			there = append(there, name)
		}
	}
	return strings.Join(there, " ")
}

func TestRenamesOfTwoFilesAreLostIndependently(t *testing.T) {
	for m, want := range map[Model]string{
		Journal: "[a/x a/y] [b/x a/y] [b/x b/y]",
		Loose:   "[a/x a/y] [a/x b/y] [b/x a/y] [b/x b/y]",
		POSIX:   "[a/x a/y] [a/x b/y] [b/x a/y] [b/x b/y]",
	} {
		f := pair(t, m)
		assert.Must(t, f.RenameNew("a/x", "b/x"))
		assert.Must(t, f.RenameNew("a/y", "b/y"))
		var got []string
		for _, loss := range f.Losses()[1:] {
			got = append(got, "["+where(t, f.Restart(loss), "a/x", "b/x", "a/y", "b/y")+"]")
		}
		assert.Equal(t, strings.Join(got, " "), want, m)
	}
}

func TestWhatIsDoneToOneFileKeepsItsOrder(t *testing.T) {
	f := pair(t, Loose)
	assert.Must(t, f.RenameNew("a/x", "b/x"))
	assert.Must(t, f.RenameNew("b/x", "a/z"))
	assert.Must(t, f.Remove("a/z"))
	var got []string
	for _, loss := range f.Losses()[1:] {
		got = append(got, where(t, f.Restart(loss), "a/x", "b/x", "a/z"))
	}
	slices.Sort(got)
	assert.Same(t, got, []string{"", "a/x", "a/z", "b/x"})
}

func TestNameIsNeverWithoutItsDirectoryAndHoldsOneFile(t *testing.T) {
	f := pair(t, Loose)
	assert.Must(t, f.Mkdir("c", 0o700))
	assert.Must(t, f.RenameNew("a/x", "c/x"))
	assert.Must(t, f.RenameNew("a/y", "a/x"))
	for _, loss := range f.Losses()[1:] {
		r := f.Restart(loss)
		first, second := show(t, r, "a/x")+show(t, r, "c/x"), show(t, r, "a/y")
		if moved := show(t, r, "a/x") == "a/y"; moved && show(t, r, "c/x") != "a/x" || !moved && second != "a/y" || first == "--" {
			t.Errorf("%v: got a/x %q, a/y %q, c/x %q", loss, show(t, r, "a/x"), second, show(t, r, "c/x"))
		}
	}
}

func TestSyncOfAFileCoversItsNamesByModel(t *testing.T) {
	for m, want := range map[Model]string{Journal: "a/y d/new", Loose: "a/x d/new", POSIX: "a/x"} {
		f := pair(t, m)
		assert.Must(t, f.RenameNew("a/x", "b/x")) // older, of another file
		assert.Must(t, f.Mkdir("d", 0o700))
		file := createFile(t, f, "d/new", "abc")
		assert.Must(t, file.Chmod(0o700))
		assert.Must(t, file.Sync())
		r := f.Restart(LoseUnsynced(0))
		got := where(t, r, "a/x", "d/new")
		if m == Journal {
			got = where(t, r, "a/y", "a/x", "d/new")
		}
		assert.Equal(t, got, want, "%v: %s", m, f.Changes(LoseUnsynced(0)))
		if m == POSIX {
			assert.Must(t, f.SyncDir("."))
			assert.Must(t, f.SyncDir("d"))
			assert.Equal(t, where(t, f.Restart(LoseUnsynced(0)), "d/new"), "d/new", "%v: directory synced", m)
		}
		if info, err := f.Restart(MetadataFirst()).Stat("d/new"); err != nil || info.Mode != 0o700 || info.Size != 3 {
			t.Errorf("%v: got %+v, %v, want what was synced", m, info, err)
		}
	}
}

// Dur3: in model POSIX the sync of a directory makes the names in it durable, and no name
// of a directory above it: without that, all that is in it is lost. In any order of the
// syncs all is there when every directory on the way was synced.
func TestDur3SyncOfADirectoryDoesNotCoverItsOwnName(t *testing.T) {
	all := []string{".", "c", "c/d"}
	for _, order := range [][]string{{".", "c", "c/d"}, {"c/d", "c", "."}, {"c", "c/d", "."}, {"c/d", ".", "c"}} {
		for n := range len(order) + 1 {
			f := pair(t, POSIX)
			assert.Must(t, f.Mkdir("c", 0o700))
			assert.Must(t, f.Mkdir("c/d", 0o700))
			file := createFile(t, f, "c/d/new", "abc")
			assert.Must(t, file.Sync())
			assert.Must(t, file.Close())
			assert.Must(t, f.RenameNew("a/x", "c/d/x"))
			for _, dir := range order[:n] {
				assert.Must(t, f.SyncDir(dir))
			}
			want := "a/x"
			if n == len(all) {
				want = "c/d/x c/d/new"
			}
			for _, f := range []*FS{f, f.Restart(KeepAll())} {
				assert.Equal(t, where(t, f.Restart(LoseUnsynced(0)), "a/x", "c/d/x", "c/d/new"), want, "synced %v: %s", order[:n], f.Changes(LoseUnsynced(0)))
				for _, loss := range f.Losses() {
					if got := where(t, f.Restart(loss), "a/x", "c/d/x"); got != "a/x" && got != "c/d/x" {
						t.Errorf("synced %v, %v: the renamed file has the names %q", order[:n], loss, got)
					}
				}
			}
		}
	}
}

func TestSyncOfADirectoryCoversItsEntriesAlone(t *testing.T) {
	for _, m := range []Model{Loose, POSIX} {
		f := pair(t, m)
		assert.Must(t, f.RenameNew("a/x", "b/x"))
		assert.Must(t, f.Mkdir("c", 0o700))
		assert.Must(t, f.Link("a/y", "c/y"))
		assert.Must(t, f.SyncDir("b"))
		r := f.Restart(LoseUnsynced(0))
		assert.Equal(t, where(t, r, "a/x", "b/x", "a/y"), "b/x a/y", m)
		if _, err := r.Stat("c"); err == nil {
			t.Errorf("%v: c is there; its sync was not asked for", m)
		}
	}
}

func TestInodeNumberIsWithheldUntilItsLastFileIsGoneFromTheDisk(t *testing.T) {
	f := pair(t, Loose)
	old, err := f.Stat("a/x")
	assert.Must(t, err)
	assert.Must(t, f.Remove("a/x"))
	assert.Must(t, createFile(t, f, "b/1", "").Close())
	if got, err := f.Stat("b/1"); err != nil || got.Ino == old.Ino {
		t.Errorf("removal pending: got inode %d, %v", got.Ino, err)
	}
	assert.Must(t, f.SyncDir("a"))
	assert.Must(t, f.SyncDir("b"))
	assert.Must(t, createFile(t, f, "b/2", "").Close())
	if got, err := f.Stat("b/2"); err != nil || got.Ino != old.Ino {
		t.Errorf("removal durable: got inode %d, %v, want %d", got.Ino, err, old.Ino)
	}
}

func TestZeroedAndTornBlocks(t *testing.T) {
	f := New()
	f.SetModel(Loose)
	f.SetBlock(4)
	file := createFile(t, f, "x", "01234567")
	assert.Must(t, file.Sync())
	_, err := file.WriteAt([]byte("TAG"), 3)
	assert.Must(t, err)
	_, err = file.WriteAt([]byte("more line\n"), 8)
	assert.Must(t, err)
	assert.Equal(t, show(t, f.Restart(Loss{Power: true, Data: DataZeroed}), "x"), "01234567"+strings.Repeat("\x00", 10), "zeroed")
	seen := map[string]bool{}
	for seed := range uint64(300) {
		got := show(t, f.Restart(Loss{Power: true, Data: DataBlocks, Seed: seed}), "x")
		seen[got] = true
		for at, versions := range map[int][]string{0: {"0123", "012T"}, 4: {"4567", "AG67"}} {
			if !slices.Contains(versions, got[at:at+4]) {
				t.Errorf("seed %d: got %q: block at %d", seed, got, at)
			}
		}
	}
	for _, want := range []string{"012T4567", "0123AG67more line\n", "012TAG67\x00\x00\x00\x00 lin"} {
		if !seen[want] && !seen[want+"e\n"] {
			t.Errorf("%q never came", want)
		}
	}
}

func TestWriteBackMakesAllDurable(t *testing.T) {
	f := pair(t, POSIX)
	f.WriteBackAfter(2)
	file := createFile(t, f, "b/z", "abc") // two operations
	appendText(t, file, "def")
	assert.Equal(t, show(t, f.Restart(LoseUnsynced(0)), "b/z"), "abc")
}

func TestLossIsReadBack(t *testing.T) {
	f := pair(t, Loose)
	assert.Must(t, f.RenameNew("a/x", "b/x"))
	assert.Must(t, f.RenameNew("a/y", "b/y"))
	random := rand.New(rand.NewPCG(1, 2))
	list := append(f.Losses(), MetadataFirst(), LoseUnsynced(1))
	for range 50 {
		list = append(list, f.RandomLoss(random))
	}
	for _, want := range list {
		if got, err := ParseLoss(want.String()); err != nil || got != want {
			t.Errorf("%v: got %v, %v", want, got, err)
		}
	}
	for _, bad := range []string{"", "power lost, names=x data=none", "power lost, names=1 data=some", "power lost, x=1", "power lost, keep=a"} {
		if _, err := ParseLoss(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	assert.Equal(t, f.Changes(Loss{Power: true, Keep: "1"}), "lost 0: rename a/x b/x\nkept 1: rename a/y b/y\n")
}

// Too many sets: each file and each directory is robbed and favoured once.
func TestManyChangesAreTriedByFileAndDirectory(t *testing.T) {
	f := pair(t, Loose)
	for i := range 8 {
		assert.Must(t, createFile(t, f, fmt.Sprintf("a/%d", i), "").Close())
	}
	if sets, all := f.Subsets(100); all {
		t.Fatalf("got %d sets", len(sets))
	}
	only, without := map[int]bool{}, map[int]bool{}
	for _, loss := range f.Losses()[1:] {
		r := f.Restart(loss)
		n, last, missing := 0, 0, 0
		for i := range 8 {
			if show(t, r, fmt.Sprintf("a/%d", i)) != "-" {
				n, last = n+1, i
			} else {
				missing = i
			}
		}
		only[last], without[missing] = only[last] || n == 1, without[missing] || n == 7
	}
	for i := range 8 {
		if !only[i] || !without[i] {
			t.Errorf("file %d: alone %v, missing alone %v", i, only[i], without[i])
		}
	}
}

// Whatever is done and however the power goes in a model without order: what a sync
// promised is there, and what is there can be read.
func FuzzLooseRestart(f *testing.F) {
	f.Add([]byte("cwscwxlrmutsdcks"), uint64(3), false)
	f.Add([]byte("cccwwwsssrrrmmmuuu"), uint64(1), true)
	f.Fuzz(func(t *testing.T, script []byte, seed uint64, posix bool) {
		disk := New()
		disk.SetBlock(2)
		if disk.SetModel(Loose); posix {
			disk.SetModel(POSIX)
		}
		assert.Must(t, disk.Mkdir("d", 0o700))
		assert.Must(t, disk.SyncDir("."))
		paths := []string{"a", "b", "d/a", "d/b", "d/c"}
		promised := map[uint64]string{} // inode -> synced with its directory and left alone since
		for i, b := range script {
			name, other := paths[i%len(paths)], paths[(i*7+3)%len(paths)]
			for _, n := range []string{name, other} {
				if info, err := disk.Stat(n); err == nil && b%7 != 5 {
					delete(promised, info.Ino)
				}
			}
			switch b % 7 {
			case 0, 1:
				if file, err := disk.openFile(name, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
					_, _ = file.Write([]byte("data"))
					_ = file.Close()
				}
			case 2:
				_ = disk.Rename(name, other)
			case 3:
				_ = disk.Link(name, other)
			case 4:
				_ = disk.Remove(name)
			case 5:
				if file, err := disk.openFile(name, os.O_RDWR, 0); err == nil {
					_ = file.Sync()
					_ = file.Close()
					assert.Must(t, disk.SyncDir("."))
					assert.Must(t, disk.SyncDir("d"))
					info, err := disk.Stat(name)
					assert.Must(t, err)
					promised[info.Ino] = name
				}
			case 6:
				_, _ = disk.openFile(name, os.O_RDWR|os.O_TRUNC, 0)
			}
		}
		random := rand.New(rand.NewPCG(seed, 1))
		for range 4 {
			loss := disk.RandomLoss(random)
			r := disk.Restart(loss)
			kept := r.names(t)
			for ino, name := range promised {
				if kept[name] != ino {
					t.Errorf("%v: %s was synced and is not there\n%s\n%s", loss, name, disk.Changes(loss), disk.Log())
				}
			}
			if again := r.Restart(LoseUnsynced(0)).names(t); fmt.Sprint(again) != fmt.Sprint(kept) {
				t.Errorf("%v: second loss: got %v, want %v", loss, again, kept)
			}
			if same := disk.Restart(loss).names(t); fmt.Sprint(same) != fmt.Sprint(kept) {
				t.Errorf("%v: not the same when had again: got %v, want %v", loss, same, kept)
			}
			_, err := io.WriteString(createFile(t, r, "fresh", ""), "x")
			assert.Must(t, err)
		}
	})
}
