package closed

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/helper"
	"zmailer/internal/run/helper/helpertest"
)

// policy takes who runs this, and 4711, for people.
func policy() Policy {
	return Policy{Lowest: uint32(max(1, min(4711, os.Geteuid()))), Forward: "~/.forward"}
}

// pair returns a client with a server in this process, which is closed by stop.
func pair(t *testing.T) (c *Client, stop func()) {
	t.Helper()
	router, reader := helpertest.Pair(t)
	served := make(chan error, 1)
	go func() { served <- Serve(reader, policy()) }()
	t.Cleanup(func() {
		router.Close()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return NewClient(router), func() { reader.Close() }
}

// ordinary makes a file of an ordinary user's.
func ordinary(t *testing.T, name, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(name, []byte(text), 0o600))
	if os.Geteuid() == 0 {
		assert.Must(t, os.Chown(name, 4711, 4711))
	}
}

func TestFilesOfUsersAreOpenedAndNothingElse(t *testing.T) {
	c, _ := pair(t)
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "forward"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	ordinary(t, file, "bond\n")
	assert.Must(t, errors.Join(os.Symlink("forward", link), unix.Mkfifo(fifo, 0o666)))
	if info, to, err := c.Look(file); err != nil || info.Size() != 5 || to != "" {
		t.Errorf("look at a file: %v, %q, %v", info, to, err)
	}
	if info, to, err := c.Look(link); err != nil || info.Mode()&fs.ModeSymlink == 0 || to != "forward" {
		t.Errorf("look at a link: %v, %q, %v", info, to, err)
	}
	for _, name := range []string{file, link} {
		f := assert.Get(c.Open(name))(t)
		b, err := io.ReadAll(f)
		if _, werr := f.Write([]byte("x")); err != nil || string(b) != "bond\n" || werr == nil {
			t.Errorf("%s: %q, %v, written: %v", name, b, err, werr)
		}
		f.Close()
	}
	// /etc/shadow is root's; it may be readable to no one who runs this.
	for _, name := range []string{"/etc/shadow", "/etc/passwd", "/dev/null", fifo, dir, "/proc/1/environ"} {
		if f, err := c.Open(name); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	for _, name := range []string{filepath.Join(dir, "none"), filepath.Join(file, "below"), "relative", "", strings.Repeat("/x", 5000), strings.Repeat("/x", 50000)} {
		_, _, err := c.Look(name)
		if f, oerr := c.Open(name); err == nil || oerr == nil || errors.Is(oerr, ErrGone) {
			t.Errorf("%.20s: %v; %v, %v", name, err, f, oerr)
		}
	}
	if _, _, err := c.Look(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
}

func TestManyAskAtOnceAndEachGetsHisOwn(t *testing.T) {
	c, _ := pair(t)
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 20 {
		name := filepath.Join(dir, strings.Repeat("x", i+1))
		ordinary(t, name, name)
		all.Go(func() {
			for range 20 {
				f, err := c.Open(name)
				if err != nil {
					t.Error(err)
					return
				}
				if b, err := io.ReadAll(f); err != nil || string(b) != name {
					t.Errorf("%s: got %q, %v", name, b, err)
				}
				f.Close()
			}
		})
	}
	all.Wait()
}

func TestEndOfTheOtherProcessIsNoAnswerAboutAFile(t *testing.T) {
	c, stop := pair(t)
	stop()
	<-c.Gone()
	_, err := c.Open("/etc/passwd")
	if err == nil || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// A descriptor of a directory, or of a file that was only looked at, would be a way to what is
// closed: it could be walked, or opened again.
func TestNoDescriptorComesWithALook(t *testing.T) {
	router, reader := helpertest.Pair(t)
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	assert.Must(t, os.Symlink("to \xff", link))
	var writing sync.Mutex
	for n, name := range []string{dir, "/etc/passwd", link} {
		reply(reader, &writing, policy(), order{N: uint64(n), Look: []byte(name)})
		var a answer
		files, err := helper.Receive(router, maxMessage, &a)
		if err != nil || len(files) != 0 || a.N != uint64(n) || a.Seen == nil {
			t.Errorf("%s: %d descriptors, %+v, %v", name, len(files), a, err)
		}
	}
}

func TestALookTellsWhatLstatTells(t *testing.T) {
	c, _ := pair(t)
	dir := t.TempDir()
	file, link, fifo, sticky := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "sticky")
	ordinary(t, file, "x")
	err := errors.Join(os.Symlink("\xfe", link), unix.Mkfifo(fifo, 0o600), os.Mkdir(sticky, 0o700), os.Chmod(sticky, 0o777|fs.ModeSticky|fs.ModeSetgid))
	assert.Must(t, err)
	for _, name := range []string{file, link, fifo, sticky, dir, "/dev/null"} {
		got, to, err := c.Look(name)
		assert.Must(t, err)
		want := assert.Get(os.Lstat(name))(t)
		g, w := got.Sys().(*syscall.Stat_t), want.Sys().(*syscall.Stat_t)
		if got.Mode() != want.Mode() || got.Name() != want.Name() || got.Size() != want.Size() || !got.ModTime().Equal(want.ModTime()) ||
			g.Dev != w.Dev || g.Ino != w.Ino || g.Mtim != w.Mtim || g.Mode != w.Mode || g.Uid != w.Uid || g.Gid != w.Gid {
			t.Errorf("%s: got %v, %+v, want %v, %+v", name, got.Mode(), g, want.Mode(), w)
		}
		if name == link && to != "\xfe" {
			t.Errorf("the link leads to %q", to)
		}
	}
}

func TestPathsAreBytes(t *testing.T) {
	c, _ := pair(t)
	name := filepath.Join(t.TempDir(), "J\xfcrgen")
	ordinary(t, name, "x")
	if _, _, err := c.Look(name); err != nil {
		t.Error(err)
	}
	f := assert.Get(c.Open(name))(t)
	f.Close()
}

func TestOrdersThatHangKeepNobodyElseWaiting(t *testing.T) {
	router, reader := helpertest.Pair(t)
	c := newClient(router, 20*time.Millisecond)
	heard := make(chan uint64, 2*atOnce)
	go func() {
		for {
			var o order
			if _, err := helper.Receive(reader, maxMessage, &o); err != nil {
				close(heard)
				return
			}
			heard <- o.N
		}
	}()
	var all sync.WaitGroup
	for range mostAsked {
		all.Go(func() {
			if _, err := c.Open("/x"); !errors.Is(err, ErrSilent) {
				t.Errorf("got %v", err)
			}
		})
	}
	all.Wait()
	if n := len(heard); n != mostAsked || n >= atOnce {
		t.Fatalf("%d orders came", n)
	}
	// All places are taken: the next is not even sent, and does not wait.
	c.patience = time.Hour
	if _, err := c.Open("/x"); !errors.Is(err, ErrSilent) || len(heard) != mostAsked {
		t.Fatalf("got %v, %d orders", err, len(heard))
	}
	// One answer, however late, frees a place.
	var writing sync.Mutex
	free := make(chan struct{})
	go func() {
		defer close(free)
		for c.late.Load() == mostAsked {
			runtime.Gosched()
		}
	}()
	assert.Must(t, say(reader, &writing, answer{N: <-heard, Errno: syscall.ENOENT}, nil))
	<-free
	done := make(chan error, 1)
	go func() { _, err := c.Open("/y"); done <- err }()
	last := uint64(0)
	for last <= mostAsked {
		last = <-heard
	}
	assert.Must(t, say(reader, &writing, answer{N: last, Errno: syscall.EISDIR}, nil))
	if err := <-done; !errors.Is(err, syscall.EISDIR) {
		t.Errorf("got %v", err)
	}
	reader.Close()
}

// crowded takes no descriptors.
type crowded struct{ said [][]byte }

func (c *crowded) WriteMsgUnix(b, rights []byte, _ *net.UnixAddr) (n, rn int, err error) {
	if len(rights) > 0 {
		return 0, 0, syscall.ETOOMANYREFS
	}
	c.said = append(c.said, b)
	return len(b), 0, nil
}

func TestAnAnswerComesEvenIfItsDescriptorCannot(t *testing.T) {
	name := filepath.Join(t.TempDir(), "forward")
	ordinary(t, name, "x")
	var to crowded
	var writing sync.Mutex
	reply(&to, &writing, policy(), order{N: 7, Open: []byte(name)})
	var a answer
	if len(to.said) != 1 {
		t.Fatalf("%d answers", len(to.said))
	}
	if err := json.Unmarshal(to.said[0], &a); err != nil || a.N != 7 || a.Errno != syscall.EIO {
		t.Errorf("got %+v, %v", a, err)
	}
}
