package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/workspec"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

// call runs a program of the system and returns its output and its exit code.
func call(t *testing.T, s *suite.Suite, program string, args ...string) (said string, code int) {
	t.Helper()
	return run(t, s.Command(program, args...))
}

func run(t *testing.T, cmd *exec.Cmd) (said string, code int) {
	t.Helper()
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err := cmd.Start()
	if err == nil {
		// One that should have ended by itself is not waited for until the test's end.
		late := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		late.Stop()
	}
	out := both.Bytes()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// zmctl runs a zmctl command that must succeed.
func zmctl(t *testing.T, s *suite.Suite, args ...string) string {
	t.Helper()
	said, code := call(t, s, "zmctl", args...)
	if code != 0 {
		t.Fatalf("zmctl %q: exit code %d\n%s", args, code, said)
	}
	return said
}

// exits runs a program of the system, which must end with a code, and returns its output.
func exits(t *testing.T, s *suite.Suite, want int, program string, args ...string) string {
	t.Helper()
	said, code := call(t, s, program, args...)
	if code != want {
		t.Errorf("%s %q: exit code %d, want %d\n%s", program, args, code, want, said)
	}
	return said
}

// event waits for an event of the log; pairs are keys and what their values hold.
func event(t *testing.T, s *suite.Suite, word string, pairs ...string) suite.Event {
	t.Helper()
	return rig.Event(t, s, word, pairs...)
}

// wantNone wants that no such event was logged.
func wantNone(t *testing.T, s *suite.Suite, words ...string) {
	t.Helper()
	for _, word := range words {
		if n := s.Count(word); n > 0 {
			t.Errorf("%d events %s", n, word)
		}
	}
}

// wantIn wants parts in a text.
func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("got %s\nwant %q in it", abbreviate(text), p)
		}
	}
}

// path returns a file of the postoffice.
func path(s *suite.Suite, name string) string { return filepath.Join(s.PostOffice(), name) }

// names lists a directory of the postoffice.
func names(t *testing.T, s *suite.Suite, dir string) []string {
	t.Helper()
	entries := assert.Get(os.ReadDir(path(s, dir)))(t)
	var list []string
	for _, e := range entries {
		// The reason beside a message that was set aside is no message.
		if !strings.HasPrefix(e.Name(), "reason.") {
			list = append(list, e.Name())
		}
	}
	return list
}

// only returns the one name in a directory of the postoffice.
func only(t *testing.T, s *suite.Suite, dir string) string {
	t.Helper()
	list := names(t, s, dir)
	if len(list) != 1 {
		t.Fatalf("%s/ holds %q, want one name", dir, list)
	}
	return list[0]
}

func read(t *testing.T, name string) string {
	t.Helper()
	b := assert.Get(os.ReadFile(name))(t)
	return string(b)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(name, []byte(text), 0o644))
}

// configure writes a configuration file of the system.
func configure(t *testing.T, s *suite.Suite, name, text string) {
	t.Helper()
	write(t, filepath.Join(filepath.Dir(s.Config()), name), text)
}

// spec reads a work specification.
func spec(t *testing.T, s *suite.Suite, name string) *workspec.Spec {
	t.Helper()
	parsed := assert.Get(workspec.Parse([]byte(read(t, path(s, "transport/"+name)))))(t)
	return parsed
}

// place writes a file into a directory of the postoffice as a program would that
// knows the rules: whole, and under the number of its inode. It gives that.
func place(t *testing.T, s *suite.Suite, dir, text string) string {
	t.Helper()
	draft := path(s, "public/by-hand")
	write(t, draft, text)
	name := inode(t, draft)
	assert.Must(t, os.Rename(draft, path(s, dir+"/"+name)))
	return name
}

// inode returns a file's inode number.
func inode(t *testing.T, name string) string {
	t.Helper()
	info := assert.Get(os.Stat(name))(t)
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("no inode number of %s", name)
	}
	return strconv.FormatUint(st.Ino, 10)
}
