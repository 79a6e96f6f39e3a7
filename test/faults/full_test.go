package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/test/load"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// fill takes all room of the file system at dir, or its inodes, and what becomes free
// later, until the result gives it back.
func (s *system) fill(dir string, inodes bool) (release func()) {
	s.Helper()
	filler := filepath.Join(dir, ".filler") // no name of the postoffice's
	s.must("fill", os.MkdirAll(filler, 0o755))
	room, err := os.Create(filepath.Join(filler, "room"))
	s.must("fill", err)
	n := 0
	take := func() error {
		if inodes {
			n++
			return os.WriteFile(filepath.Join(filler, fmt.Sprint(n)), nil, 0o600)
		}
		_, err := room.Write(make([]byte, 1<<10))
		return err
	}
	all := func() error {
		for {
			if err := take(); err != nil {
				return err
			}
		}
	}
	if err := all(); !errors.Is(err, unix.ENOSPC) {
		s.Fatalf("fill: %v", err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default: // room that becomes free has no event
				_ = all() // the disk is full again
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-stopped
		s.try("make room", errors.Join(room.Close(), os.RemoveAll(filler)))
	})
}

// fillUpTo takes the room of a file system but for so many bytes.
func (s *system) fillUpTo(dir string, rest int64) (release func()) {
	s.Helper()
	var st unix.Statfs_t
	s.must("statfs", unix.Statfs(dir, &st))
	name := filepath.Join(dir, "filler")
	s.must("fill", os.WriteFile(name, make([]byte, int64(st.Bavail)*st.Bsize-rest), 0o600))
	return func() { s.try("make room", os.Remove(name)) }
}

// loop makes an ext4 file system in a file and mounts it.
func (s *system) loop(dir string, megabytes int) {
	s.Helper()
	if os.Geteuid() != 0 {
		s.Skip("only root mounts")
	}
	for _, program := range []string{"mkfs.ext4", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			s.Skipf("%s is not installed", program)
		}
	}
	image := filepath.Join(s.TempDir(), "image")
	s.must("image", os.WriteFile(image, nil, 0o600))
	s.must("image", os.Truncate(image, int64(megabytes)<<20))
	// Nothing is kept for root, whose the daemons are here.
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", image).CombinedOutput(); err != nil {
		s.Skipf("mkfs.ext4: %v %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		s.Skipf("a loop device cannot be mounted here: %v %s", err, out)
	}
	s.Cleanup(func() { s.try("unmount "+dir, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// M2 K1 K12 S21: the postoffice's file system is full while mail is under way. New
// mail is refused for now and leaves nothing; what is inside goes on as far as it can;
// each daemon says it once; when there is room everything arrives, once. Headers are
// of all lengths, so that some of the specifications need another block at any of
// their appends.
func TestFullPostofficeLosesNothing(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		mount  func(s *system)
		inodes bool
	}{
		"tmpfs":               {func(s *system) { s.mount(s.PostOffice(), "tmpfs", "size=4m") }, false},
		"tmpfs out of inodes": {func(s *system) { s.mount(s.PostOffice(), "tmpfs", "size=8m,nr_inodes=400") }, true},
		"ext4":                {func(s *system) { s.loop(s.PostOffice(), 8) }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := prepare(t, nil)
			tt.mount(s)
			s.zmctl("init")
			s.load.Pad = 3000
			// What is delivered makes room: until the scheduler has met the full disk, nothing is.
			met, delivers := make(chan struct{}), sync.OnceFunc(func() {})
			if !tt.inodes {
				delivers = sync.OnceFunc(func() { close(met) })
				t.Cleanup(delivers)
				s.load.Sink.Stall = func(at string, _ *peer.Message) {
					if at == peer.AtDot {
						<-met
					}
				}
			}
			s.begin()
			if tt.inodes {
				// These agents end when the disk is full, and others start without a free inode.
				s.accepted(load.Relay, load.Local, load.Mbox)
				s.settle()
			}
			arrived, _ := s.load.Sink.Count()
			hold := s.stop("scheduler")
			for range 4 {
				s.accepted(load.Relay, load.Relay, load.Three, load.Later, load.Fail, load.Fail, load.Fail, load.Later)
			}
			s.await("routed messages", func() bool { return len(s.names("transport")) == 32 })
			holdRouter := s.stop("router")
			s.accepted(load.Relay, load.Local, load.Fail)
			room := s.fill(s.PostOffice(), tt.inodes)
			defer room()
			before := s.names("public")
			s.refused("452 ")
			if after := s.names("public"); len(after) > len(before) {
				t.Errorf("public/ held %q, and %q after two messages were refused", before, after)
			}
			if tt.inodes {
				for _, p := range append(s.running("ta-smtp"), s.running("ta-mailbox")...) {
					s.must("end "+p.Name, unix.Kill(p.Pid, unix.SIGKILL))
				}
			}
			holdRouter()
			s.event("storage-trouble", "program", "router")
			hold()
			if !tt.inodes {
				s.event("disk", "program", "scheduler") // a report, or a specification
			}
			delivers()
			s.must("deliver from a full postoffice", s.load.Sink.Wait(arrived+1, patience))
			// What is delivered makes room for a moment: either answer will do.
			s.load.Offer(s.ctx, 0, load.Relay, load.BySMTP)
			s.load.Offer(s.ctx, 0, load.Relay, load.BySubmit)
			room()
			s.load.Ways = []string{load.BySMTP}
			s.accepted(load.Relay)
			s.settle()
			s.saidOnce()
			for _, program := range []string{"smtpserver", "router"} {
				// What a daemon says of a message may come after its answer.
				s.await(program+"'s word of room for each complaint", func() bool {
					return s.Count("storage-recovered", "program", program) == s.Count("storage-trouble", "program", program)
				})
			}
			if got := s.Count("daemon-ended"); got > 0 {
				t.Errorf("%d daemons ended", got)
			}
		})
	}
}

// stop stops the processes of a program, until the result continues them.
func (s *system) stop(program string) (resume func()) {
	s.Helper()
	return s.stopAll(program, s.running(program))
}

// stopAll is stop for processes that were looked up before.
func (s *system) stopAll(program string, list []suite.Process) (resume func()) {
	s.Helper()
	if len(list) == 0 {
		s.Fatalf("no %s runs", program)
	}
	for _, p := range list {
		s.must("stop "+program, unix.Kill(p.Pid, unix.SIGSTOP))
		s.await("stopped "+program, func() bool { return p.Stopped() })
	}
	resume = sync.OnceFunc(func() {
		for _, p := range list {
			// The kernel may have continued it, and it have ended: see setpgid(2).
			if err := unix.Kill(p.Pid, unix.SIGCONT); err != unix.ESRCH {
				s.try("continue "+program, err)
			}
		}
	})
	s.Cleanup(resume)
	return resume
}

// saidOnce wants no complaint of a daemon twice with the same words.
func (s *system) saidOnce() {
	s.Helper()
	seen := map[string]int{}
	for _, e := range s.Events() {
		if trouble, ended := strings.CutSuffix(e.Word, "-recovered"); ended {
			// Where room comes and goes, trouble comes again.
			for what := range seen {
				if strings.HasPrefix(what, e.Program+" "+trouble+"-trouble ") {
					delete(seen, what)
				}
			}
		}
		if e.Level != "ERROR" {
			continue
		}
		seen[strings.Join([]string{e.Program, e.Word, e.Get("name"), e.Get("dir"), e.Get("reason")}, " ")]++
	}
	for what, n := range seen {
		if n > 1 {
			s.Errorf("said %d times: %s", n, what)
		}
	}
}

// The mailboxes' file system is full: mail for them is deferred with 4.3.1, an mbox is
// never left with a part of a message, and everything arrives once there is room.
func TestFullMailboxesDefer(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil)
	stores := filepath.Dir(s.load.Box())
	s.mount(stores, "tmpfs", "size=1m")
	s.mount(filepath.Join(s.Dir, "mail"), "tmpfs", "size=1m")
	s.load.Size = 60 << 10
	s.begin()
	s.accepted(load.Mbox, load.Local)
	s.settle()
	// Room for a part of a message: the write stops in the middle.
	rooms := []func(){s.fillUpTo(stores, 20<<10), s.fillUpTo(filepath.Join(s.Dir, "mail"), 20<<10)}
	before, err := os.ReadFile(s.load.Box())
	s.must("read", err)
	s.accepted(load.Mbox, load.Local, load.Three)
	for _, channel := range []string{"local", "file"} {
		s.event("deferred", "channel", channel, "status", "4.3.1")
	}
	for range 2 { // the next tries, too
		after, err := os.ReadFile(s.load.Box())
		s.must("read", err)
		if string(after) != string(before) && !strings.HasPrefix(string(after), string(before)) {
			t.Errorf("the mbox file was %d bytes and is %d, of another text", len(before), len(after))
		}
		s.Forget()
		s.event("deferred", "channel", "file", "status", "4.3.1")
	}
	if err := s.load.Sink.Wait(1, patience); err != nil {
		t.Errorf("the copy for another host waits for the mailboxes: %v", err)
	}
	for _, room := range rooms {
		room()
	}
	s.settle()
	if got := s.Count("failed"); got > 0 {
		t.Errorf("%d recipients failed for a full disk", got)
	}
}
