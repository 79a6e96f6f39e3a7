package verified

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

var epoch = time.Unix(1_700_000_000, 0)

func entry(key string, ok bool, age time.Duration) Entry {
	return Entry{Key: key, OK: ok, Probed: epoch.Add(-age), Code: "2.1.5", Text: "250 2.1.5 Ok, as said ~"}
}

// disk is a directory with verify/.
func disk(t testing.TB) (*durable.OS, string) {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.Mkdir(dir+"/"+Dir, 0o750))
	return assert.Get(durable.NewOS(dir))(t), dir
}

func wantEntry(t *testing.T, c *Cache, key string, want Entry, has bool) {
	t.Helper()
	got, ok, err := c.Get(key)
	if err != nil || ok != has || has && got != want {
		t.Errorf("%s: got %+v, %v, %v, want %+v, %v", key, got, ok, err, want, has)
	}
}

// Programs share the file: what one has put or forgotten another one sees.
func TestProgramsShareTheAnswers(t *testing.T) {
	fs, _ := disk(t)
	a, b := Open(fs, Options{}), Open(fs, Options{})
	wantEntry(t, a, "x", Entry{}, false)
	odd := Entry{Key: "smtp\x00hö+st=x\x00\"a b\"@ü.example\n", Probed: epoch, Text: ""}
	for i, e := range []Entry{entry("x", true, 0), entry("y", false, time.Hour), odd, entry("x", false, 0)} {
		one := a
		if i%2 == 1 {
			one = b
		}
		assert.Must(t, one.Put(e))
		wantEntry(t, a, e.Key, e, true)
		wantEntry(t, b, e.Key, e, true)
	}
	n, err := b.Forget(func(e Entry) bool { return e.Key == "x" })
	assert.Must(t, err)
	assert.Equal(t, n, 1)
	wantEntry(t, a, "x", Entry{}, false)
	wantEntry(t, Open(fs, Options{}), "y", entry("y", false, time.Hour), true)
	assert.Equal(t, len(assert.Get(a.Entries())(t)), 2)
}

// The file stays in proportion to what it holds, and that is bounded; the oldest go.
func TestFileIsWrittenAnewAndBounded(t *testing.T) {
	fs, dir := disk(t)
	c, other := Open(fs, Options{Most: 50}), Open(fs, Options{Most: 50})
	for i := range 2500 {
		assert.Must(t, c.Put(entry("key"+strconv.Itoa(i%40), i%2 == 0, time.Hour)))
	}
	text := string(assert.Get(os.ReadFile(dir + "/" + File))(t))
	if n := strings.Count(text, "\n"); n > 1200 {
		t.Errorf("40 answers have %d lines", n)
	}
	for i := range 40 {
		wantEntry(t, other, "key"+strconv.Itoa(i), entry("key"+strconv.Itoa(i), i%2 == 0, time.Hour), true)
	}
	for i := range 20 {
		assert.Must(t, other.Put(entry("young"+strconv.Itoa(i), true, 0)))
	}
	all := assert.Get(c.Entries())(t)
	if len(all) > 50 {
		t.Errorf("got %d answers, want 50 at most", len(all))
	}
	for i := range 20 {
		wantEntry(t, c, "young"+strconv.Itoa(i), entry("young"+strconv.Itoa(i), true, 0), true)
	}
}

func TestManyWritersLoseNothing(t *testing.T) {
	fs, _ := disk(t)
	var all sync.WaitGroup
	for w := range 4 {
		c := Open(fs, Options{})
		all.Go(func() {
			for i := range 400 {
				assert.Must(t, c.Put(entry(fmt.Sprint(w, "-", i%20), i >= 380, 0)))
			}
		})
	}
	all.Wait()
	c := Open(fs, Options{})
	for w := range 4 {
		for i := range 20 {
			wantEntry(t, c, fmt.Sprint(w, "-", i), entry(fmt.Sprint(w, "-", i), true, 0), true)
		}
	}
}

// What something else has written is left out and logged, and gone with the next answer; a
// line that a crash has left is no damage.
func TestDamageIsLoggedAndGoneWithTheNextAnswer(t *testing.T) {
	fs, dir := disk(t)
	log := &logtest.Buffer{}
	assert.Must(t, Open(fs, Options{}).Put(entry("x", true, 0)))
	file := dir + "/" + File
	good := assert.Get(os.ReadFile(file))(t)
	cut := string(good[:len(good)-10])
	for name, c := range map[string]struct {
		text   string
		logged int
	}{
		"a cut line":       {string(good) + cut, 0},
		"an ended line":    {cut + "=\n" + string(good), 0},
		"zeros":            {string(good) + strings.Repeat("\x00", 300), 0},
		"another checksum": {string(good) + "x" + string(good[1:]), 1},
		"a binary":         {string(good) + "\x7fELF\x01\x02\n\xff\xfe\n", 1},
	} {
		assert.Must(t, os.WriteFile(file, []byte(c.text), 0o640))
		*log = logtest.Buffer{}
		k := Open(fs, Options{Log: log.Logger()})
		wantEntry(t, k, "x", entry("x", true, 0), true)
		wantEntry(t, k, "x", entry("x", true, 0), true)
		log.Expect(t, c.logged, "msg=verify-cache-damaged")
		assert.Must(t, k.Put(entry("y", false, 0)))
		again := Open(fs, Options{Log: log.Logger()})
		wantEntry(t, again, "x", entry("x", true, 0), true)
		wantEntry(t, again, "y", entry("y", false, 0), true)
		log.Expect(t, c.logged, "msg=verify-cache-damaged")
		if t.Failed() {
			t.Fatalf("with %s", name)
		}
	}
	assert.Must(t, os.Remove(file))
	wantEntry(t, Open(fs, Options{}), "x", Entry{}, false)
}

// Every cut: after a loss of power at any operation what was put before is there, what was
// being put is there or not, and the next answer can be put. The file is written anew in between.
func TestEveryCutKeepsTheAnswers(t *testing.T) {
	work := func(fs durable.FS) (done int, err error) {
		c := Open(fs, Options{Most: 4})
		for i := range 8 {
			if err := c.Put(entry("key"+strconv.Itoa(i), true, time.Duration(8-i)*time.Hour)); err != nil {
				return done, err
			}
			done++
		}
		return done, nil
	}
	prepare := func() *cutfs.FS {
		fs := cutfs.New()
		assert.Must(t, fs.Mkdir(Dir, 0o750))
		assert.Must(t, fs.SyncDir("."))
		return fs
	}
	whole := prepare()
	_, err := work(whole)
	assert.Must(t, err)
	for cut := 1; cut <= whole.Ops(); cut++ {
		for _, inside := range []bool{false, true} {
			fs := prepare()
			before := fs.Ops()
			if cut <= before {
				continue
			}
			if inside {
				fs.CutInside(cut)
			} else {
				fs.CutAfter(cut)
			}
			done, _ := work(fs)
			for _, loss := range fs.Losses() {
				after := fs.Restart(loss)
				log := &logtest.Buffer{}
				c := Open(after, Options{Most: 4, Log: log.Logger()})
				list, err := c.Entries()
				if err != nil {
					t.Fatalf("cut %d, %v: %v", cut, loss, err)
				}
				for _, e := range list {
					i, err := strconv.Atoi(strings.TrimPrefix(e.Key, "key"))
					if err != nil || e != entry(e.Key, true, time.Duration(8-i)*time.Hour) || i > done {
						t.Fatalf("cut %d, %v: got %+v after %d answers", cut, loss, e, done)
					}
				}
				log.Expect(t, 0, "msg=verify-cache-damaged")
				assert.Must(t, c.Put(entry("key9", false, 0)))
				wantEntry(t, Open(after, Options{}), "key9", entry("key9", false, 0), true)
				if t.Failed() {
					t.Fatalf("cut %d, inside %v, %v", cut, inside, loss)
				}
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	e := entry("k", true, 0)
	f.Add(e.append(nil))
	f.Add([]byte("00000000 ok 1 - a b\n"))
	f.Add([]byte("=\n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, state := parse(line)
		if state != good {
			return
		}
		if again, s := parse(e.append(nil)); s != good || again != e {
			t.Errorf("%q: %+v, then %+v", line, e, again)
		}
	})
}
