package filesystem

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

var bin string

func TestMain(m *testing.M) {
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// node shows a directory as it is, but for renames with flags where its system has none.
type node struct{ fs.LoopbackNode }

// noRename is what the file systems of the kernel do that know no flags of renameat2(2).
type noRename struct{ node }

func (n *noRename) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if flags != 0 {
		return syscall.EINVAL
	}
	return n.LoopbackNode.Rename(ctx, name, to, newName, flags)
}

// mount shows a directory at another through FUSE.
func mount(t *testing.T, below, at string, flags bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts file systems")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE: ", err)
	}
	root := &fs.LoopbackRoot{Path: below}
	//lint:ignore SA1019 a node that WrapChild gives would have to unwrap what it renames into
	root.NewNode = func(data *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		if flags {
			return &node{fs.LoopbackNode{RootData: data}}
		}
		return &noRename{node{fs.LoopbackNode{RootData: data}}}
	}
	//lint:ignore SA1019 as above
	root.RootNode = root.NewNode(root, nil, "", nil)
	server, err := fs.Mount(at, root.RootNode, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, FsName: "test", Name: "loopback",
	}})
	if err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	})
}

// system is one whose postoffice is on a FUSE file system.
func system(t *testing.T, flags bool) *suite.Suite {
	t.Helper()
	s := &suite.Suite{Bin: bin, Dir: t.TempDir(), Users: []string{"alice"}}
	assert.Must(t, s.Init())
	below := filepath.Join(s.Dir, "below")
	assert.Must(t, errors.Join(os.Rename(s.PostOffice(), below), os.Mkdir(s.PostOffice(), 0o755)))
	mount(t, below, s.PostOffice(), flags)
	return s
}

// run runs a program to its end and returns its exit code and what it wrote.
func run(t *testing.T, s *suite.Suite, program string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := s.Command(program, args...)
	limited := exec.CommandContext(ctx, c.Path, args...)
	limited.Env = c.Env
	var out, errs strings.Builder
	limited.Stdout, limited.Stderr = &out, &errs
	err := limited.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s did not end: %s", program, errs.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return limited.ProcessState.ExitCode(), out.String(), errs.String()
}

// Dur4: where a file cannot be renamed without replacing another, no daemon starts: each
// ends with the exit code for a bad configuration and names the file system and the remedy,
// before it takes anything. zmctl check calls it an error.
func TestDur4DaemonsRefuseAFileSystemWithoutRename(t *testing.T) {
	s := system(t, false)
	for _, daemon := range []string{"smtpserver", "router", "scheduler"} {
		code, _, stderr := run(t, s, daemon)
		assert.Equal(t, code, 78, daemon)
		for _, word := range []string{"fuse.loopback", s.PostOffice(), "RENAME_NOREPLACE", "ext4"} {
			if !strings.Contains(stderr, word) {
				t.Errorf("%s does not name %s: %s", daemon, word, stderr)
			}
		}
		if conn, err := net.Dial("tcp", s.SMTPAddr); err == nil {
			conn.Close()
			t.Errorf("%s: somebody listens", daemon)
		}
	}
	code, stdout, stderr := run(t, s, "zmctl", "check", "--json", "--problems")
	var found []struct {
		File     string
		Problems []string
	}
	if err := json.Unmarshal([]byte(stdout), &found); err != nil {
		t.Fatalf("%v in %s%s", err, stdout, stderr)
	}
	named := false
	for _, f := range found {
		named = named || f.File == "." && slices.Contains(f.Problems, "no-rename")
	}
	if code != 2 || !named {
		t.Errorf("zmctl check: exit code %d, %+v, want 2 and no-rename", code, found)
	}
	list, err := os.ReadDir(s.PostOffice())
	assert.Must(t, err)
	for _, e := range list {
		if strings.HasPrefix(e.Name(), ".probe") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// Dur4: a file system that can do what is needed and was not tested is named in a warning by
// each daemon, which then works; zmctl check says the risk and calls it no problem.
func TestDur4RiskIsAWarningAtStart(t *testing.T) {
	s := system(t, true)
	if err := s.Start(); err != nil {
		t.Fatalf("%v\n%s", err, s.Log())
	}
	t.Cleanup(s.Kill)
	for _, daemon := range []string{"smtpserver", "router", "scheduler"} {
		e, err := s.Wait(20*time.Second, "a warning of "+daemon, func(e suite.Event) bool {
			return e.Program == daemon && e.Word == "file-system"
		})
		assert.Must(t, err)
		if e.Level != "WARN" || e.Get("type") != "fuse.loopback" || e.Get("mount") != s.PostOffice() || e.Get("reason") == "" || e.Get("advice") == "" {
			t.Errorf("%s: got %+v", daemon, e)
		}
	}
	code, stdout, stderr := run(t, s, "zmctl", "check", "--json")
	var found []struct{ File, Severity, State, Text string }
	if err := json.Unmarshal([]byte(stdout), &found); err != nil {
		t.Fatalf("%v in %s%s", err, stdout, stderr)
	}
	named := false
	for _, f := range found {
		if f.State == "file system" {
			named = f.Severity == "ok" && strings.Contains(f.Text, "fuse.loopback")
		}
	}
	if code != 0 || !named {
		t.Errorf("zmctl check: exit code %d, want 0 and the file system: %s", code, stdout)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
