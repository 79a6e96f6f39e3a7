package install

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/test/suite"
)

// brokenEnv is set in the process that is interrupted.
const brokenEnv = "INSTALL_TEST_BROKEN"

// beBroken is the process of brokenEnv: it makes a root, with a /proc mounted in it, as debootstrap
// does, prints its directory and waits.
func beBroken() {
	os.Exit(suite.WithPrograms(func(dir string) int {
		cmd := apart(context.Background(), "/bin/sh", "-c", `cd "$0" && mkdir -p base/proc && mount -t proc proc base/proc && echo "$0" && exec sleep 600`, dir)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return 1
		}
		return 0
	}))
}

// Tests that are interrupted or killed while they make a root leave no directory, no mount and no
// process.
func TestInterruptedRootLeavesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: namespaces need root")
	}
	for name, signal := range map[string]syscall.Signal{"interrupt": syscall.SIGINT, "end": syscall.SIGTERM, "kill": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(assert.Get(os.Executable())(t))
			empty := t.TempDir()
			cmd.Env = append(os.Environ(), brokenEnv+"=1", "PROGRAMS="+empty)
			out := assert.Get(cmd.StdoutPipe())(t)
			if err := cmd.Start(); errors.Is(err, unix.EPERM) {
				t.Skip("skipped: this machine gives no namespaces")
			} else if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			line, err := lines.ReadString('\n')
			dir := strings.TrimSpace(line)
			if err != nil || !strings.HasPrefix(filepath.Base(dir), "programs-") {
				t.Fatalf("it printed %q: %v", line, err)
			}
			mounts := string(assert.Get(os.ReadFile("/proc/self/mountinfo"))(t))
			assert.Equal(t, strings.Contains(mounts, dir), false, "a mount of the root is seen outside")
			assert.Must(t, cmd.Process.Signal(signal))
			if _, err := lines.ReadString('\n'); err == nil { // ends when the last process has ended
				t.Error("it has gone on")
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it has ended by itself")
			}
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s is left", dir)
				}
			}
		})
	}
}
