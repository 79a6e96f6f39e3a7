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
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/fusefs"
	"zmailer/test/suite"
)

var bin string

func TestMain(m *testing.M) {
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// system is one whose postoffice is on a FUSE file system.
func system(t *testing.T, faults fusefs.Faults) *suite.Suite {
	t.Helper()
	if why := fusefs.Supported(); why != "" {
		t.Skip(why)
	}
	s := &suite.Suite{Bin: bin, Dir: t.TempDir(), Users: []string{"alice", "bob"}}
	assert.Must(t, s.Init())
	mount(t, s, faults)
	return s
}

// mount puts the postoffice onto a FUSE file system.
func mount(t *testing.T, s *suite.Suite, faults fusefs.Faults) {
	t.Helper()
	below := filepath.Join(s.Dir, "below")
	assert.Must(t, errors.Join(os.Rename(s.PostOffice(), below), os.Mkdir(s.PostOffice(), 0o755)))
	unmount, err := fusefs.Mount(below, s.PostOffice(), faults)
	if err != nil {
		t.Skip("mount: ", err)
	}
	t.Cleanup(func() { _ = unmount() })
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

// Dur4: where a file can be moved neither by RENAME_NOREPLACE nor by link, no daemon starts: each
// ends with the exit code for a bad configuration and names the file system and the remedy,
// before it takes anything. zmctl check calls it an error.
func TestDur4DaemonsRefuseAFileSystemWithoutRenameAndLink(t *testing.T) {
	s := system(t, fusefs.Faults{NoRenameFlags: true, NoLink: true})
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
	s := system(t, fusefs.Faults{})
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
	s.AwaitDaemons(time.Minute)
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
