package attack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// The environment variables that say what this binary is: nothing for the tests.
const (
	wantedEnv = "ATTACK"       // 1: the tests run
	roleEnv   = "ATTACK_ROLE"  // guard or attacker
	guardEnv  = "ATTACK_GUARD" // the directory of what the guard sets to 0
)

// bin is where TestMain has built the programs; unprepared is why the tests are skipped.
var bin, unprepared string

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "guard":
		os.Exit(guard(os.Stdin, os.Stdout))
	case "attacker":
		os.Exit(serve(os.Stdin, os.Stdout))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	switch {
	case os.Geteuid() != 0:
		unprepared = "only root can start daemons and attack them as another user"
	case os.Getenv(wantedEnv) != "1":
		unprepared = "set ATTACK=1, as make attack does"
	}
	if unprepared != "" {
		return m.Run()
	}
	end, _, err := startGuard(kernel)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer end()
	return suite.WithPrograms(func(dir string) int {
		bin = dir
		// The attacker's process runs from a directory that its uid may read.
		if err := copyFile("/proc/self/exe", filepath.Join(dir, "attacker")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// protections returns the settings of the kernel that hide what is attacked here.
func protections() []string {
	return []string{"protected_hardlinks", "protected_symlinks", "protected_regular", "protected_fifos"}
}

// kernel is the directory of these settings.
const kernel = "/proc/sys/fs"

// startGuard starts the process that sets the protections to 0 and restores them when end
// is called or this process has died.
func startGuard(dir string) (end func(), pid int, err error) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), roleEnv+"=guard", guardEnv+"="+dir)
	cmd.Stderr = os.Stderr
	// A signal to the terminal's processes does not end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	end = func() {
		// The guard restores at the end of its input, and reports on standard error.
		_ = in.Close()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		end()
		return nil, 0, fmt.Errorf("the guard of fs.protected_* has not started: %q, %v", line, err)
	}
	return end, cmd.Process.Pid, nil
}

// guard is that process. Of several on one machine the next one waits.
func guard(in io.Reader, out io.Writer) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "guard of fs.protected_*:", err)
		return 1
	}
	setting := func(name string) string { return filepath.Join(os.Getenv(guardEnv), name) }
	lock, err := os.Open(setting(protections()[0]))
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return fail(err)
	}
	before := map[string][]byte{}
	for _, name := range protections() {
		if before[name], err = os.ReadFile(setting(name)); err != nil {
			return fail(err)
		}
	}
	code := 0
	for _, name := range protections() {
		if err := os.WriteFile(setting(name), []byte("0\n"), 0); err != nil {
			code = fail(err)
		}
	}
	if code == 0 {
		fmt.Fprintln(out, "ready")
		// It ends with the tests' process.
		_, _ = io.Copy(io.Discard, in)
	}
	for name, value := range before {
		if err := os.WriteFile(setting(name), value, 0); err != nil {
			code = fail(err)
		}
	}
	return code
}

// The guard restores what was set before it at the end of its input, which comes also when
// the process that started it is killed; signals do not end it before that.
func TestProtectionsAreRestored(t *testing.T) {
	need(t)
	dir := t.TempDir()
	look := func() (list []string) {
		t.Helper()
		for _, name := range protections() {
			b, err := os.ReadFile(filepath.Join(dir, name))
			assert.Must(t, err)
			list = append(list, strings.TrimSpace(string(b)))
			if is, err := os.ReadFile(filepath.Join(kernel, name)); err != nil || strings.TrimSpace(string(is)) != "0" {
				t.Errorf("%s is %q, %v; want 0 while the tests run", name, is, err)
			}
		}
		return list
	}
	for i, name := range protections() {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "%d\n", i%3), 0o644))
	}
	before := look()
	end, pid, err := startGuard(dir)
	assert.Must(t, err)
	assert.Must(t, syscall.Kill(pid, syscall.SIGTERM))
	assert.Equal(t, strings.Join(look(), " "), "0 0 0 0")
	end()
	if got := look(); !slices.Equal(got, before) {
		t.Errorf("after it: %q, want %q", got, before)
	}
}

func need(t *testing.T) {
	t.Helper()
	if unprepared != "" {
		t.Skip(unprepared)
	}
}
