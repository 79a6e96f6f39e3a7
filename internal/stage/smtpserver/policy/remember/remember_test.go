package remember

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/agent/agenttest"
)

var start = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func key(n int) (k Key) {
	copy(k[:], fmt.Sprintf("%016d", n))
	return k
}

func entry(at time.Time, group uint32) Entry {
	return Entry{First: at.Unix(), Last: at.Unix(), Count: 1, Group: group}
}

func onDisk(t testing.TB) (durable.FS, string) {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.Mkdir(filepath.Join(dir, Dir), 0o750))
	fs := assert.Get(durable.NewOS(dir))(t)
	t.Cleanup(func() { fs.Close() })
	return fs, filepath.Join(dir, Dir, "t")
}

func TestFactsSurviveARestartUntilTheyAreOld(t *testing.T) {
	fs, _ := onDisk(t)
	now := start
	log := &logtest.Buffer{}
	c := Config{FS: fs, Name: "t", Most: 10, Keep: time.Hour, Now: func() time.Time { return now }, Log: log.Logger()}
	a := Open(c)
	a.Put(key(1), entry(now, 0))
	a.Put(key(2), entry(now.Add(-time.Hour), 0))
	a.Put(key(3), entry(now, 0))
	a.Flush()
	a.Put(key(4), Entry{First: 1, Last: now.Unix(), Count: 7, Group: 9})
	a.Drop(key(3))
	a.Close()
	now = now.Add(time.Second)
	b := Open(c)
	for n, want := range map[int]bool{1: true, 2: false, 3: false, 4: true, 5: false} {
		_, ok := b.Get(key(n))
		assert.Equal(t, ok, want, "%d", n)
	}
	e, _ := b.Get(key(4))
	assert.Equal(t, e, Entry{First: 1, Last: start.Unix(), Count: 7, Group: 9})
	now = now.Add(2 * time.Hour)
	assert.Equal(t, Open(c).Len(), 0)
	assert.Equal(t, log.String(), "")
}

// The file stays within a few times what is in it.
func TestFileIsWrittenAnewWhenMostOfItIsSuperseded(t *testing.T) {
	fs, path := onDisk(t)
	a := Open(Config{FS: fs, Name: "t", Most: 100, Keep: time.Hour, Now: func() time.Time { return start }})
	for i := range 3000 {
		a.Put(key(i%50), Entry{First: int64(i), Last: start.Unix(), Count: 1})
		a.Flush()
	}
	a.Close()
	info := assert.Get(os.Stat(path))(t)
	if info.Size() > (2*50+slack+1)*90 {
		t.Errorf("%d bytes", info.Size())
	}
	b := Open(Config{FS: fs, Name: "t", Most: 100, Keep: time.Hour, Now: func() time.Time { return start }})
	assert.Equal(t, b.Len(), 50)
	e, _ := b.Get(key(49))
	assert.Equal(t, e.First, 2999)
}

// A stranger who makes up entries replaces his own.
func TestFullTableForgetsEntriesOfTheLargestGroup(t *testing.T) {
	a := Open(Config{Most: 1000, Keep: time.Hour, Now: func() time.Time { return start }})
	for i := range 100 {
		a.Put(key(i), entry(start.Add(-time.Minute), uint32(i+1)))
	}
	for i := range 20000 {
		a.Put(key(1000+i), entry(start, 7777))
	}
	assert.Equal(t, a.Len(), 1000)
	kept := 0
	for i := range 100 {
		if _, ok := a.Get(key(i)); ok {
			kept++
		}
	}
	if kept < 95 {
		t.Errorf("%d of 100 entries of others are left", kept)
	}
}

// Op4: what cannot be read is reported, also as an alarm; the rest is used, and the file is whole after the next
// write.
func TestDamagedFileIsReportedAndTheRestUsed(t *testing.T) {
	for name, tt := range map[string]struct {
		damage func(b []byte) []byte
		left   int
	}{
		"a torn end":        {func(b []byte) []byte { return b[:len(b)-10] }, 9},
		"zeros at the end":  {func(b []byte) []byte { return append(b, make([]byte, 5000)...) }, 10},
		"a line changed":    {func(b []byte) []byte { b[len(b)-50] ^= 1; return b }, 9},
		"another file":      {func([]byte) []byte { return []byte("hello\nworld\n") }, 0},
		"a negative number": {func(b []byte) []byte { return []byte(strings.Replace(string(b), " 1 0 ", " -1 0 ", 1)) }, 9},
	} {
		t.Run(name, func(t *testing.T) {
			fs, path := onDisk(t)
			log := &logtest.Buffer{}
			assert.Must(t, fs.Mkdir(lastgood.Dir, 0o755))
			assert.Must(t, fs.Mkdir(lastgood.Dir+"/test", 0o755))
			c := Config{FS: fs, Name: "t", Most: 100, Keep: time.Hour, Now: func() time.Time { return start }, Log: log.Logger(),
				Keeper: lastgood.New(fs, "test", time.Now, log.Logger())}
			alarms := func() int { return len(lastgood.Findings(fs, time.Now())) }
			a := Open(c)
			for i := range 10 {
				a.Put(key(i), entry(start, 0))
			}
			a.Close()
			b := assert.Get(os.ReadFile(path))(t)
			assert.Must(t, os.WriteFile(path, tt.damage(b), 0o640))
			again := Open(c)
			assert.Equal(t, again.Len(), tt.left)
			assert.Equal(t, alarms(), 1, "alarms")
			log.Expect(t, 1, "msg=clients-trouble")
			again.Put(key(50), entry(start, 0))
			again.Close()
			log.Expect(t, 1, "msg=clients-recovered")
			assert.Equal(t, alarms(), 0, "alarms")
			assert.Equal(t, Open(c).Len(), tt.left+1)
			log.Expect(t, 1, "msg=clients-trouble")
		})
	}
}

// A full or broken disk costs what is learned meanwhile, and no more.
func TestTableWorksInMemoryWithoutADisk(t *testing.T) {
	dir := t.TempDir() // without the directory
	fs := assert.Get(durable.NewOS(dir))(t)
	defer fs.Close()
	log := &logtest.Buffer{}
	a := Open(Config{FS: fs, Name: "t", Most: 100, Keep: time.Hour, Now: func() time.Time { return start }, Log: log.Logger()})
	a.Put(key(1), entry(start, 0))
	a.Flush()
	log.Expect(t, 1, "msg=clients-trouble")
	assert.Must(t, os.Mkdir(filepath.Join(dir, Dir), 0o750))
	_, ok := a.Get(key(1))
	assert.Equal(t, ok, true)
	a.Put(key(2), entry(start, 0))
	a.Close()
	log.Expect(t, 1, "msg=clients-recovered")
	assert.Equal(t, Open(Config{FS: fs, Name: "t", Most: 100, Keep: time.Hour, Now: func() time.Time { return start }}).Len(), 2)
}

// The process or the machine stops in every operation: the next process reads what was synced
// before, and works.
func TestTableSurvivesEveryCut(t *testing.T) {
	now := func() time.Time { return start }
	agenttest.EveryCut(t, 4, func(cut func(*cutfs.FS)) *cutfs.FS {
		disk := cutfs.New()
		disk.SetClock(now)
		assert.Must(t, disk.Mkdir(Dir, 0o750))
		first := Open(Config{FS: disk, Name: "t", Most: 100, Keep: time.Hour, Now: now})
		for i := range 5 {
			first.Put(key(i), entry(start, 0))
		}
		first.Close()
		assert.Must(t, disk.SyncDir("."))
		proc := disk.Process()
		cut(proc)
		second := Open(Config{FS: proc, Name: "t", Most: 100, Keep: time.Hour, Now: now})
		second.Put(key(10), entry(start, 0)) // appended
		second.Flush()
		second.mu.Lock()
		second.anew = true
		second.mu.Unlock()
		second.Put(key(11), entry(start, 0)) // written as a whole
		second.Flush()
		second.Put(key(12), entry(start, 0))
		second.Close()
		return proc
	}, func(where string, proc *cutfs.FS, loss cutfs.Loss) {
		again := proc.Restart(loss)
		c := Config{FS: again, Name: "t", Most: 100, Keep: time.Hour, Now: now}
		third := Open(c)
		for i := range 5 {
			if _, ok := third.Get(key(i)); !ok {
				t.Errorf("%s: entry %d is lost", where, i)
			}
		}
		if !proc.Dead() {
			for i := 10; i < 13; i++ {
				if _, ok := third.Get(key(i)); !ok {
					t.Errorf("%s: entry %d, which was synced, is lost", where, i)
				}
			}
		}
		third.Put(key(20), entry(start, 0))
		third.Close()
		log := &logtest.Buffer{}
		c.Log = log.Logger()
		if _, ok := Open(c).Get(key(20)); !ok || log.String() != "" {
			t.Errorf("%s: the table does not work after it\n%s", where, log)
		}
	})
}

func FuzzLine(f *testing.F) {
	f.Add([]byte(appendLine(nil, key(1), entry(start, 3))))
	f.Fuzz(func(t *testing.T, line []byte) {
		k, e, err := parseLine(line)
		if err != nil {
			return
		}
		if k2, e2, err := parseLine(appendLine(nil, k, e)[:len(appendLine(nil, k, e))-1]); err != nil || k2 != k || e2 != e {
			t.Errorf("%q: %v %v %v", line, k2, e2, err)
		}
	})
}
