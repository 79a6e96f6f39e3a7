package disk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/disk/blockdev"
	"zmailer/test/load"
)

// acceptor runs smtpserver alone until the test calls the result or ends: what is
// accepted stays on the disk, and nothing is delivered from the page cache.
func acceptor(t *testing.T, s *Site) (end func()) {
	t.Helper()
	cmd := s.Load.Suite.Command("smtpserver")
	assert.Must(t, cmd.Start())
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // a port has no event
		c, err := net.Dial("tcp", s.Load.Suite.SMTPAddr)
		if err == nil {
			c.Close()
			return end
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// offer offers messages by SMTP, all at once, and counts what their submitters were told.
func offer(t *testing.T, s *Site, number int) map[load.Fate]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tries := make([]load.Try, number)
	var all sync.WaitGroup
	for i := range tries {
		all.Go(func() { tries[i] = s.Load.Offer(ctx, 0, load.Relay, load.BySMTP) })
	}
	all.Wait()
	fates := map[load.Fate]int{}
	for _, try := range tries {
		if fates[try.Fate]++; try.Fate == load.Denied || try.Fate == load.Unsure {
			t.Errorf("not answered 4xx: %v", &try)

		}
	}
	return fates
}

// recovered has the whole system start on the disk as it is without faults, take mail and
// deliver all that is there, and compares.
func recovered(t *testing.T, s *Site) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	assert.Must(t, s.Load.Suite.Start())
	if err := s.Load.Send(ctx, 0, load.Relay, load.Local, load.Mbox); err != nil {
		t.Errorf("mail is not taken after the disk has recovered: %v", err)
	}
	if err := s.drainWhole(ctx); err != nil {
		t.Errorf("%v\n%s", err, s.Load.Suite.Log())
	}
	a, err := s.Load.Audit()
	assert.Must(t, err)
	// A refused message may arrive: the disk may have refused its removal, too.
	if len(a.Lost)+len(a.Torn)+len(a.Denied)+len(a.Duplicated) > 0 {
		t.Errorf("%v\n%s", a, s.Load.Suite.Log())
	}
}

// fault is a way in which the disk fails while mail comes in.
type fault struct {
	name  string
	armed blockdev.Fault
	// works: the disk does what it should, only not well. Mail is accepted.
	works bool
	// passes: the fault ends by itself, and mail is accepted while the file system stays
	// mounted.
	passes bool
}

// Text that is in every message of the load, in the middle of its body.
const text = " 000002 xxx"

var faults = []fault{
	{name: "writes fail", armed: blockdev.Fault{Op: blockdev.Write, Errno: syscall.EIO}},
	{name: "no room on the disk", armed: blockdev.Fault{Op: blockdev.Write, Errno: syscall.ENOSPC}},
	{name: "writes of messages fail", armed: blockdev.Fault{Op: blockdev.Write, Containing: text, Errno: syscall.EIO}},
	{name: "writes of messages are torn", armed: blockdev.Fault{Op: blockdev.Write, Containing: text, Sectors: 1, Errno: syscall.EIO}},
	{name: "flushes fail", armed: blockdev.Fault{Op: blockdev.Flush, Errno: syscall.EIO}},
	{name: "some writes of messages fail", armed: blockdev.Fault{Op: blockdev.Write, Containing: text, Skip: 2, Times: 3, Errno: syscall.EIO}, passes: true},
	{name: "flushes are slow", armed: blockdev.Fault{Op: blockdev.Flush, Whole: true, Delay: 100 * time.Millisecond}, works: true},
}

// Dur2: any error of any step of a shared fsync fails the whole group. While the disk
// fails no one gets a positive reply, and what was acknowledged is there when it works again.
func TestDur2FailingDiskLosesNothingThatWasAnswered(t *testing.T) {
	eachFS(t, func(t *testing.T, fs blockdev.FileSystem) {
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) {
				s := site(t, fs)
				s.Load.Size = 3000
				end := acceptor(t, s)
				if got := offer(t, s, 5); got[load.Accepted] != 5 {
					t.Fatalf("before the disk fails: %v", got)
				}
				assert.Must(t, s.Disk.Arm(f.armed))
				got := offer(t, s, 20)
				hits := assert.Get(s.Disk.Hits())(t)
				t.Logf("%v, %d operations failed", got, hits[0])
				switch {
				case hits[0] == 0:
					t.Error("the fault was never met")
				case f.works && got[load.Accepted] != 20:
					t.Errorf("a slow disk: %v", got)
				case f.passes && (got[load.Refused] == 0 || offer(t, s, 5)[load.Accepted] != 5):
					t.Errorf("while the disk failed: %v; or mail is not accepted after it", got)
				case !f.works && !f.passes && got[load.Accepted] > 0:
					t.Errorf("messages were accepted on a disk that fails: %v", got)
				}
				end()
				assert.Must(t, s.Unmount())
				assert.Must(t, s.Disk.Arm())
				assert.Must(t, s.Mount())
				recovered(t, s)
			})
		}
	})
}

// A bitmap of free blocks that cannot be read is no yes, either.
func TestUnreadableBitmapIsNoYes(t *testing.T) {
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	s := site(t, blockdev.FileSystems()[0])
	s.Load.Size = 3000
	assert.Must(t, s.Unmount())
	assert.Must(t, s.Disk.Arm(blockdev.Fault{Op: blockdev.Read, Ranges: bitmaps(t, s.Disk.Image()), Errno: syscall.EIO}))
	assert.Must(t, s.Mount())
	end := acceptor(t, s)
	got := offer(t, s, 20)
	hits := assert.Get(s.Disk.Hits())(t)
	if hits[0] == 0 || got[load.Refused] != 20 {
		t.Errorf("%v, %d reads failed", got, hits[0])
	}
	end()
	assert.Must(t, s.Unmount())
	assert.Must(t, s.Disk.Arm())
	assert.Must(t, s.Mount())
	recovered(t, s)
}

// Where every allocation of a block fails, write(2) succeeds and the data are dropped at
// write-back. What of a group is then said by which call is tried in internal/disk/durable.
func TestNoBlockForTheDataIsNoYes(t *testing.T) {
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	fs := blockdev.FileSystems()[0]
	// Many inodes make a large inode table in the one group of blocks.
	fs.Mkfs = []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-I", "256", "-N", "32768", "-O", "^resize_inode", "-E", "nodiscard,lazy_itable_init=0"}
	s := site(t, fs)
	s.Load.Size = 3000
	assert.Must(t, s.Unmount())
	damage(t, s.Disk.Image())
	assert.Must(t, s.Mount())
	// Flushes are slow, so that what comes meanwhile is synced together.
	assert.Must(t, s.Disk.Arm(blockdev.Fault{Op: blockdev.Flush, Whole: true, Delay: 50 * time.Millisecond}))
	end := acceptor(t, s)
	got := offer(t, s, 40)
	t.Logf("%v", got)
	if got[load.Accepted] > 0 {
		t.Errorf("messages were accepted for which the disk has no block: %v", got)
	}
	end()
	assert.Must(t, s.Unmount())
	assert.Must(t, s.Disk.Arm())
	// Exit code 1: errors were corrected.
	if out, err := exec.Command("e2fsck", "-f", "-y", s.Disk.Image()).CombinedOutput(); err != nil && exitCode(err) != 1 {
		t.Fatalf("e2fsck: %v\n%s", err, out)
	}
	assert.Must(t, s.Mount())
	recovered(t, s)
}

func exitCode(err error) int {
	exit := (*exec.ExitError)(nil)
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// damage has the bitmap of an ext4 file system call blocks free that belong to its own
// inode table, and no others: names can be made, and every allocation of a block fails.
func damage(t *testing.T, image string) {
	t.Helper()
	out, err := exec.Command("dumpe2fs", image).Output()
	assert.Must(t, err)
	table := regexp.MustCompile(`Inode table at (\d+)-(\d+)`).FindSubmatch(out)
	free := regexp.MustCompile(`(?m)^  Free blocks: (.*)$`).FindSubmatch(out)
	if table == nil || free == nil {
		t.Fatalf("dumpe2fs prints:\n%s", out)
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		assert.Must(t, err)
		return n
	}
	var script strings.Builder
	for part := range strings.SplitSeq(string(free[1]), ", ") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		fmt.Fprintf(&script, "setb %s %d\n", first, number(last)-number(first)+1)
	}
	// The first quarter of the table has the inodes that are in use.
	begin := (3*number(string(table[1])) + number(string(table[2]))) / 4
	blocks := number(string(table[2])) - begin + 1
	fmt.Fprintf(&script, "freeb %d %d\nssv free_blocks_count %d\nset_bg 0 free_blocks_count %d\nset_bg 0 checksum calc\n",
		begin, blocks, blocks, blocks)
	cmd := exec.Command("debugfs", "-w", "-f", "-", image)
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("debugfs: %v\n%s", err, out)
	}
}

// bitmaps returns the blocks of an ext4 file system in which free blocks stand.
func bitmaps(t *testing.T, image string) (list []blockdev.Range) {
	t.Helper()
	out, err := exec.Command("dumpe2fs", image).Output()
	if err != nil {
		t.Fatalf("dumpe2fs: %v", err)
	}
	for _, m := range regexp.MustCompile(`Block bitmap at (\d+)`).FindAllSubmatch(out, -1) {
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		assert.Must(t, err)
		list = append(list, blockdev.Range{Begin: n * 4096, End: (n + 1) * 4096})
	}
	if len(list) == 0 {
		t.Fatal(fmt.Errorf("no bitmap in what dumpe2fs prints:\n%s", out))
	}
	return list
}
