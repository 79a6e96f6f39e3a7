package attack

import (
	"errors"
	"fmt"
	"net/smtp"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/loopdisk"
)

// Sec8: names in public/ change in a race with the router that picks up: a message, then a
// link to somebody else's file, a fifo, a directory, a second name of the message, another
// file by exchange. Others' mail goes on, and no other file is read or changed.
func TestSec8SubmissionsInARace(t *testing.T) {
	eachMode(t, func(w *world) {
		mine := fmt.Appendf(nil, "to <%s@mta.example>\nenv-end\nSubject: race\n\nrace\n", w.alice.name)
		for i, dir := range w.open() {
			at := func(name string) string { return filepath.Join(dir, fmt.Sprintf("%s%d", name, i)) }
			complete, draft := at("77"), at("race.")
			w.a.race(op{Do: "file", Path: draft, Mode: 0o770, Data: mine}, op{Do: "rename", Path: draft, To: complete}, op{Do: "link", To: complete, Path: at("78")}, op{Do: "remove", Path: at("78")})
			w.a.race(op{Do: "symlink", Path: complete, To: w.root()}, op{Do: "remove", Path: complete})
			w.a.race(op{Do: "link", Path: complete, To: w.theirs()}, op{Do: "remove", Path: complete})
			w.a.race(op{Do: "fifo", Path: complete, Mode: 0o770}, op{Do: "remove", Path: complete})
			w.a.race(op{Do: "dir", Path: at("d")}, op{Do: "exchange", Path: at("d"), To: complete}, op{Do: "remove", Path: at("d")}, op{Do: "remove", Path: complete})
			w.a.race(op{Do: "file", Path: at("79"), Mode: 0o770, Data: mine}, op{Do: "write", Path: at("79"), Data: mine[:20]}, op{Do: "exchange", Path: at("79"), To: complete}, op{Do: "chmod", Path: complete, Mode: 0o400})
		}
		// Whose a name is changes meanwhile; that is looked at afterwards.
		for until := time.Now().Add(raceTime); time.Now().Before(until); {
			w.send()
			w.delivered()
		}
		if turns := w.a.stop(); turns < 100 {
			t.Errorf("the race had %d turns", turns)
		}
		w.check()
	})
}

// Sec8: a user puts 100,000 files into public/: drafts that are kept, messages that are
// none, and files that cannot be copied. Others' mail goes on.
func TestSec8ManyFilesOfOneUser(t *testing.T) {
	need(t)
	for _, mode := range []string{asRoot, asDaemon} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := begin(t, mode, func(w *world) { w.s.Settings["ROUTERPOLL"] = "15s" })
			for _, kind := range []op{
				{Path: "draft.", Mode: 0o600, N: 80000},
				{Path: "6", From: 1e8, Mode: 0o700, N: 10000, Data: []byte("comment octets 0000000000000999 00000000\n")},
				{Path: "left.", Mode: 0o700, N: 10000, Data: []byte("comment octets 0000000000000999 00000000\n")},
			} {
				kind.Do, kind.Path = "many", w.po("public/"+kind.Path)
				if made := w.a.do(kind); made.N != kind.N {
					t.Fatalf("he made %d files %s", made.N, kind.Path)
				}
				w.send()
				w.delivered()
			}
			w.check()
			w.s.Kill()
			w.must(w.s.Start())
			w.s.AwaitDaemons(patience)
			w.check()
		})
	}
}

// Sec8: a file with a hole, of many times the size of the disk, is not copied.
func TestSec8FileOfHolesFillsNoDisk(t *testing.T) {
	eachMode(t, func(w *world) {
		for n := range 8 {
			path := w.po(fmt.Sprintf("public/%d", n+1))
			w.a.do(op{Do: "file", Path: path + ".", Mode: 0o600, Data: fmt.Appendf(nil, "to <%s@mta.example>\nenv-end\n\n", w.alice.name)})
			w.must(os.Truncate(path+".", 1<<40)) // as he could
			w.a.do(op{Do: "chmod", Path: path + ".", Mode: 0o770})
			w.a.do(op{Do: "rename", Path: path + ".", To: path})
		}
		w.event("not-picked-up", "name", "public/1")
		w.check()
	})
}

// Sec8: a user has no block and no inode left by quota, with what could be made in public/
// before that. What the daemons make is not the user's: all other mail goes on.
func TestSec8UserAtTheQuotaStopsNobodyElse(t *testing.T) {
	need(t)
	for _, mode := range []string{asRoot, asDaemon} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			disk := loopdisk.New(t, 256<<20, "mkfs.ext4 -q -O quota -E quotatype=usrquota")
			disk.Mount(t, "usrquota")
			openUp(t, filepath.Dir(disk.Dir))
			openUp(t, disk.Dir)
			w := prepareIn(t, disk.Dir, mode, nil)
			if err := limit(disk.Dir, w.a.uid, 1000, 500); err != nil {
				t.Skip("this kernel keeps no quota: ", err)
			}
			w.start()
			mine := fmt.Appendf(nil, "to <%s@mta.example>\nenv-end\nSubject: x\n\nx\n", w.alice.name)
			if r := w.a.try(op{Do: "many", Path: w.po("public/draft."), Mode: 0o600, N: 1000, Data: mine}); r.Errno != unix.EDQUOT {
				t.Fatalf("he made %d files: %q, want EDQUOT", r.N, r.Error)
			}
			if r := w.a.try(op{Do: "file", Path: w.po("public/1"), Mode: 0o700}); r.Errno != unix.EDQUOT {
				t.Fatalf("he makes one more file: %q, want EDQUOT", r.Error)
			}
			w.check()
			// The last block: a file that he has grows until it cannot.
			big := make([]byte, 2<<20)
			if r := w.a.try(op{Do: "write", Path: w.po("public/draft.0"), Data: big}); r.Errno != unix.EDQUOT {
				t.Fatalf("he writes 2 MB: %q, want EDQUOT", r.Error)
			}
			w.a.do(op{Do: "chmod", Path: w.po("public/draft.1"), Mode: 0o770})
			w.a.do(op{Do: "rename", Path: w.po("public/draft.1"), To: w.po("public/1")})
			w.event("picked-up", "uid", fmt.Sprint(w.a.uid))
			w.check()
		})
	}
}

// Sec8: without quotas a user takes the last inode of the disk. Mail is refused for the time
// being, what was accepted stays, and when the files are gone all goes on.
func TestSec8LastInodeOfTheDisk(t *testing.T) {
	need(t)
	for _, mode := range []string{asRoot, asDaemon} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			disk := loopdisk.New(t, 64<<20, "mkfs.ext4 -q -N 4096")
			disk.Mount(t, "")
			openUp(t, filepath.Dir(disk.Dir))
			openUp(t, disk.Dir)
			w := prepareIn(t, disk.Dir, mode, nil)
			w.start()
			w.later.Store(true)
			waiting := w.smtp("far@sink.example")
			w.event("deferred", "rcpt", waiting.to)
			w.a.do(op{Do: "dir", Path: w.po("public/d")})
			if r := w.a.try(op{Do: "many", Path: w.po("public/d") + "/", Mode: 0o600, N: 10000}); r.Errno != unix.ENOSPC {
				t.Fatalf("he made %d files: %q, want ENOSPC", r.N, r.Error)
			}
			cmd := w.command(w.alice, "submit", "-i", w.bob.name+"@mta.example")
			cmd.Stdin = strings.NewReader("Subject: x\n\nx\n")
			if out, err := cmd.CombinedOutput(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 75 {
				t.Errorf("submit on a full disk: %v, want exit code 75\n%s", err, out)
			}
			reply := (*textproto.Error)(nil)
			send := func() error {
				return smtp.SendMail(w.s.SMTPAddr, nil, "x@far.example", []string{w.alice.name + "@mta.example"}, []byte("Subject: x\r\n\r\nx\r\n"))
			}
			err := send()
			if !errors.As(err, &reply) || reply.Code/100 != 4 {
				t.Errorf("SMTP on a full disk: %v, want a reply 4xx", err)
			}
			w.must(os.RemoveAll(w.po("public/d"))) // as he could, name by name
			w.later.Store(false)
			w.await("room on the disk", func() bool { return send() == nil })
			w.check()
		})
	}
}

// limit sets the quota of a user on a mounted file system: blocks of 1024 bytes, and files.
// As linux/quota.h has struct if_dqblk.
func limit(dir string, uid int, blocks, files uint64) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[1] != dir {
			continue
		}
		const setQuota, userQuota, limits = 0x800008, 0, 1 | 4
		block := struct {
			hardBlocks, softBlocks, space, hardFiles, softFiles, files, blockTime, fileTime uint64
			valid                                                                           uint32
		}{hardBlocks: blocks, hardFiles: files, valid: limits}
		device, err := unix.BytePtrFromString(f[0])
		if err != nil {
			return err
		}
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL, setQuota<<8|userQuota, uintptr(unsafe.Pointer(device)), uintptr(uid), uintptr(unsafe.Pointer(&block)), 0, 0)
		if errno != 0 {
			return os.NewSyscallError("quotactl", errno)
		}
		return nil
	}
	return fmt.Errorf("%s is not mounted", dir)
}
