package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

// deadline is when a test gives up waiting.
const deadline = 20 * time.Second

// never is a period that no test sees.
const never = time.Hour

func digits(name string) bool { return name[0] >= '0' && name[0] <= '9' }

func newLog() (*slog.Logger, *logtest.Buffer) {
	out := new(logtest.Buffer)
	return slog.New(slog.NewTextHandler(out, nil)), out
}

func take(t *testing.T, w *Watcher) Hint {
	t.Helper()
	select {
	case h := <-w.C():
		return h
	case <-time.After(deadline):
		t.Fatal("no hint came")
		panic("unreachable")
	}
}

func create(t *testing.T, path string) {
	t.Helper()
	assert.Must(t, os.WriteFile(path, nil, 0o600))
}

func TestFirstHintMeansLookAtEverything(t *testing.T) {
	log, _ := newLog()
	w := New(t.Context(), []string{t.TempDir()}, never, digits, log)
	assert.Equal(t, take(t, w), Hint{})
}

func TestNamesThatAppearAreHinted(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	log, _ := newLog()
	w := New(t.Context(), []string{dir + "/"}, never, digits, log)
	take(t, w)
	assert.Must(t, w.Add(other))
	create(t, filepath.Join(dir, "..7"))
	create(t, filepath.Join(dir, "1"))
	assert.Equal(t, take(t, w), Hint{Dir: dir, Name: "1"}, "created")
	assert.Must(t, os.Rename(filepath.Join(dir, "..7"), filepath.Join(other, "7")))
	assert.Equal(t, take(t, w), Hint{Dir: other, Name: "7"}, "renamed")
	// Writing, chmod and removal are no hints: the next one is for a new name.
	assert.Must(t, os.WriteFile(filepath.Join(dir, "1"), []byte("x"), 0o600))
	assert.Must(t, os.Remove(filepath.Join(dir, "1")))
	create(t, filepath.Join(dir, "2"))
	assert.Equal(t, take(t, w), Hint{Dir: dir, Name: "2"})
}

// M9: with every notification dropped a look still comes within the interval.
func TestLookComesByPeriodWhenNotificationsAreLost(t *testing.T) {
	log, _ := newLog()
	w := start(t.Context(), []string{t.TempDir()}, 10*time.Millisecond, digits, log, func() (*notifier, error) {
		n, err := openNotifier()
		if err == nil {
			n.read = func(int, []byte) (int, error) { return 0, unix.EAGAIN }
		}
		return n, err
	})
	for range 4 {
		assert.Equal(t, take(t, w), Hint{})
	}
}

func TestRefusedInotifyIsLoggedOnce(t *testing.T) {
	log, out := newLog()
	w := start(t.Context(), []string{t.TempDir()}, 5*time.Millisecond, digits, log, func() (*notifier, error) {
		return nil, unix.EMFILE
	})
	if err := w.Add(t.TempDir()); err != nil {
		t.Errorf("add: %v", err)
	}
	for range 5 {
		take(t, w)
	}
	if got := strings.Count(out.String(), "\n"); got != 1 || !strings.Contains(out.String(), "msg=watch-refused") {
		t.Errorf("got %d lines, want one watch-refused:\n%s", got, out.String())
	}
}

func TestDirectoryMadeAgainIsWatchedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "router")
	log, _ := newLog()
	w := New(t.Context(), []string{dir}, 10*time.Millisecond, digits, log)
	for round := range 3 {
		assert.Must(t, os.Mkdir(dir, 0o700))
		// Two empty hints: the second period began after the directory was there.
		take(t, w)
		for h := take(t, w); h != (Hint{}); h = take(t, w) {
		}
		create(t, filepath.Join(dir, fmt.Sprint(round)))
		for take(t, w) != (Hint{Dir: dir, Name: fmt.Sprint(round)}) {
		}
		assert.Must(t, os.RemoveAll(dir))
	}
}

// M9: another directory at the path is watched from the next period on, whatever put it
// there: a rename of the directory or of one above it, a mount and its end.
func TestDirectoryThatIsReplacedIsWatchedAgain(t *testing.T) {
	rename := func(t *testing.T, moved, dir string) {
		assert.Must(t, errors.Join(os.Rename(moved, moved+".old"), os.MkdirAll(dir, 0o700)))
	}
	for name, replace := range map[string]func(t *testing.T, dir string){
		"renamed":        func(t *testing.T, dir string) { rename(t, dir, dir) },
		"renamed above":  func(t *testing.T, dir string) { rename(t, filepath.Dir(dir), dir) },
		"mounted upon":   func(t *testing.T, dir string) { mount(t, dir) },
		"mount is ended": nil,
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "postoffice", "router")
			assert.Must(t, os.MkdirAll(dir, 0o700))
			if replace == nil {
				unmount := mount(t, dir)
				replace = func(*testing.T, string) { unmount() }
			}
			log, _ := newLog()
			w := New(t.Context(), []string{dir}, 10*time.Millisecond, digits, log)
			take(t, w)
			create(t, filepath.Join(dir, "1"))
			for take(t, w) != (Hint{Dir: dir, Name: "1"}) {
			}
			replace(t, dir)
			// Two empty hints: the second period began after the directory was there.
			for range 3 {
				for take(t, w) != (Hint{}) {
				}
			}
			create(t, filepath.Join(dir, "2"))
			for take(t, w) != (Hint{Dir: dir, Name: "2"}) {
			}
		})
	}
}

// mount puts an empty file system upon a directory.
func mount(t *testing.T, dir string) (unmount func()) {
	t.Helper()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Skip("no right to mount here: ", err)
	}
	unmount = sync.OnceFunc(func() {
		assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	t.Cleanup(unmount)
	return unmount
}

// M9: a real overflow of the kernel's queue: what it dropped is found by a look at
// everything, without waiting for the period.
func TestRealOverflowMeansLookAtEverything(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip("no inotify here: ", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || limit > 100_000 {
		t.Skip("the kernel keeps too many events: ", string(text))
	}
	dir := t.TempDir()
	log, out := newLog()
	stuck, goOn := make(chan struct{}), make(chan struct{})
	// A reader that is busy: nothing takes events from the kernel.
	accept := func(name string) bool {
		if name == "stuck" {
			close(stuck)
			<-goOn
		}
		return name == "last"
	}
	w := New(t.Context(), []string{dir}, never, accept, log)
	take(t, w)
	create(t, filepath.Join(dir, "stuck"))
	<-stuck
	create(t, filepath.Join(dir, "x"))
	// Each rename is two events; the notifier itself holds some of them.
	for range limit/4 + 2*waiting {
		assert.Must(t, errors.Join(os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "y")),
			os.Rename(filepath.Join(dir, "y"), filepath.Join(dir, "x"))))
	}
	create(t, filepath.Join(dir, "last"))
	close(goOn)
	assert.Equal(t, take(t, w), Hint{Lost: true})
	// Hints go on afterwards.
	assert.Must(t, os.Remove(filepath.Join(dir, "last")))
	create(t, filepath.Join(dir, "last"))
	for take(t, w) != (Hint{Dir: dir, Name: "last"}) {
	}
	assert.Equal(t, out.String(), "", "log")
}

func TestAddNamesMissingDirectory(t *testing.T) {
	log, _ := newLog()
	w := New(t.Context(), nil, never, digits, log)
	missing := filepath.Join(t.TempDir(), "x")
	if err := w.Add(missing); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("got %v", err)
	}
}

func TestHintsThatFindNoRoomAreFoldedIntoOne(t *testing.T) {
	w := &Watcher{c: make(chan Hint, 3), accept: digits}
	var hints []Hint
	for i := range 10 {
		hints = append(hints, Hint{Dir: "/d", Name: fmt.Sprint(i)})
	}
	passed := make(chan struct{})
	go func() {
		w.pass(t.Context(), hints)
		close(passed)
	}()
	// The first three have room; then names that find some, and one for the others.
	for i := range 10 {
		got := take(t, w)
		if want := (Hint{Dir: "/d", Name: fmt.Sprint(i)}); got == want {
			continue
		}
		if got != (Hint{Lost: true}) || i < 3 {
			t.Errorf("hint %d: got %v", i, got)
		}
		break
	}
	<-passed
	assert.Equal(t, len(w.c), 0, "more")
}

func TestFloodEndsWithALookAtEverything(t *testing.T) {
	dir := t.TempDir()
	log, _ := newLog()
	w := New(t.Context(), []string{dir}, never, digits, log)
	const files = waiting + 500
	for i := range files {
		create(t, filepath.Join(dir, fmt.Sprint(i)))
	}
	// The hints say everything: each name, or an empty one after it appeared.
	last := fmt.Sprint(files - 1)
	for {
		h := take(t, w)
		if h.Name == last {
			return
		}
		if h == (Hint{Lost: true}) {
			if _, err := os.Lstat(filepath.Join(dir, last)); err != nil {
				t.Errorf("empty hint before the last file: %v", err)
			}
			return
		}
	}
}

func TestTroubleOfTheNotifierMeansLookAtEverything(t *testing.T) {
	log, out := newLog()
	trouble := make(chan error, 1)
	opened := 0
	dir := t.TempDir()
	w := start(t.Context(), []string{dir}, 20*time.Millisecond, digits, log, func() (*notifier, error) {
		n, err := openNotifier()
		opened++
		if err == nil && opened == 1 {
			n.read = func(fd int, b []byte) (int, error) {
				select {
				case err := <-trouble:
					return 0, err
				default:
					return unix.Read(fd, b)
				}
			}
		}
		return n, err
	})
	take(t, w)
	trouble <- unix.EIO
	create(t, filepath.Join(dir, "1"))
	for take(t, w) != (Hint{Lost: true}) {
	}
	assert.Contains(t, out.String(), "watch-error", "log")
	// Another one is opened, and names are told again.
	for i := 2; ; i++ {
		create(t, filepath.Join(dir, fmt.Sprint(i)))
		if h := take(t, w); h.Name != "" {
			break
		}
	}
}

// What is in the directory already wakes no one.
func TestOnlyNewNamesWakeTheReader(t *testing.T) {
	dir := t.TempDir()
	file := assert.Get(os.Create(filepath.Join(dir, "1")))(t)
	defer file.Close()
	log, _ := newLog()
	reads := 0
	w := prepare([]string{dir}, 0, digits, log, func() (*notifier, error) {
		n, err := openNotifier()
		if err == nil {
			n.read = func(fd int, b []byte) (int, error) {
				m, err := unix.Read(fd, b)
				if m > 0 {
					reads++
				}
				return m, err
			}
		}
		return n, err
	})
	defer w.Close()
	if got := w.Await(time.Time{}); len(got) != 1 || got[0] != (Hint{}) {
		t.Fatalf("got %v, want an empty hint", got)
	}
	_, werr := file.Write([]byte("x"))
	assert.Must(t, errors.Join(werr, file.Chmod(0o700), os.Rename(file.Name(), filepath.Join(t.TempDir(), "1"))))
	if got := w.Await(time.Now().Add(time.Millisecond)); len(got) != 0 || reads != 0 {
		t.Errorf("got %v and %d reads, want none", got, reads)
	}
	for _, name := range []string{"2", "3", "x"} {
		create(t, filepath.Join(dir, name))
	}
	got := w.Await(time.Time{})
	if want := []Hint{{Dir: dir, Name: "2"}, {Dir: dir, Name: "3"}}; !slices.Equal(got, want) || reads != 1 {
		t.Errorf("got %v by %d reads, want %v by one", got, reads, want)
	}
}

func TestEmptyHintsDoNotPileUp(t *testing.T) {
	w := &Watcher{c: make(chan Hint, 3), accept: digits}
	w.pass(t.Context(), []Hint{{}})
	if w.pass(t.Context(), []Hint{{}}); len(w.c) != 1 {
		t.Errorf("got %d hints, want one: it has not been taken", len(w.c))
	}
	if w.pass(t.Context(), []Hint{{Dir: "/d", Name: "1"}, {}}); len(w.c) != 3 {
		t.Errorf("got %d hints, want three: the last is behind a name", len(w.c))
	}
}

func TestNothingIsLeftWhenTheContextEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	files := openFiles(t)
	log, _ := newLog()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		w := New(ctx, []string{t.TempDir()}, time.Millisecond, digits, log)
		take(t, w)
		cancel()
		w.Wait()
		if err := w.Add(t.TempDir()); !errors.Is(err, context.Canceled) {
			t.Errorf("add after the end: got %v", err)
		}
	}
	if got := openFiles(t); got > files {
		t.Errorf("got %d descriptors, want %d", got, files)
	}
	// A goroutine that has said that it is done may still be counted.
	for end := time.Now().Add(deadline); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	if got := runtime.NumGoroutine(); got > before {
		t.Errorf("got %d goroutines, want %d", got, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc to count descriptors in")
	}
	return len(list)
}

// Op11: another interval takes effect while a watcher waits for the end of the one before.
func TestOp11IntervalChangesWhileItIsWaitedFor(t *testing.T) {
	w := New(t.Context(), []string{t.TempDir()}, time.Hour, func(string) bool { return true }, slog.New(slog.DiscardHandler))
	<-w.C() // the first hint comes at once
	w.SetInterval(10 * time.Millisecond)
	for range 3 {
		select {
		case h := <-w.C():
			assert.Equal(t, h, Hint{})
		case <-time.After(time.Minute):
			t.Fatal("the old interval goes on")
		}
	}
}
