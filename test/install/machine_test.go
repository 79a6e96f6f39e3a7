package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// bootEnv is set in the process that a machine runs in: it names the root.
const bootEnv = "INSTALL_TEST_BOOT"

// rebooted is what systemd-nspawn ends with when the machine wants to be started again.
const rebooted = 133

// machine is a Debian with systemd as its first process, in namespaces of its own. It has
// no network but loopback.
type machine struct {
	t      *testing.T
	root   string
	run    *exec.Cmd
	ended  chan error
	leader int // the number of its first process
}

// boot starts a machine in a root and waits until it runs.
func boot(t *testing.T, root string) *machine {
	t.Helper()
	need(t, "systemd-nspawn")
	need(t, "nsenter")
	for file, text := range map[string]string{"hostname": "mail.example.org\n", "hosts": "127.0.0.1 localhost\n127.0.1.1 mail.example.org mail\n"} {
		assert.Must(t, os.WriteFile(filepath.Join(root, "etc", file), []byte(text), 0o644))
	}
	m := &machine{t: t, root: root}
	t.Cleanup(m.off)
	m.on()
	return m
}

// console returns what the machine says while it starts and stops.
func (m *machine) console() string { return m.root + ".console" }

// on switches it on.
func (m *machine) on() {
	m.t.Helper()
	self, err := os.Executable()
	assert.Must(m.t, err)
	console, err := os.OpenFile(m.console(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	assert.Must(m.t, err)
	defer console.Close()
	m.run = exec.Command(self)
	m.run.Env = append(os.Environ(), bootEnv+"="+m.root)
	m.run.Stdout, m.run.Stderr = console, console
	m.run.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := m.run.Start(); errors.Is(err, unix.EPERM) {
		m.t.Skip("skipped: this machine gives no namespaces")
	} else if err != nil {
		m.t.Fatal(err)
	}
	m.ended = make(chan error, 1)
	go func(run *exec.Cmd, ended chan error) { ended <- run.Wait() }(m.run, m.ended)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(time.Minute); ; {
		select {
		case err := <-m.ended:
			m.run = nil
			said, _ := os.ReadFile(m.console())
			if bytes.Contains(said, []byte("Permission denied")) || bytes.Contains(said, []byte("Operation not permitted")) {
				m.t.Skipf("skipped: this machine lets no systemd run in it: %v\n%s", err, said)
			}
			m.t.Fatalf("the machine has ended: %v\n%s", err, said)
		case <-limit:
			said, _ := os.ReadFile(m.console())
			m.t.Fatalf("the machine does not start:\n%s", said)
		case <-tick.C:
		}
		if m.leader = firstProcess(m.run.Process.Pid); m.leader > 0 && m.command(m.t.Context(), "systemctl", "is-system-running", "--wait").Run() == nil {
			return
		}
	}
}

// firstProcess returns the systemd below the systemd-nspawn that a process has started; 0:
// there is none yet.
func firstProcess(pid int) int {
	for _, name := range []string{"systemd-nspawn", "systemd"} {
		if pid = childOf(pid, name); pid == 0 {
			return 0
		}
	}
	return pid
}

// childOf returns the process of that name that a process has started, 0 if there is none.
func childOf(pid int, name string) int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0
	}
	for _, list := range lists {
		children, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(children)) {
			comm, err := os.ReadFile("/proc/" + child + "/comm")
			if err == nil && strings.TrimSpace(string(comm)) == name {
				n, _ := strconv.Atoi(child)
				return n
			}
		}
	}
	return 0
}

// off switches it off, in order.
func (m *machine) off() {
	if m.run == nil {
		return
	}
	_ = m.run.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.ended:
	case <-time.After(30 * time.Second):
		m.t.Error("the machine does not stop; its power is cut")
		_ = m.run.Process.Kill()
		<-m.ended
	}
	m.run = nil
}

// reboot does what its postmaster does by that command.
func (m *machine) reboot() {
	m.t.Helper()
	if out, err := m.command(m.t.Context(), "systemctl", "reboot").CombinedOutput(); err != nil {
		m.t.Fatalf("systemctl reboot: %v\n%s", err, out)
	}
	select {
	case err := <-m.ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != rebooted {
			m.t.Fatalf("it was not started again: %v", err)
		}
	case <-time.After(time.Minute):
		m.t.Fatal("it does not stop to be started again")
	}
	m.on()
}

// command returns a program on the machine.
func (m *machine) command(ctx context.Context, argv ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(m.leader), "--all", "env", "-i", "--chdir=/root",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "TZ=UTC",
		"DEBIAN_FRONTEND=noninteractive", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0"}
	return exec.CommandContext(ctx, "nsenter", append(enter, argv...)...)
}

// script runs a script of testdata/living on the machine.
func (m *machine) script(t *testing.T, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	text := read(t, "testdata/common.sh") + read(t, "testdata/living/common.sh") + read(t, filepath.Join("testdata/living", name))
	cmd := m.command(ctx, append([]string{"bash", "-c", text, name}, args...)...)
	cmd.WaitDelay = time.Second // for what it has left in the background
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	t.Logf("%s\n%s", name, out)
}

// bootInside is the process of bootEnv: it gives systemd a cgroup file system and a place
// in it, whatever this machine has, runs it, and takes its cgroups away.
func bootInside() {
	runtime.LockOSThread() // Pdeathsig
	root := os.Getenv(bootEnv)
	own := filepath.Join("/sys/fs/cgroup", "zmailer-test-"+strconv.Itoa(os.Getpid()))
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""))
	if err == nil {
		err = errors.Join(os.Mkdir(own, 0o755), os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a place for systemd:", err)
		os.Exit(1)
	}
	cmd := exec.Command("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network", "--console=read-only",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no", "--machine=zmailer-test-"+strconv.Itoa(os.Getpid()),
		"--directory="+root, "--boot")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		<-stop
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}()
	_ = cmd.Wait()
	_ = os.WriteFile("/sys/fs/cgroup/cgroup.procs", []byte("0"), 0)
	removeGroups(own)
	os.Exit(cmd.ProcessState.ExitCode())
}

// removeGroups removes a cgroup and those below it; what is in use stays.
func removeGroups(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroups(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}
