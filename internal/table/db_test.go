package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// manyAliases returns a text table of n aliases, user0 to user(n-1), each of a@N.example.
func manyAliases(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "user%d: a@%d.example\n", i, i)
	}
	return b.String()
}

// compiled writes a text table and compiles it; it gives the path of the compiled one.
func compiled(t testing.TB, dir string, kind text.Kind, content string) string {
	t.Helper()
	in, out := filepath.Join(dir, string(kind)), filepath.Join(dir, string(kind)+".db")
	assert.Must(t, os.WriteFile(in, []byte(content), 0o644))
	assert.Get(Compile(kind, in, out, silent))(t)
	return out
}

// openAs opens a source, and closes it when the test ends.
func openAs(t testing.TB, source string, o Options) Table {
	t.Helper()
	k := assert.Get(Open(source, o))(t)
	t.Cleanup(func() {
		assert.NoError(t, k.Close())
	})
	return k
}

// says returns what a lookup comes to, as text.
func says(t Table, key string) string {
	v, ok, err := t.Lookup(context.Background(), key)
	switch {
	case err != nil:
		return "error"
	case !ok:
		return "none"
	}
	return v.Text
}

func TestCompiledTableSaysWhatItsTextSays(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 100, 5000} {
		if n > 1000 && testing.Short() {
			continue
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := t.TempDir()
			path := compiled(t, dir, text.Aliases, manyAliases(n))
			k := openAs(t, "db:"+path, Options{Name: "aliases"})
			for i := range n {
				v, ok, err := k.Lookup(t.Context(), fmt.Sprintf("user%d", i))
				want := Value{fmt.Sprintf("a@%d.example", i), uint32(os.Geteuid()), fmt.Sprintf("db:%s:%d", path, i+1)}
				if !ok || err != nil || v != want {
					t.Fatalf("user%d: got %+v, %v, %v, want %+v", i, v, ok, err, want)
				}
			}
			// Before the first, behind the last, between two and parts of one.
			for _, key := range []string{"", "a", "user", "user0a", "user1 ", "zz", "\x00", "\xff\xff", strings.Repeat("u", 70_000)} {
				assert.Equal(t, says(k, key), "none", "%.20q", key)
			}
		})
	}
}

func TestValueKeepsItsLinesAndItsFirstLineNumber(t *testing.T) {
	path := compiled(t, t.TempDir(), text.Aliases, "# all\n\nBond: joe,\n  # not him\n  |prog x\nq: \"|a, b\"\n")
	k := openAs(t, "db:"+path, Options{Name: "aliases"})
	v, ok, err := k.Lookup(t.Context(), "bond")
	if want := "joe,\n\n  |prog x"; v.Text != want || v.Where != "db:"+path+":3" || !ok || err != nil {
		t.Errorf("got %+v, %v, %v, want %q of line 3", v, ok, err, want)
	}
	assert.Equal(t, says(k, "q"), `"|a, b"`)
}

func TestDBThatCannotBeUsedIsNamed(t *testing.T) {
	dir := t.TempDir()
	routes := compiled(t, dir, text.Routes, ". smtp!\n")
	empty, noDB := filepath.Join(dir, "empty"), filepath.Join(dir, "text.db")
	assert.Must(t, errors.Join(os.WriteFile(empty, nil, 0o644), os.WriteFile(noDB, bytes.Repeat([]byte("a: b\n"), 10_000), 0o644)))
	for name, tt := range map[string]struct{ path, want string }{
		"missing":       {filepath.Join(dir, "none.db"), "zmctl newdb makes it"},
		"empty":         {empty, "empty"},
		"text":          {noDB, "no compiled table"},
		"another table": {routes, "made of routes, not of aliases"},
		"a directory":   {dir, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open("db:"+tt.path, Options{Name: "aliases"})
			if bad := (*config.Error)(nil); !errors.As(err, &bad) || bad.File != tt.path || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s and %q", err, tt.path, tt.want)
			}
		})
	}
}

// M48: the privilege is that of the text form's owner, and the user nobody's if others may write
// one or the other.
func TestCompiledTableActsAsWhoWroteItsText(t *testing.T) {
	self := uint32(os.Geteuid())
	if self == Nobody {
		t.Skip("run as the user nobody, whose files are ours")
	}
	tests := map[string]struct {
		text, db os.FileMode // modes
		owner    int         // of the text; 0: ours
		want     uint32
	}{
		"ours":                    {0o644, 0, 0, self},
		"text that others write":  {0o666, 0, 0, Nobody},
		"table that others write": {0o644, 0o664, 0, Nobody},
		"root compiles a user's":  {0o644, 0, 12345, 12345},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.owner != 0 && self != 0 {
				t.Skip("only root may give files away")
			}
			dir := t.TempDir()
			in, out := filepath.Join(dir, "a"), filepath.Join(dir, "a.db")
			err := errors.Join(os.WriteFile(in, []byte("bond: |prog\n"), 0o600), os.Chmod(in, tt.text))
			if tt.owner != 0 {
				err = errors.Join(err, os.Chown(in, tt.owner, -1))
			}
			assert.Must(t, err)
			assert.Get(Compile(text.Aliases, in, out, silent))(t)
			if tt.db != 0 {
				assert.Must(t, os.Chmod(out, tt.db))
			}
			k := openAs(t, "db:"+out, Options{Name: "aliases"})
			if v, _, err := k.Lookup(t.Context(), "bond"); v.UID != tt.want || err != nil {
				t.Errorf("got %d, %v, want %d", v.UID, err, tt.want)
			}
		})
	}
	for name, tt := range map[string]struct{ owner, source, want uint32 }{
		"root speaks for all":         {0, 7, 7},
		"a user speaks for himself":   {7, 7, 7},
		"a user does not speak for":   {7, 0, Nobody},
		"a user does not speak for 2": {7, 8, Nobody},
		"text of the user nobody":     {0, Nobody, Nobody},
	} {
		assert.Equal(t, actsAs(tt.owner, tt.source), tt.want, name)
	}
}

// Whatever is cut off or overwritten: an entry that is in the table is given as it is, or
// the answer is unknown; never is it said not to be there.
func TestDamagedTableNeverSaysThatAKeyIsNotThere(t *testing.T) {
	const n = 2000
	dir := t.TempDir()
	path := compiled(t, dir, text.Aliases, manyAliases(n))
	whole, err := os.ReadFile(path)
	assert.Must(t, err)
	failed := 0
	check := func(what string, k Table) {
		t.Helper()
		for i := 0; i < n; i += 7 {
			switch got, want := says(k, fmt.Sprintf("user%d", i)), fmt.Sprintf("a@%d.example", i); got {
			case "error":
				failed++
			case want:
			default:
				t.Fatalf("%s: user%d: got %q, want %q or an error", what, i, got, want)
			}
		}
	}
	page, step := os.Getpagesize(), os.Getpagesize()
	if testing.Short() {
		step *= 11
	}
	for at := 0; at < len(whole); at += step {
		// Cut under the reader, which has the file mapped, then opened so.
		assert.Must(t, os.WriteFile(path, whole, 0o644))
		k := assert.Get(Open("db:"+path, Options{Name: "aliases"}))(t)
		assert.Must(t, os.Truncate(path, int64(at)))
		check(fmt.Sprintf("cut to %d", at), k)
		k.Close()
		if k, err := Open("db:"+path, Options{Name: "aliases"}); err == nil {
			check(fmt.Sprintf("opened when cut to %d", at), k)
			k.Close()
		}
		// A page of nonsense, or of zeros as a crashed disk leaves it.
		for fill := range 3 {
			b := bytes.Clone(whole)
			for i := at; i < min(at+page, len(b)); i++ {
				b[i] = []byte{0, 0xff, b[i] ^ byte(1<<(i%8))}[fill]
			}
			assert.Must(t, os.WriteFile(path, b, 0o644))
			if k, err := Open("db:"+path, Options{Name: "aliases"}); err == nil {
				check(fmt.Sprintf("nonsense %d at %d", fill, at), k)
				k.Close()
			}
		}
	}
	if failed == 0 {
		t.Error("no damage was noticed: the test damages nothing")
	}
}

// One flipped bit in a key or a value is noticed where it matters.
func TestFlippedBitIsAnError(t *testing.T) {
	path := compiled(t, t.TempDir(), text.Aliases, "anna: a@x.example\nbond: b@x.example\ncarl: c@x.example\n")
	whole := assert.Get(os.ReadFile(path))(t)
	for name, part := range map[string]string{"in the value": "b@x.example", "in the key": "kbond"} {
		b := bytes.Clone(whole)
		for i := 0; ; i++ { // copies of the page from earlier transactions included
			at := bytes.Index(b[i:], []byte(part))
			if at < 0 {
				break
			}
			i += at
			b[i+1] ^= 1
		}
		assert.Must(t, os.WriteFile(path, b, 0o644))
		k := openAs(t, "db:"+path, Options{Name: "aliases"})
		assert.Equal(t, says(k, "bond"), "error", name)
	}
}

func TestReplacedTableIsUsedFromTheNextLookup(t *testing.T) {
	dir := t.TempDir()
	path := compiled(t, dir, text.Aliases, "a: old\n")
	k := openAs(t, "db:"+path, Options{Name: "aliases"})
	if got := says(k, "a"); got != "old" {
		t.Fatalf("got %q", got)
	}
	compiled(t, dir, text.Aliases, "a: new\nb: x\n")
	assert.Equal(t, says(k, "a")+says(k, "b"), "newx")
}

func TestTableThatIsAwayServesAMinuteAndThenFails(t *testing.T) {
	dir := t.TempDir()
	path := compiled(t, dir, text.Aliases, "a: b\n")
	clock := time.Now()
	var log bytes.Buffer
	k := openAs(t, "db:"+path, Options{
		Name: "aliases", Now: func() time.Time { return clock }, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	assert.Must(t, os.Rename(path, path+"~"))
	for range 3 {
		assert.Equal(t, says(k, "a")+says(k, "x"), "bnone", "just gone")
	}
	assert.Equal(t, strings.Count(log.String(), "table-refused"), 1, "lines in: %s", log.String())
	clock = clock.Add(grace)
	assert.Equal(t, says(k, "a")+says(k, "x"), "errorerror", "gone for a minute")
	assert.Must(t, os.Rename(path+"~", path))
	assert.Equal(t, says(k, "a")+says(k, "x"), "bnone", "back")
	// Another's file in its place.
	assert.Must(t, errors.Join(os.WriteFile(path+"~", []byte("no table"), 0o644), os.Rename(path+"~", path)))
	assert.Equal(t, says(k, "a"), "b", "just replaced by nonsense")
	clock = clock.Add(grace)
	assert.Equal(t, says(k, "a"), "error", "replaced by nonsense for a minute")
}

func TestTableReplacedUnderLoadGivesOldOrNewAlways(t *testing.T) {
	const n, readers = 300, 4
	rounds := 30
	if testing.Short() {
		rounds = 8
	}
	dir := t.TempDir()
	content := func(round int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "user%d: round%d\n", i, round)
		}
		return b.String()
	}
	path := compiled(t, dir, text.Aliases, content(0))
	k := openAs(t, "db:"+path, Options{Name: "aliases"})
	var low, high atomic.Int64          // rounds that may be seen
	looked := make(chan struct{}, 1024) // a lookup was made
	done := make(chan struct{})
	var readersDone sync.WaitGroup
	for r := range readers {
		readersDone.Go(func() {
			for i := r; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				from := low.Load()
				got := says(k, fmt.Sprintf("user%d", i%n))
				to := high.Load()
				var round int64
				if _, err := fmt.Sscanf(got, "round%d", &round); err != nil || round < from || round > to {
					t.Errorf("got %q, want a round from %d to %d", got, from, to)
					return
				}
				if got := says(k, "nobody"); got != "none" {
					t.Errorf("nobody: got %q, want none", got)
					return
				}
				select {
				case looked <- struct{}{}:
				default:
				}
			}
		})
	}
	for round := 1; round <= rounds; round++ {
		high.Store(int64(round))
		compiled(t, dir, text.Aliases, content(round))
		low.Store(int64(round))
		// The next replacement comes when the readers have seen this one.
		for len(looked) > 0 {
			<-looked
		}
		for range 2 * readers {
			select {
			case <-looked:
			case <-time.After(time.Minute):
				t.Fatal("the readers stand")
			}
		}
	}
	close(done)
	readersDone.Wait()
}

// Copied over in place, as by cp: what is given is right or an error, and in the end new.
func TestTableOverwrittenInPlaceIsNeverWrong(t *testing.T) {
	dir := t.TempDir()
	path := compiled(t, dir, text.Aliases, manyAliases(3000))
	k := openAs(t, "db:"+path, Options{Name: "aliases"})
	other := compiled(t, t.TempDir(), text.Aliases, manyAliases(6000))
	b := assert.Get(os.ReadFile(other))(t)
	f := assert.Get(os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0))(t)
	defer f.Close()
	for at := 0; at < len(b); at += 3000 {
		assert.Get(f.Write(b[at:min(at+3000, len(b))]))(t)
		for i := 0; i < 3000; i += 500 {
			if got, want := says(k, fmt.Sprintf("user%d", i)), fmt.Sprintf("a@%d.example", i); got != want && got != "error" {
				t.Fatalf("%d bytes written: user%d: got %q", at, i, got)
			}
		}
	}
	assert.Equal(t, says(k, "user5999"), "a@5999.example", "written")
}
