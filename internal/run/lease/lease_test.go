package lease

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// clock is a virtual CLOCK_BOOTTIME.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Duration        { return time.Duration(c.now.Load()) }
func (c *clock) forward(d time.Duration)   { c.now.Add(int64(d)) }
func (c *clock) at(d time.Duration) *clock { c.now.Store(int64(d)); return c }

// rig is a page, with its writer and a reader on a virtual clock.
type rig struct {
	dir    string
	clock  *clock
	writer *Writer
	page   *Page
}

func newRig(t *testing.T) *rig {
	r := &rig{dir: t.TempDir(), clock: new(clock).at(1000 * time.Second)}
	r.writer = assert.Get(Create(r.dir, "a"))(t)
	r.page = r.open(t)
	return r
}

// open returns another reader.
func (r *rig) open(t *testing.T) *Page {
	return assert.Get(Open(Options{Dir: r.dir, Node: "a", Now: r.clock.Now}))(t)
}

func (r *rig) publish(number uint64, deadline time.Duration) {
	if err := r.writer.Publish(number, deadline); err != nil {
		panic(err)
	}
}

// kill leaves the page as the death of a writer does. The mapping holds the lock, too.
func kill(t *testing.T, w *Writer) {
	t.Helper()
	assert.Must(t, unix.Munmap(w.memory.bytes()), w.file.Close())
}

func (r *rig) file() string { return PathOf(r.dir, "a") }

// refuses checks that a page gives no lease.
func refuses(t *testing.T, p *Page) {
	t.Helper()
	if err := p.Check(0); !errors.Is(err, ErrNoLease) || errors.Is(err, os.ErrNotExist) {
		t.Errorf("Check: got %v, want ErrNoLease and no error of a file", err)
	}
	assert.Equal(t, p.Left(), 0, "left")
}

func TestNoClusterCostsOneComparison(t *testing.T) {
	var none *Page
	assert.Must(t, none.Check(math.MaxInt64))
	assert.Equal(t, none.Left(), math.MaxInt64, "left")
	assert.Equal(t, none.Joined(), false, "joined")
	ctx, cancel := none.While(context.Background())
	assert.Equal(t, ctx, context.Background(), "context")
	cancel()
	n := testing.AllocsPerRun(100, func() {
		if none.Check(Step) != nil {
			t.Fail()
		}
	})
	assert.Equal(t, n, 0, "allocations")
}

// C4: the deadline passes before, at and after a step.
func TestLeaseCountsUntilItsDeadline(t *testing.T) {
	r := newRig(t)
	refuses(t, r.page) // nothing was published
	r.publish(7, 1010*time.Second)
	assert.Equal(t, r.page.Left(), 10*time.Second, "left")
	assert.Must(t, r.page.Check(Step), r.page.Check(10*time.Second-1))
	if err := r.page.Check(10 * time.Second); !errors.Is(err, ErrNoLease) {
		t.Errorf("a step as long as the lease: got %v, want ErrNoLease", err)
	}
	r.clock.forward(9 * time.Second)
	assert.Must(t, r.page.Check(0))
	if err := r.page.Check(Step); !errors.Is(err, ErrNoLease) {
		t.Errorf("a step that would end at the deadline: got %v, want ErrNoLease", err)
	}
	r.clock.forward(time.Second - 1)
	assert.Must(t, r.page.Check(0))
	r.clock.forward(1)
	refuses(t, r.page)
	r.publish(7, 1020*time.Second)
	assert.Must(t, r.page.Check(Step))
	assert.Must(t, r.writer.Withdraw())
	refuses(t, r.page)
	n := testing.AllocsPerRun(100, func() { _ = r.page.Left() > time.Hour })
	t.Logf("%v allocations where there is no lease", n)
	r.publish(7, 1020*time.Second)
	n = testing.AllocsPerRun(100, func() {
		if r.page.Check(Step) != nil {
			t.Fail()
		}
	})
	assert.Equal(t, n, 0, "allocations of a look at a lease")
}

// Step 4 of the argument in docs/cluster.md: another lease makes nothing valid for a program of the
// one before.
func TestProgramBelongsToOneLease(t *testing.T) {
	r := newRig(t)
	r.publish(7, 1010*time.Second)
	assert.Must(t, r.page.Check(Step))
	assert.Must(t, r.writer.Withdraw())
	r.publish(8, 1015*time.Second)
	refuses(t, r.page)
	assert.Must(t, r.open(t).Check(Step)) // a program that was started after it
	r.publish(0, 1015*time.Second)        // no lease has this number
	refuses(t, r.open(t))
}

func TestDamagedPageIsNoLease(t *testing.T) {
	words := func(at int, w uint64) func(*testing.T, *rig) {
		return func(_ *testing.T, r *rig) { atomic.StoreUint64(&r.writer.memory[at], w) }
	}
	for name, damage := range map[string]func(*testing.T, *rig){
		"all zeros": func(t *testing.T, r *rig) {
			assert.Must(t, os.WriteFile(r.file(), make([]byte, size), 0o644))
		},
		"cut to nothing":        func(t *testing.T, r *rig) { assert.Must(t, os.Truncate(r.file(), 0)) },
		"one byte short":        func(t *testing.T, r *rig) { assert.Must(t, os.Truncate(r.file(), size-1)) },
		"too long":              func(t *testing.T, r *rig) { assert.Must(t, os.Truncate(r.file(), 2*size)) },
		"no magic number":       words(wordMagic, 0x1234),
		"another version":       words(wordMagic, magic&^(0xff<<48)|'2'<<48),
		"another node":          words(wordNode, 'b'),
		"a longer name":         words(wordNode+1, 'b'),
		"another boot":          words(wordBoot, 1),
		"no record in use":      words(wordInUse, 0),
		"a third record in use": words(wordInUse, 3),
		"another deadline":      func(_ *testing.T, r *rig) { atomic.AddUint64(&r.writer.memory[slot(r.writer.memory[wordInUse])+1], 1) },
		"another number":        func(_ *testing.T, r *rig) { atomic.AddUint64(&r.writer.memory[slot(r.writer.memory[wordInUse])], 1) },
		"another state": func(_ *testing.T, r *rig) {
			atomic.StoreUint64(&r.writer.memory[slot(r.writer.memory[wordInUse])+2], 9)
		},
		"another checksum":       func(_ *testing.T, r *rig) { atomic.AddUint64(&r.writer.memory[slot(r.writer.memory[wordInUse])+3], 1) },
		"a deadline too far":     func(_ *testing.T, r *rig) { r.publish(7, r.clock.Now()+Longest+again+1) },
		"a deadline at the end":  func(_ *testing.T, r *rig) { r.publish(7, math.MaxInt64) },
		"a deadline of 0":        func(_ *testing.T, r *rig) { r.publish(7, 0) },
		"a deadline before 1970": func(_ *testing.T, r *rig) { r.publish(7, math.MinInt64) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.publish(7, 1010*time.Second)
			assert.Must(t, r.page.Check(Step))
			damage(t, r)
			if name != "too long" && name != "one byte short" { // what is mapped is whole
				refuses(t, r.page)
			}
			r.clock.forward(again)
			refuses(t, r.open(t))
			if name == "all zeros" || strings.HasPrefix(name, "cut") {
				// A file that cannot be read does not end the next writer either.
				kill(t, r.writer)
				w := assert.Get(Create(r.dir, "a"))(t)
				assert.Must(t, w.Publish(7, r.clock.Now()+time.Second))
				r.clock.forward(again / 2)
				assert.Must(t, r.open(t).Check(0))
				kill(t, w)
			}
		})
	}
}

// A local user has no way to make a page, or to change one.
func TestPageOfAnotherUserIsNoLease(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	const stranger = 65533
	for name, change := range map[string]func(*testing.T, *rig){
		"the file is another user's":        func(t *testing.T, r *rig) { assert.Must(t, os.Chown(r.file(), stranger, 0)) },
		"the directory is another user's":   func(t *testing.T, r *rig) { assert.Must(t, os.Chown(r.dir, stranger, 0)) },
		"the one above is another user's":   func(t *testing.T, r *rig) { assert.Must(t, os.Chown(filepath.Dir(r.dir), stranger, 0)) },
		"the group may write the file":      func(t *testing.T, r *rig) { assert.Must(t, os.Chmod(r.file(), 0o664)) },
		"all may write the file":            func(t *testing.T, r *rig) { assert.Must(t, os.Chmod(r.file(), 0o666)) },
		"all may write the directory":       func(t *testing.T, r *rig) { assert.Must(t, os.Chmod(r.dir, 0o777)) },
		"the group may write the one above": func(t *testing.T, r *rig) { assert.Must(t, os.Chmod(filepath.Dir(r.dir), 0o775)) },
		"it has a second name":              func(t *testing.T, r *rig) { assert.Must(t, os.Link(r.file(), filepath.Join(r.dir, "b"))) },
		"a symbolic link to it": func(t *testing.T, r *rig) {
			assert.Must(t, os.Rename(r.file(), filepath.Join(r.dir, "b")), os.Symlink("b", r.file()))
		},
		"a symbolic link to its directory": func(t *testing.T, r *rig) {
			assert.Must(t, os.Rename(r.dir, r.dir+"2"), os.Symlink(r.dir+"2", r.dir))
		},
		"a pipe":      func(t *testing.T, r *rig) { assert.Must(t, os.Remove(r.file()), unix.Mkfifo(r.file(), 0o644)) },
		"a directory": func(t *testing.T, r *rig) { assert.Must(t, os.Remove(r.file()), os.Mkdir(r.file(), 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.publish(7, 1010*time.Second)
			assert.Must(t, r.open(t).Check(Step))
			change(t, r)
			refuses(t, r.open(t))
		})
	}
	t.Run("the postoffice's owner is accepted", func(t *testing.T) {
		r := newRig(t)
		r.publish(7, 1010*time.Second)
		assert.Must(t, os.Chown(r.file(), stranger, 0))
		p := assert.Get(Open(Options{Dir: r.dir, Node: "a", Owners: []uint32{stranger}, Now: r.clock.Now}))(t)
		assert.Must(t, p.Check(Step))
	})
	t.Run("a directory with the sticky bit is", func(t *testing.T) {
		r := newRig(t)
		r.publish(7, 1010*time.Second)
		assert.Must(t, os.Chmod(r.dir, 0o777|os.ModeSticky))
		assert.Must(t, r.open(t).Check(Step))
	})
}

// The program of another user cannot open the page for writing, nor make one in its place.
func TestStrangerCannotWriteThePage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	r := newRig(t)
	r.publish(7, 1010*time.Second)
	for name, script := range map[string]string{
		"write":   "printf x >> " + r.file(),
		"cut":     "truncate -s 0 " + r.file(),
		"remove":  "rm -f " + r.file(),
		"replace": "cp /dev/null " + r.dir + "/x && mv " + r.dir + "/x " + r.file(),
		"chmod":   "chmod 666 " + r.file(),
	} {
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%s: a stranger succeeded: %s", name, out)
		}
	}
	assert.Must(t, r.page.Check(Step), r.open(t).Check(Step))
}

func TestPageThatComesLaterIsFound(t *testing.T) {
	dir, c := t.TempDir(), new(clock).at(1000*time.Second)
	p := assert.Get(Open(Options{Dir: filepath.Join(dir, "run"), Node: "a", Now: c.Now}))(t)
	refuses(t, p)
	assert.Must(t, os.Mkdir(filepath.Join(dir, "run"), 0o755))
	w := assert.Get(Create(filepath.Join(dir, "run"), "a"))(t)
	assert.Must(t, w.Publish(7, 1010*time.Second))
	c.forward(again)
	assert.Must(t, p.Check(Step))
	// One that takes its place counts when the first does not any more, and for the same lease.
	assert.Must(t, os.Remove(PathOf(filepath.Join(dir, "run"), "a")), w.Close())
	w = assert.Get(Create(filepath.Join(dir, "run"), "a"))(t)
	assert.Must(t, w.Publish(7, 1020*time.Second))
	c.forward(again)
	assert.Must(t, p.Check(Step), w.Close())
	refuses(t, p)
}

func TestOnePublisherAtATime(t *testing.T) {
	r := newRig(t)
	if w, err := Create(r.dir, "a"); err == nil {
		t.Errorf("a second writer: got %v, want an error", w)
	}
	r.publish(7, 1010*time.Second)
	assert.Must(t, r.page.Check(Step))
	// The next one goes on with the page, so that programs see what it publishes.
	kill(t, r.writer)
	w := assert.Get(Create(r.dir, "a"))(t)
	refuses(t, r.page)
	assert.Must(t, w.Publish(7, 1011*time.Second))
	assert.Must(t, r.page.Check(Step))
	assert.Must(t, w.Close())
}

// While one process publishes, readers of this one never see a record that is half written: both
// values of a record belong together.
func TestRecordIsSeenWhole(t *testing.T) {
	r := newRig(t)
	r.publish(1, 1)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
				r.publish(n, time.Duration(n))
			}
		}
	})
	boot := assert.Get(bootID())(t)
	var torn int
	for range 200_000 {
		switch got, err := r.writer.memory.read("a", boot); {
		case err != nil:
			torn++ // the reader was not on a processor while several records were published
		case uint64(got.deadline) != got.number:
			t.Fatalf("got deadline %d of lease %d", got.deadline, got.number)
		}
	}
	close(stop)
	writer.Wait()
	t.Logf("%d of 200,000 looks found no whole record while another thread did nothing but publish", torn)
	if _, err := r.writer.memory.read("a", boot); err != nil {
		t.Error(err)
	}
}

// A writer that is killed between two stores leaves the record before.
func TestKilledWriterLeavesAWholeRecord(t *testing.T) {
	r := newRig(t)
	r.publish(7, 1010*time.Second)
	m, next := r.writer.memory, record{7, 1020 * time.Second, Held}
	at := wordFirst + wordNext - slot(m[wordInUse])
	for i, w := range []uint64{next.number, uint64(next.deadline), uint64(next.state), sum(&r.writer.head, &next)} {
		atomic.StoreUint64(&m[at+i], w)
		assert.Equal(t, r.page.Left(), 10*time.Second, "left after store ", i)
	}
	r.publish(7, 1020*time.Second)
	assert.Equal(t, r.page.Left(), 20*time.Second, "left")
}

func TestAtEndIsCalledOnceUnlessStopped(t *testing.T) {
	dir := t.TempDir()
	w := assert.Get(Create(dir, "a"))(t)
	p := assert.Get(Open(Options{Dir: dir, Node: "a"}))(t)
	assert.Must(t, w.Publish(7, Now()+50*time.Second))
	var stopped atomic.Int32
	stop := p.AtEnd(func() { stopped.Add(1) })
	stop()
	ended := make(chan struct{}) // closing it twice would panic
	p.AtEnd(func() { close(ended) })
	ctx, cancel := p.While(context.Background())
	defer cancel()
	assert.Must(t, w.Publish(7, Now()+30*time.Second))
	select {
	case <-ended:
		t.Fatal("the lease ended although it was renewed")
	case <-ctx.Done():
		t.Fatal("the context ended although the lease was renewed")
	case <-time.After(2 * look):
	}
	assert.Must(t, w.Withdraw())
	for _, c := range []<-chan struct{}{ended, ctx.Done()} {
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatal("the end of the lease was not noticed")
		}
	}
	if !errors.Is(context.Cause(ctx), ErrNoLease) {
		t.Errorf("cause: got %v, want ErrNoLease", context.Cause(ctx))
	}
	assert.Equal(t, stopped.Load(), 0, "calls after stop")
	// A program that has seen no lease waits for one.
	ctx, cancel = assert.Get(Open(Options{Dir: dir, Node: "a"}))(t).While(context.Background())
	select {
	case <-ctx.Done():
		t.Error("a program that has seen no lease was ended")
	case <-time.After(2 * look):
	}
	cancel()
}

// envWriter has this test's program publish, for TestAnotherProcessPublishes.
const envWriter = "LEASE_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envWriter); dir != "" {
		w, err := Create(dir, "a")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			var number, ns int64
			if n, _ := fmt.Sscan(in.Text(), &number, &ns); n == 2 {
				err = w.Publish(uint64(number), time.Duration(ns))
			}
			fmt.Println("done", err)
		}
		return // as if it had been killed: the page is left as it is
	}
	os.Exit(m.Run())
}

func TestAnotherProcessPublishes(t *testing.T) {
	dir, c := t.TempDir(), new(clock).at(1000*time.Second)
	self := assert.Get(os.Executable())(t)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envWriter+"="+dir)
	cmd.Stderr = os.Stderr
	in := assert.Get(cmd.StdinPipe())(t)
	out := bufio.NewReader(assert.Get(cmd.StdoutPipe())(t))
	assert.Must(t, cmd.Start())
	say := func(number uint64, deadline time.Duration) {
		t.Helper()
		_, err := fmt.Fprintln(in, number, int64(deadline))
		assert.Must(t, err)
		assert.Get(out.ReadString('\n'))(t)
	}
	say(7, 1010*time.Second)
	p := assert.Get(Open(Options{Dir: dir, Node: "a", Now: c.Now}))(t)
	assert.Equal(t, p.Left(), 10*time.Second, "left")
	if _, err := Create(dir, "a"); err == nil {
		t.Error("this process published beside another one")
	}
	say(7, 1020*time.Second)
	assert.Equal(t, p.Left(), 20*time.Second, "left")
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	assert.Equal(t, p.Left(), 20*time.Second, "left after the kill")
	w := assert.Get(Create(dir, "a"))(t)
	refuses(t, p)
	assert.Must(t, w.Close())
}

func BenchmarkCheck(b *testing.B) {
	dir := b.TempDir()
	w := assert.Get(Create(dir, "a"))(b)
	assert.Must(b, w.Publish(7, Now()+Longest))
	p := assert.Get(Open(Options{Dir: dir, Node: "a"}))(b)
	for name, page := range map[string]*Page{"no cluster": nil, "cluster": p} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if page.Check(Step) != nil {
					b.Fatal("no lease")
				}
			}
		})
	}
}
