package durable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// shared is a disk that counts its syncs; gate is asked within each.
type shared struct {
	alone, together atomic.Int64
	clock           atomic.Int64
	gate            func(n int) error
}

func (s *shared) SharesSync() bool { return true }

func (s *shared) SyncAll(files []File) error {
	s.together.Add(1)
	return s.sync(files)
}

func (s *shared) sync(files []File) error {
	began := s.clock.Add(1)
	for _, f := range files {
		f.(*sharedFile).began = began
	}
	if s.gate != nil {
		return s.gate(len(files))
	}
	return nil
}

type sharedFile struct {
	File
	disk  *shared
	began int64 // when the last sync of it began
}

func (f *sharedFile) Sync() error {
	f.disk.alone.Add(1)
	return f.disk.sync([]File{f})
}

// await returns when ok does, or fails the test.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("not seen in time: " + what)
		}
	}
}

// crowd has one file synced, and n others come while that goes on. It gives the errors of
// the others.
func crowd(t *testing.T, s *shared, n int) []error {
	t.Helper()
	g := &Group{fs: s}
	under, goOn := make(chan bool), make(chan bool)
	inner := s.gate
	var once sync.Once
	s.gate = func(files int) error {
		first := false
		once.Do(func() { first = true })
		if first {
			close(under)
			<-goOn
			return nil
		}
		if inner != nil {
			return inner(files)
		}
		return nil
	}
	var all sync.WaitGroup
	all.Go(func() {
		if err := g.Sync(&sharedFile{disk: s}); err != nil {
			t.Errorf("the first: %v", err)
		}
	})
	<-under
	errs := make([]error, n)
	for i := range n {
		all.Go(func() { errs[i] = g.Sync(&sharedFile{disk: s}) })
	}
	await(t, "all wait", func() bool { return g.Waiting() == n })
	close(goOn)
	all.Wait()
	if g.busy || g.Waiting() != 0 {
		t.Errorf("afterwards: busy %v, %d wait", g.busy, g.Waiting())
	}
	return errs
}

// M2: files that wait while the disk is busy share the next sync.
func TestWaitingFilesShareOneSync(t *testing.T) {
	for n, want := range map[int][2]int64{
		0: {1, 0}, 1: {2, 0}, 2: {1, 1}, 20: {1, 1}, groupMost: {1, 1}, groupMost + 1: {2, 1}, 2*groupMost + 3: {1, 3},
	} {
		t.Run(fmt.Sprint(n, " wait"), func(t *testing.T) {
			s := &shared{}
			for i, err := range crowd(t, s, n) {
				if err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
			assert.Equal(t, [2]int64{s.alone.Load(), s.together.Load()}, want, "syncs, alone and together")
		})
	}
}

// M2: a sync that fails is the failure of every file that shared it, and of no other.
func TestFailedSyncIsOfAllThatSharedIt(t *testing.T) {
	n := 0
	s := &shared{gate: func(int) error {
		if n++; n == 1 {
			return unix.EIO
		}
		return nil
	}}
	failed := 0
	for _, err := range crowd(t, s, groupMost+10) {
		if err != nil && !errors.Is(err, unix.EIO) {
			t.Errorf("got %v, want EIO", err)
		}
		if err != nil {
			failed++
		}
	}
	assert.Equal(t, failed, groupMost, "failures")
}

// M2: no answer precedes its sync: the sync that a file waited for began after the call.
func TestSyncBeganAfterTheCall(t *testing.T) {
	s := &shared{}
	g := &Group{fs: s}
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			f := &sharedFile{disk: s}
			for range 2000 {
				written := s.clock.Add(1)
				if err := g.Sync(f); err != nil || f.began <= written {
					t.Errorf("got %v, written at %d, its sync began at %d", err, written, f.began)
					return
				}
				if random.IntN(50) == 0 {
					s.clock.Add(1)
				}
			}
		})
	}
	all.Wait()
}

func TestDiskThatSharesNothingSyncsEach(t *testing.T) {
	var g *Group
	s := &shared{}
	if err := g.Sync(&sharedFile{disk: s}); err != nil || s.alone.Load() != 1 {
		t.Errorf("got %v, %d syncs", err, s.alone.Load())
	}
	o := assert.Get(NewOS(t.TempDir()))(t)
	defer o.Close()
	for _, want := range []bool{true, false} {
		o.storage = func() storage { return storage{journalled: want} }
		assert.Equal(t, NewGroup(o) != nil, want, "journal: a group")
	}
}

// K1: many files of the real file system are synced at once; one that cannot be is an error.
func TestManyFilesAreSyncedAtOnce(t *testing.T) {
	o := assert.Get(NewOS(t.TempDir()))(t)
	defer o.Close()
	t.Logf("changes in one journal: %v", o.SharesSync())
	for _, journal := range []bool{true, false} {
		o.storage = func() storage { return storage{journalled: journal} }
		var files []File
		for i := range 5 {
			f := assert.Get(o.Open(fmt.Sprintf("%v%d", journal, i), os.O_RDWR|os.O_CREATE, 0o640))(t)
			defer f.Close()
			assert.Get(f.Write([]byte("text")))(t)
			files = append(files, f)
		}
		if err := o.SyncAll(files); err != nil {
			t.Errorf("journal %v: %v", journal, err)
		}
		if info, err := files[4].Stat(); err != nil || info.Mode != 0o640 {
			t.Errorf("journal %v: got %+v, %v, want the mode as it was", journal, info, err)
		}
		lost := &osFile{fd: -1, name: "lost"}
		if err := o.SyncAll(append(files, lost)); !errors.Is(err, unix.EBADF) {
			t.Errorf("journal %v: got %v, want EBADF", journal, err)
		}
	}
}

func TestMountIsFoundByItsNumber(t *testing.T) {
	const mounts = `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
35 27 8:17 / /srv/a\040b rw,relatime shared:1 master:2 - xfs /dev/sdb1 rw,noquota
36 27 0:40 / /short
37 27 0:41 / /over rw - overlay overlay rw,lowerdir=/l
`
	for name, c := range map[string]struct {
		major, minor uint32
		kind, source string
	}{
		"the root":             {254, 0, "ext4", "/dev/vda"},
		"with optional fields": {8, 17, "xfs", "/dev/sdb1"},
		"a broken line":        {0, 40, "", ""},
		"overlay":              {0, 41, "overlay", "overlay"},
		"none":                 {1, 1, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := findMount([]byte(mounts), deviceNumber(unix.Mkdev(c.major, c.minor)), "")
			if kind, source := m.Kind, m.Source; kind != c.kind || source != c.source {
				t.Errorf("got %q, %q, want %q, %q", kind, source, c.kind, c.source)
			}
		})
	}
}

func TestKernelVersions(t *testing.T) {
	for release, want := range map[string]bool{
		"5.2.0": true, "5.2": true, "5.10.0-28-amd64": true, "6.1.0": true, "10.0": true,
		"5.1.21": false, "4.19.0": false, "5": false, "": false, "5.2-rc1": true, "x.y": false,
	} {
		assert.Equal(t, versionFrom(release, 5, 2), want, release)
	}
}

// Dur2: an error of any step of a shared sync, also of the one that only begins the
// write-back, is the error of every file in the group.
func TestDur2ErrorOfAnyStepFailsTheGroup(t *testing.T) {
	const members = 5
	failing := func(at int) func(*osFile) error {
		n := 0
		return func(*osFile) error {
			if n++; n == at {
				return unix.EUCLEAN
			}
			return nil
		}
	}
	for name, breakIt := range map[string]func(c *syncCalls){
		"begin, first file": func(c *syncCalls) { c.begin = failing(1) },
		"begin, third file": func(c *syncCalls) { c.begin = failing(3) },
		"begin, last file":  func(c *syncCalls) { c.begin = failing(members) },
		"write, first file": func(c *syncCalls) { c.write = failing(1) },
		"write, last file":  func(c *syncCalls) { c.write = failing(members) },
		"touch":             func(c *syncCalls) { c.touch = failing(1) },
		"commit":            func(c *syncCalls) { c.commit = failing(1) },
	} {
		t.Run(name, func(t *testing.T) {
			o, err := NewOS(t.TempDir())
			assert.Must(t, err)
			defer o.Close()
			o.storage = func() storage { return storage{journalled: true} }
			breakIt(&o.calls)
			files := make([]File, members)
			for i := range files {
				files[i], err = o.Open(fmt.Sprint(i), os.O_RDWR|os.O_CREATE, 0o600)
				assert.Must(t, err)
				defer files[i].Close()
			}
			g := &Group{fs: o, busy: true} // the disk is busy with another file
			errs := make([]error, members)
			var all sync.WaitGroup
			for i, f := range files {
				all.Go(func() { errs[i] = g.Sync(f) })
			}
			await(t, "all wait", func() bool { return g.Waiting() == members })
			g.leave()
			all.Wait()
			for i, err := range errs {
				if !errors.Is(err, unix.EUCLEAN) {
					t.Errorf("file %d: got %v, want EUCLEAN", i, err)
				}
			}
		})
	}
}

// Where the kernel knows no sync_file_range each file is synced.
func TestDur2MissingCallSyncsEach(t *testing.T) {
	o := assert.Get(NewOS(t.TempDir()))(t)
	defer o.Close()
	o.storage = func() storage { return storage{journalled: true} }
	o.calls.begin = func(*osFile) error { return unix.ENOSYS }
	f := assert.Get(o.Open("a", os.O_RDWR|os.O_CREATE, 0o600))(t)
	defer f.Close()
	assert.NoError(t, o.SyncAll([]File{f, f}))
}
