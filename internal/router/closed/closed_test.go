package closed

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is a client with a server in this process, which is closed by stop.
func pair(t *testing.T) (c *Client, stop func()) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		ends[i], err = unixConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	served := make(chan error, 1)
	go func() { served <- Serve(ends[1]) }()
	t.Cleanup(func() {
		ends[0].Close()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return NewClient(ends[0]), func() { ends[1].Close() }
}

// ordinary makes a file of an ordinary user's.
func ordinary(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(name, 4711, 4711); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesOfUsersAreOpenedAndNothingElse(t *testing.T) {
	c, _ := pair(t)
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "forward"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	ordinary(t, file, "bond\n")
	if err := errors.Join(os.Symlink("forward", link), unix.Mkfifo(fifo, 0o666)); err != nil {
		t.Fatal(err)
	}
	if info, to, err := c.Look(file); err != nil || info.Size() != 5 || to != "" {
		t.Errorf("look at a file: %v, %q, %v", info, to, err)
	}
	if info, to, err := c.Look(link); err != nil || info.Mode()&fs.ModeSymlink == 0 || to != "forward" {
		t.Errorf("look at a link: %v, %q, %v", info, to, err)
	}
	for _, name := range []string{file, link} {
		f, err := c.Open(name)
		if err != nil {
			t.Fatal(err)
		}
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
