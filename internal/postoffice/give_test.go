package postoffice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

const giveTo = 4711

// owner is whose a file is, and its mode.
func owner(t *testing.T, name string) (uid, gid int, mode os.FileMode) {
	t.Helper()
	info := assert.Get(os.Lstat(name))(t)
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid), info.Mode()
}

func putFile(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	assert.Must(t, os.WriteFile(name, nil, mode))
}

func TestGivenPostofficeIsTheirsAndNothingElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives away")
	}
	top := t.TempDir()
	dir := filepath.Join(top, "po")
	assert.Must(t, os.Mkdir(dir, 0o755))
	disk := assert.Get(durable.NewOS(dir))(t)
	defer disk.Close()
	assert.Must(t, Init(disk))
	in := func(name string) string { return filepath.Join(dir, name) }
	putFile(t, in("queue/1-2"), 0o700)
	putFile(t, in("transport/1-2"), 0o600)
	putFile(t, in("public/draft"), 0o600)
	secret := filepath.Join(top, "secret")
	putFile(t, secret, 0o600)
	program := filepath.Join(top, "program")
	putFile(t, program, 0o755)
	for from, to := range map[string]string{secret: "public/.link", program: "router/77"} {
		assert.Must(t, os.Link(from, in(to)))
	}
	assert.Must(t, os.Mkdir(in("public/users"), 0o777))
	putFile(t, in("public/users/.x"), 0o600)
	assert.Must(t, ChangeOwner(dir, giveTo, giveTo))
	for name, want := range map[string]int{".": giveTo, "queue": giveTo, "public": giveTo, "transport/1-2": giveTo,
		"queue/1-2": 0, "public/draft": 0, "public/users": 0, "public/users/.x": 0} {
		if got, _, _ := owner(t, in(name)); got != want {
			t.Errorf("%s: got uid %d, want %d", name, got, want)
		}
	}
	if _, gid, mode := owner(t, in("queue/1-2")); gid != giveTo || mode.Perm() != 0o760 {
		t.Errorf("message: got group %d, mode %v", gid, mode)
	}
	// What they link into what is theirs is none of ours at the next time.
	for from, to := range map[string]string{secret: "transport/9-9", program: "queue/9-9"} {
		assert.Must(t, os.Link(from, in(to)))
	}
	assert.Must(t, ChangeOwner(dir, giveTo, giveTo))
	for name, want := range map[string]os.FileMode{secret: 0o600, program: 0o755} {
		if uid, gid, mode := owner(t, name); uid != 0 || gid != 0 || mode.Perm() != want {
			t.Errorf("%s: got uid %d, gid %d, mode %v", name, uid, gid, mode)
		}
	}
}

// Give is stopped before each of its steps: as long as anything is not given the top is
// root's, by which no daemon starts, and another Give ends it.
func TestEveryCutOfAGiftIsEndedByTheNext(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives away")
	}
	errCut := errors.New("cut")
	uncut := giftOf(t)
	assert.Must(t, ChangeOwner(uncut, giveTo, giveTo))
	want := standings(t, uncut)
	for at := 0; ; at++ {
		dir, steps := giftOf(t), 0
		err := changeOwner(dir, giveTo, giveTo, func() error {
			if steps++; steps > at {
				return errCut
			}
			return nil
		})
		if err == nil {
			if at < 10 {
				t.Errorf("it has %d steps only", at)
			}
			return
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if uid, _, _ := owner(t, dir); uid != 0 {
			t.Errorf("cut after %d: the top is given, and there is %v", at, cmp.Diff(want, standings(t, dir)))
		}
		assert.Must(t, ChangeOwner(dir, giveTo, giveTo))
		if diff := cmp.Diff(want, standings(t, dir)); diff != "" {
			t.Fatalf("cut after %d, and given again (-want +got):\n%s", at, diff)
		}
	}
}

// giftOf returns a postoffice of root's with a file of each kind.
func giftOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	disk := assert.Get(durable.NewOS(dir))(t)
	defer disk.Close()
	assert.Must(t, Init(disk))
	in := func(name string) string { return filepath.Join(dir, name) }
	assert.Must(t, os.MkdirAll(in("queue/A/B"), 0o755))
	for name, mode := range map[string]os.FileMode{"queue/A/B/1-2": 0o700, "transport/1-2": 0o600, "public/draft": 0o600, "router/.tries.7": 0o600, "router/8": 0o700} {
		putFile(t, in(name), mode)
	}
	assert.Must(t, unix.Mknod(in(".mailq"), unix.S_IFSOCK|0o660, 0))
	return dir
}

// standings are owners and modes of all that is in a directory, and of itself.
func standings(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	assert.Must(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		uid, gid, mode := owner(t, name)
		all[strings.TrimPrefix(name, dir)] = fmt.Sprint(uid, gid, mode)
		return nil
	}))
	return all
}

// Sec1: the owner of a postoffice that is given links files of root's to names in the top
// directory, and to a directory's that is given each time: the next init changes none.
func TestSec1NextGiftChangesNoLinkedFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives away")
	}
	dir := giftOf(t)
	assert.Must(t, ChangeOwner(dir, giveTo, giveTo))
	out := t.TempDir()
	was := map[string]os.FileMode{"shadow": 0o600, "program": 0o755}
	for name, mode := range was {
		putFile(t, filepath.Join(out, name), mode)
		for _, link := range []string{"x" + name, ".pid.x" + name, "public/." + name, "public/1" + name, "queue/" + name, "router/." + name} {
			assert.Must(t, os.Link(filepath.Join(out, name), filepath.Join(dir, link)))
		}
	}
	assert.Must(t, unix.Mknod(filepath.Join(out, "socket"), unix.S_IFSOCK|0o600, 0))
	was["socket"] = 0o600
	assert.Must(t, os.Link(filepath.Join(out, "socket"), filepath.Join(dir, ".run")))
	assert.Must(t, ChangeOwner(dir, giveTo, giveTo))
	for name, want := range was {
		if uid, gid, mode := owner(t, filepath.Join(out, name)); uid != 0 || gid != 0 || mode.Perm() != want {
			t.Errorf("%s: got uid %d, gid %d, mode %v", name, uid, gid, mode)
		}
	}
}
