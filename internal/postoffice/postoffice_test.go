package postoffice

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// TestMain serves as a second process: with HOLD_OWNER set it takes an owner number
// in that postoffice, prints it, and lives until its standard input ends.
func TestMain(m *testing.M) {
	if dir := os.Getenv("HOLD_OWNER"); dir != "" {
		p, err := OpenDir(dir, 0, false)
		if err == nil {
			var o *Owner
			if o, err = p.Owners.Take("test"); err == nil {
				fmt.Println(o.Number())
				_, _ = io.Copy(io.Discard, os.Stdin)
				os.Exit(0)
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func newPostOffice(t testing.TB, levels int) (*PostOffice, string) {
	t.Helper()
	dir := t.TempDir()
	f := assert.Get(durable.NewOS(dir))(t)
	t.Cleanup(func() { f.Close() })
	assert.Must(t, Init(f))
	p := assert.Get(Open(Config{FS: f, HashLevels: levels}))(t)
	return p, dir
}

func submit(t testing.TB, p *PostOffice, text string) Accepted {
	t.Helper()
	return submitInto(t, p, Router, text)
}

// submitInto accepts a message in a router directory.
func submitInto(t testing.TB, p *PostOffice, dir, text string) Accepted {
	t.Helper()
	d := assert.Get(p.Submissions.NewDraft("test"))(t)
	d.Into(dir)
	assert.Get(io.WriteString(d, text))(t)
	return assert.Get(d.Commit())(t)
}

// newOn makes a postoffice on a disk.
func newOn(t testing.TB, disk durable.FS, strict bool) *PostOffice {
	t.Helper()
	assert.Must(t, Init(disk))
	return assert.Get(Open(Config{FS: disk, Strict: strict}))(t)
}

// everyCut has a process live on a disk that ends before, and inside, each of its operations,
// until it ends by itself, and calls check for what each loss of power then leaves, also
// behind the last operation. start makes the disk and what lives on it.
func everyCut(t *testing.T, least int, start func() (disk *cutfs.FS, live func()), check func(what string, loss cutfs.Loss, after *cutfs.FS)) {
	t.Helper()
	cuts := 0
	for n, ended := 0, false; !ended; n++ {
		for _, tear := range []bool{false, true} {
			disk, live := start()
			if tear {
				disk.CutInside(n)
			} else {
				disk.CutAfter(n)
			}
			live()
			for _, loss := range disk.Losses() {
				check(fmt.Sprintf("cut after %d (torn %v), %v", n, tear, loss), loss, disk.Restart(loss))
			}
			if ended = !disk.Dead(); ended {
				break
			}
			cuts++
		}
	}
	if cuts < least {
		t.Errorf("%d cuts only", cuts)
	}
}

// M1
func TestCommittedMessageIsNamedByItsInode(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	for _, size := range []int{0, 1, draftBuffer - octetsLine, draftBuffer, 10 * draftBuffer, groupedSize + 3*largeBuffer + 1, 2*writeOutAt + 1} {
		body := strings.Repeat("x", size)
		a := submit(t, p, body)
		info := assert.Get(p.fs.Stat(a.Name))(t)
		assert.Equal(t, a.Name, Router+"/"+strconv.FormatUint(info.Ino, 10), "name")
		assert.Equal(t, info.Mode.Perm(), fs.FileMode(0o700), "mode")
		b := assert.Get(os.ReadFile(filepath.Join(dir, a.Name)))(t)
		want := fmt.Sprintf("comment octets %016d %08x\n%s", octetsLine+size, crc32.Checksum([]byte(body), castagnoli()), body)
		if string(b) != want {
			t.Errorf("size %d: file differs: %d bytes, want %d", size, len(b), len(want))
		}
	}
	if e, _ := p.fs.ReadDir(Public); len(e) != 0 {
		t.Errorf("left in public/: %v", e)
	}
}

// M4 M5
func TestOnlyRegularDecimalNamesAreListedOldestFirst(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	at := time.Unix(1_700_000_000, 0)
	for i, name := range []string{"30", "10", "20"} {
		file := filepath.Join(dir, Router, name)
		assert.Must(t, os.WriteFile(file, nil, 0o700))
		assert.Must(t, os.Chtimes(file, at, at.Add(time.Duration(-i)*time.Second)))
	}
	for _, name := range []string{".x", "core", "..10-5", "12x", "010", "0", "7-0", "7-1234567"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, Router, name), nil, 0o700))
	}
	assert.Must(t, os.Mkdir(filepath.Join(dir, Router, "40"), 0o755))
	assert.Must(t, os.Symlink("10", filepath.Join(dir, Router, "41")))
	assert.Must(t, unix.Mkfifo(filepath.Join(dir, Router, "42"), 0o700))
	list := assert.Get(p.Router.List(true, time.Now()))(t)
	var got []string
	for _, e := range list {
		got = append(got, e.Name)
	}
	if want := "20 10 30"; strings.Join(got, " ") != want {
		t.Errorf("listed %v, want %s", got, want)
	}
}

// M6
func TestOneOfManyClaimsWins(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	a := submit(t, p, "to bond\n\n")
	owner := assert.Get(p.Owners.Take("router"))(t)
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			c, err := p.Router.Claim(owner, filepath.Base(a.Name))
			if err == nil {
				c.Close()
			}
			results <- err
		}()
	}
	won := 0
	for range cap(results) {
		err := <-results
		if err == nil {
			won++
		} else if !errors.Is(err, ErrGone) {
			t.Errorf("a loser got %v, want ErrGone", err)
		}
	}
	assert.Equal(t, won, 1, "claims won")
}

// M18, and the traps "pid longer than the pid field" and "pid reused".
func TestOwnerNumberFitsTheLockFieldAndDiesWithItsProcess(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOLD_OWNER="+dir)
	cmd.Stderr = os.Stderr
	in := assert.Get(cmd.StdinPipe())(t)
	defer in.Close()
	out := assert.Get(cmd.StdoutPipe())(t)
	assert.Must(t, cmd.Start())
	var n int
	assert.Get(fmt.Fscan(out, &n))(t)
	if n < 1 || n > MaxOwner {
		t.Errorf("owner number %d, want 1 to %d", n, MaxOwner)
	}
	if alive, err := p.Owners.Alive(n); err != nil || !alive {
		t.Errorf("alive while its process lives: %v %v, want true", alive, err)
	}
	if _, err := p.Owners.takeNumber(n, nil); !errors.Is(err, errTaken) {
		t.Errorf("taking a live owner's number: %v, want errTaken", err)
	}
	assert.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if alive, err := p.Owners.Alive(n); err != nil || alive {
		t.Errorf("alive after kill -9: %v %v, want false", alive, err)
	}
	// Another process with that pid must not own what the dead one left.
	if _, err := p.Owners.takeNumber(n, nil); !errors.Is(err, errTaken) {
		t.Errorf("taking a dead owner's number: %v, want errTaken", err)
	}
}

// M50
func TestDirectoryOnAnotherFileSystemIsRefused(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, os.Remove(filepath.Join(dir, Queue)))
	if _, err := Open(Config{FS: p.fs}); !errors.Is(err, ErrNotPostoffice) {
		t.Errorf("without queue/: %v, want ErrNotPostoffice", err)
	}
	assert.Must(t, os.Mkdir(filepath.Join(dir, Queue), 0o755))
	if err := unix.Mount("none", filepath.Join(dir, Queue), "tmpfs", 0, ""); err != nil {
		t.Skipf("mounting a second file system needs root: %v", err)
	}
	defer func() {
		assert.NoError(t, unix.Unmount(filepath.Join(dir, Queue), 0))
	}()
	_, err := Open(Config{FS: p.fs})
	if !errors.Is(err, ErrCrossDevice) || !strings.Contains(err.Error(), Queue) {
		t.Errorf("queue/ on a tmpfs: %v, want ErrCrossDevice that names it", err)
	}
}

// A1
func TestSecondExclusiveProgramIsToldTheHolder(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	release, err := p.Owners.Exclusive("scheduler")
	assert.Must(t, err)
	_, err = p.Owners.Exclusive("scheduler")
	if !errors.Is(err, durable.ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second: %v, want ErrLocked with pid %d", err, os.Getpid())
	}
	assert.Must(t, release())
	if release, err = p.Owners.Exclusive("scheduler"); err != nil {
		t.Errorf("after release: %v", err)
	} else if err := release(); err != nil {
		t.Error(err)
	}
}

// M10
func TestDeferredMessageComesBackByResubmit(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	owner := assert.Get(p.Owners.Take("router"))(t)
	a := submit(t, p, "to bond\n\n")
	for range 2 {
		c := assert.Get(p.Router.Claim(owner, filepath.Base(a.Name)))(t)
		assert.Must(t, c.Defer("No such/../table"))
		names := assert.Get(p.Aside.ListDeferred())(t)
		want := filepath.Base(a.Name) + ".no-such----table"
		if len(names) != 1 || names[0] != want {
			t.Fatalf("deferred/ holds %q, want %q", names, want)
		}
		back, err := p.Aside.Resubmit(names[0])
		if err != nil || back.ID != a.ID {
			t.Fatalf("Resubmit = %v, %v, want %v", back, err, a.ID)
		}
	}
}

// settle has a file be written a while ago.
func settle(t *testing.T, path string) {
	t.Helper()
	at := time.Now().Add(-2 * copyGrace)
	assert.Must(t, os.Chtimes(path, at, at))
}

// The trap "inode changed by copy or restore", in router/.
func TestCopiedFileIsRenumberedWhenClaimed(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	owner := assert.Get(p.Owners.Take("router"))(t)
	copied := filepath.Join(dir, Router, "1")
	assert.Must(t, os.WriteFile(copied, []byte("to bond\n\n"), 0o700))
	// cp(1) has made the name, and may have more to write.
	if _, err := p.Router.Claim(owner, "1"); !errors.Is(err, ErrUnsettled) {
		t.Errorf("while it is written: got %v, want ErrUnsettled", err)
	}
	settle(t, copied)
	c := assert.Get(p.Router.Claim(owner, "1"))(t)
	want := Name{Ino: c.Info.Ino, Owner: owner.Number()}.String()
	assert.Equal(t, c.Name(), want, "name of the claim")
	if ok, _ := p.exists(Router + "/" + want); !ok {
		t.Errorf("%s is not there", want)
	}
}

// A claim that cannot be opened is given back, and a FIFO keeps no one waiting.
func TestClaimThatCannotBeOpenedIsGivenBack(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	owner := assert.Get(p.Owners.Take("router"))(t)
	assert.Must(t, unix.Mkfifo(filepath.Join(dir, Router, "7"), 0o700))
	if c, err := p.Router.Claim(owner, "7"); err == nil || errors.Is(err, ErrGone) {
		t.Errorf("claiming a FIFO: %v, %v, want an error", c, err)
	}
	if ok, _ := p.exists(Router + "/7"); !ok {
		t.Errorf("the FIFO did not get its name back")
	}
}
