package inject

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// watched returns an injector over a directory that counts as a postoffice.
func watched(t *testing.T, onCall func(Call) Action) (*Injector, string) {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	assert.Must(t, os.MkdirAll(filepath.Join(dir, "router"), 0o755))
	return &Injector{Classes: Classes{PostOffice: dir}, OnCall: onCall}, dir
}

// shell runs a script in a directory and returns how it ended.
func shell(t *testing.T, i *Injector, dir, script string) error {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	assert.Must(t, i.Start(cmd))
	err := cmd.Wait()
	if cerr := i.Close(); cerr != nil {
		t.Fatal(cerr)
	}
	return err
}

func TestCallsOfAllDescendantsAreSeen(t *testing.T) {
	i, dir := watched(t, nil)
	assert.Must(t, shell(t, i, dir, `echo x >router/12; (mv router/12 router/12-7); rm router/12-7; echo log >&2; echo x >/dev/null`))
	var got []string
	for p := range i.Seen() {
		p.Program = strings.TrimSuffix(p.Program, filepath.Base(p.Program)) // sh is dash, bash, busybox
		got = append(got, strings.TrimSpace(p.Name+" "+p.Path))
	}
	for _, want := range []string{"openat router/I", "write router/I", " router/I -> router/I-P", "unlinkat router/I-P"} {
		if !slices.ContainsFunc(got, func(g string) bool { return strings.HasSuffix(g, want) }) {
			t.Errorf("no %q among %q", want, got)
		}
	}
	if slices.ContainsFunc(got, func(g string) bool { return strings.Contains(g, "/dev/") }) {
		t.Errorf("writes that change nothing among %q", got)
	}
}

func TestKilledCallIsNotExecuted(t *testing.T) {
	i, dir := watched(t, func(c Call) Action { return Action{Kill: strings.HasSuffix(c.Path, "router/I-P")} })
	err := shell(t, i, dir, `echo x >router/12; exec mv router/12 router/12-7`)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("got %v, want a death by SIGKILL", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "router/12")); err != nil {
		t.Errorf("the rename was executed: %v", err)
	}
}

func TestErrnoIsAnsweredInsteadOfTheCall(t *testing.T) {
	i, dir := watched(t, func(c Call) Action {
		if c.Path == "router/I" && c.Name == "write" {
			return Action{Errno: unix.ENOSPC}
		}
		return Action{}
	})
	if err := shell(t, i, dir, `echo x >router/12`); err == nil {
		t.Error("the shell has written where nothing fits")
	}
	if info, err := os.Stat(filepath.Join(dir, "router/12")); err != nil || info.Size() != 0 {
		t.Errorf("got %v %v, want an empty file", info, err)
	}
}

func TestPartOfAWriteIsWritten(t *testing.T) {
	tests := map[string]struct {
		kill bool
		want string
	}{
		"and its writer goes on":   {false, "abcdef\n"},
		"and its writer is killed": {true, "ab"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			done := false
			i, dir := watched(t, func(c Call) Action {
				if c.Path != "router/I" || c.Name != "write" || done {
					return Action{}
				}
				done = true
				return Action{Part: 2, Kill: tt.kill}
			})
			// The shell writes what is left, as every program must after a short write.
			_ = shell(t, i, dir, `exec >>router/12; echo abcdef`)
			got, err := os.ReadFile(filepath.Join(dir, "router/12"))
			if err != nil || string(got) != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}
