package cutfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"testing"

	"zmailer/internal/run/assert"
)

func TestKilledProcessLosesNothingAndPowerStillCan(t *testing.T) {
	f := New()
	createFile(t, f, "x", "abc")
	r := f.Restart(KeepAll())
	assert.Equal(t, show(t, r, "x"), "abc", "process killed")
	assert.Equal(t, show(t, r.Restart(LoseUnsynced(0)), "x"), "-", "power lost afterwards")
}

func TestSyncedFileSurvivesWithItsNameAndMode(t *testing.T) {
	f := New()
	assert.Must(t, f.Mkdir("d", 0o700))
	file := createFile(t, f, "d/x", "abc")
	assert.Must(t, file.Chmod(0o700))
	assert.Must(t, file.Sync())
	before, err := file.Stat()
	assert.Must(t, err)
	appendText(t, file, "def")
	r := f.Restart(LoseUnsynced(0))
	after, err := r.Stat("d/x")
	assert.Must(t, err)
	if got := show(t, r, "d/x"); got != "abc" || after != before {
		t.Errorf("got %q, %+v, want abc, %+v", got, after, before)
	}
}

func TestExecuteBitAndNameMayOutliveTheData(t *testing.T) {
	f := New()
	file := createFile(t, f, "x", "abc")
	assert.Must(t, file.Chmod(0o700))
	r := f.Restart(MetadataFirst())
	info, err := r.Stat("x")
	assert.Must(t, err)
	if info.Mode != 0o700 || info.Size != 0 {
		t.Errorf("got %+v, want mode 0700 and no content", info)
	}
}

// A rename that no sync covers is undone or not; the file is never without a name.
func TestRenameIsLostOrNot(t *testing.T) {
	f := New()
	assert.Must(t, f.Mkdir("a", 0o700))
	assert.Must(t, f.Mkdir("b", 0o700))
	file := createFile(t, f, "a/x", "abc")
	assert.Must(t, file.Sync())
	assert.Must(t, f.RenameNew("a/x", "b/y"))
	if got := f.Pending(); got != 1 {
		t.Fatalf("got %d pending changes, want 1", got)
	}
	for names, want := range []string{"abc -", "- abc"} {
		r := f.Restart(LoseUnsynced(names))
		assert.Equal(t, show(t, r, "a/x")+" "+show(t, r, "b/y"), want, "%d changes survive", names)
	}
	covers := map[string]func(f *FS) error{
		"fsync of the file":              func(f *FS) error { return open(t, f, "b/y", os.O_RDONLY).Sync() },
		"sync of the old directory":      func(f *FS) error { return f.SyncDir("a") },
		"sync of the new directory":      func(f *FS) error { return f.SyncDir("b") },
		"sync of what was changed later": func(f *FS) error { return createFile(t, f, "z", "").Sync() },
	}
	for name, cover := range covers {
		r := f.Restart(KeepAll())
		assert.Must(t, cover(r))
		assert.Equal(t, r.Pending(), 0, "%s: pending changes", name)
		assert.Equal(t, show(t, r.Restart(LoseUnsynced(0)), "b/y"), "abc", name)
	}
}

func TestSyncCoversNothingThatCameLater(t *testing.T) {
	f := New()
	assert.Must(t, createFile(t, f, "x", "abc").Sync())
	assert.Must(t, f.Mkdir("d", 0o700))
	assert.Must(t, f.RenameNew("x", "d/y"))
	assert.Must(t, f.Mkdir("later", 0o700))
	assert.Must(t, f.SyncDir("d"))
	assert.Equal(t, f.Pending(), 1, "pending changes")
	if _, err := f.Restart(LoseUnsynced(0)).Stat("later"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
}

func TestUnlinkIsLostOrNot(t *testing.T) {
	f := New()
	file := createFile(t, f, "x", "abc")
	assert.Must(t, file.Sync())
	assert.Must(t, file.Close())
	assert.Must(t, f.Remove("x"))
	assert.Must(t, createFile(t, f, "x", "new").Close()) // the same name, perhaps the same inode
	for names, want := range []string{"abc", "-", ""} {
		assert.Equal(t, show(t, f.Restart(LoseUnsynced(names)), "x"), want, "%d changes survive", names)
	}
}

func TestReplacedFileComesBackWhole(t *testing.T) {
	f := New()
	assert.Must(t, createFile(t, f, "x", "old").Sync())
	fresh := createFile(t, f, "x.new", "new")
	assert.Must(t, fresh.Sync())
	assert.Must(t, f.Rename("x.new", "x"))
	for names, want := range []string{"old new", "new -"} {
		r := f.Restart(LoseUnsynced(names))
		assert.Equal(t, show(t, r, "x")+" "+show(t, r, "x.new"), want, "%d changes survive", names)
	}
}

func TestUnsyncedDataSurvivesInEveryWay(t *testing.T) {
	f := New()
	file := createFile(t, f, "x", "0123456789")
	assert.Must(t, file.Sync())
	_, err := file.WriteAt([]byte("TAG"), 2)
	assert.Must(t, err)
	appendText(t, file, "line\n")
	_, err = file.WriteAt([]byte("END"), 9)
	assert.Must(t, err)
	want := map[Data]string{
		DataNone:        "0123456789",
		DataTorn:        "01TAG56789li", // 5 of 11 bytes, in their order
		DataAppended:    "0123456789NDne\n",
		DataOverwritten: "01TAG5678E",
		DataAll:         "01TAG5678ENDne\n",
	}
	for data, want := range want {
		assert.Equal(t, show(t, f.Restart(Loss{Power: true, Data: data}), "x"), want, data)
	}
}

func TestLostTruncationLosesWhatWasWrittenAfterIt(t *testing.T) {
	f := New()
	file := createFile(t, f, "x", "old content")
	assert.Must(t, file.Sync())
	again := open(t, f, "x", os.O_RDWR|os.O_TRUNC)
	appendText(t, again, "new")
	tests := map[Loss]string{
		{Power: true, Names: 0, Data: DataNone}: "old content",
		{Power: true, Names: 0, Data: DataAll}:  "old content",
		{Power: true, Names: 1, Data: DataNone}: "",
		{Power: true, Names: 1, Data: DataTorn}: "n",
		{Power: true, Names: 1, Data: DataAll}:  "new",
	}
	for loss, want := range tests {
		assert.Equal(t, show(t, f.Restart(loss), "x"), want, loss)
	}
}

func TestLossesListsEveryPrefixAndKind(t *testing.T) {
	f := New()
	assert.Must(t, createFile(t, f, "x", "abc").Sync())
	if got := f.Losses(); len(got) != 2 {
		t.Errorf("all synced: got %v, want the process's death and one loss of power", got)
	}
	assert.Must(t, f.RenameNew("x", "y"))
	if got := f.Losses(); len(got) != 3 {
		t.Errorf("one rename: got %v", got)
	}
	appendText(t, open(t, f, "y", os.O_WRONLY|os.O_APPEND), "d")
	list := f.Losses()
	if len(list) != 1+2*5 {
		t.Errorf("one rename, one write: got %v", list)
	}
	seen := map[string]bool{}
	for _, loss := range list {
		if seen[loss.String()] {
			t.Errorf("%v twice", loss)
		}
		seen[loss.String()] = true
	}
}

// Whatever is done and however the power goes: what is on the disk can be read,
// and a file that was synced under a name is there, under one of its names.
func FuzzRestart(f *testing.F) {
	f.Add([]byte("cwscwxlrmutsdcks"), 3, 1)
	f.Add([]byte("cccwwwsssrrrmmmuuu"), 1, 4)
	f.Fuzz(func(t *testing.T, script []byte, names, data int) {
		disk := New()
		assert.Must(t, disk.Mkdir("d", 0o700))
		assert.Must(t, disk.SyncDir("d"))
		paths := []string{"a", "b", "d/a", "d/b", "d/c"}
		var files []*File
		for i, b := range script {
			name, other := paths[i%len(paths)], paths[(i*7+3)%len(paths)]
			switch b % 12 {
			case 0, 1, 2:
				if file, err := disk.openFile(name, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
					files = append(files, file)
				}
			case 3:
				_ = disk.Rename(name, other)
			case 4:
				_ = disk.RenameNew(name, other)
			case 5:
				_ = disk.Link(name, other)
			case 6:
				_ = disk.Remove(name)
			case 7:
				_ = disk.SyncDir("d")
			case 8:
				_, _ = disk.openFile(name, os.O_RDWR|os.O_TRUNC, 0)
			default:
				if len(files) == 0 {
					continue
				}
				file := files[i%len(files)]
				switch b % 5 {
				case 0:
					_, _ = file.Write([]byte("data"))
				case 1:
					_ = file.Sync()
				case 2:
					_ = file.Chmod(0o700)
				case 3:
					_, _ = file.WriteAt([]byte("X"), 1)
				case 4:
					_ = file.Close()
				}
			}
		}
		covered := disk.Restart(LoseUnsynced(0)).names(t)
		loss := Loss{Power: true, Names: names, Data: Data(uint(data) % 5)}
		r := disk.Restart(loss)
		kept := r.names(t)
		assert.Equal(t, r.Pending(), 0, "changes pending after a loss of power: %v", loss)
		if len(disk.disk.pending) == 0 && fmt.Sprint(covered) != fmt.Sprint(kept) {
			t.Errorf("%v: got %v, want %v\n%s", loss, kept, covered, disk.Log())
		}
		again := r.Restart(LoseUnsynced(0)).names(t)
		if fmt.Sprint(again) != fmt.Sprint(kept) {
			t.Errorf("%v: second loss: got %v, want %v", loss, again, kept)
		}
		createFile(t, r, "fresh", "x")
	})
}

// names maps each name to its inode; it fails if a file cannot be read or two files
// share an inode.
func (f *FS) names(t *testing.T) map[string]uint64 {
	t.Helper()
	all, links := map[string]uint64{}, map[uint64]uint64{}
	for _, dir := range []string{".", "d"} {
		list, err := f.ReadDir(dir)
		assert.Must(t, err)
		for _, e := range list {
			name := dir + "/" + e.Name
			if dir == "." {
				name = e.Name
			}
			info, err := f.Stat(name)
			assert.Must(t, err)
			all[name] = info.Ino
			links[info.Ino]++
			if info.Mode.IsDir() {
				continue
			}
			file, err := f.Open(name, os.O_RDONLY, 0)
			assert.Must(t, err)
			b, err := io.ReadAll(file)
			assert.Must(t, err)
			assert.Must(t, file.Close())
			if int64(len(b)) != info.Size {
				t.Errorf("%s: got %d bytes, want %d", name, len(b), info.Size)
			}
		}
	}
	for name, ino := range all {
		if info, err := f.Stat(name); err != nil || info.Nlink != links[ino] {
			t.Errorf("%s: got %d links, %v, want %d", name, info.Nlink, err, links[ino])
		}
	}
	return all
}
