package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// running is a zmctl run in a process of its own with stand-ins for its daemons.
type running struct {
	cmd   *exec.Cmd
	out   *os.File // both outputs of all processes
	lines *bufio.Reader
	seen  []string
	po    string
}

func startRun(t *testing.T, env []string, args ...string) *running {
	t.Helper()
	self, err := os.Executable()
	assert.Must(t, err)
	dir := t.TempDir()
	for _, name := range service.Daemons() {
		assert.Must(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	r, w, err := os.Pipe()
	assert.Must(t, err)
	t.Cleanup(func() { r.Close() })
	// The deadline of every wait below.
	assert.Must(t, r.SetReadDeadline(time.Now().Add(20*time.Second)))
	x := &running{out: r, lines: bufio.NewReader(r), po: filepath.Join(dir, "po")}
	x.cmd = exec.Command(self, append([]string{"--postoffice", x.po}, args...)...)
	x.cmd.Env = append(append(os.Environ(), "BE_ZMCTL=1", "PATH="+dir, "ZCONFIG="), env...)
	x.cmd.Stdout, x.cmd.Stderr = w, w
	err = x.cmd.Start()
	w.Close()
	assert.Must(t, err)
	t.Cleanup(func() { x.cmd.Process.Kill() })
	return x
}

// until reads lines until all of these were seen, in any order.
func (x *running) until(t *testing.T, starts ...string) {
	t.Helper()
	for {
		left := slices.DeleteFunc(slices.Clone(starts), func(s string) bool {
			return slices.ContainsFunc(x.seen, func(line string) bool { return strings.Contains(line, s) })
		})
		if len(left) == 0 {
			return
		}
		line, err := x.lines.ReadString('\n')
		if err != nil {
			t.Fatalf("waiting for %q: %v after\n%s", left, err, strings.Join(x.seen, ""))
		}
		x.seen = append(x.seen, line)
	}
}

// end reads until every process that holds the outputs is gone.
func (x *running) end(t *testing.T) (code int) {
	t.Helper()
	rest, err := io.ReadAll(x.lines)
	if err != nil {
		t.Fatalf("waiting for the end: %v after\n%s%s", err, strings.Join(x.seen, ""), rest)
	}
	for line := range strings.Lines(string(rest)) {
		x.seen = append(x.seen, line)
	}
	if err := x.cmd.Wait(); err != nil && x.cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return x.cmd.ProcessState.ExitCode()
}

func (x *running) order(starts ...string) []string {
	var got []string
	for _, line := range x.seen {
		for _, s := range starts {
			if strings.HasPrefix(line, s) {
				got = append(got, strings.Join(strings.Fields(line)[:2], " "))
			}
		}
	}
	return got
}

// A17: SIGTERM ends the daemons one after the other, who brings mail in first, and
// only then zmctl.
func TestRunStopsDaemonsInOrder(t *testing.T) {
	x := startRun(t, nil, "--log-format", "text", "run")
	x.until(t, "up smtpserver", "up router", "up scheduler")
	assert.Must(t, x.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, x.end(t), 0, "exit code")
	assert.Same(t, x.order("down"), []string{"down smtpserver", "down router", "down scheduler"}, "ended")
	all := strings.Join(x.seen, "")
	wantIn(t, all, "made the postoffice "+x.po, "postoffice     "+x.po, "configuration  built in", "127.0.0.1:2525",
		"zmctl --postoffice "+x.po+" status", "up router "+x.po+"  --log-format=text")
}

func TestRunPassesItsConfigurationOn(t *testing.T) {
	conf := t.TempDir()
	assert.Must(t, config.WriteDefaults(conf, "SMTPLISTEN=127.0.0.1:2599"))
	file := filepath.Join(conf, "zmailer.conf")
	x := startRun(t, nil, "--config", file, "run")
	x.until(t, "up smtpserver "+x.po+" "+file, "up router "+x.po+" "+file, "up scheduler "+x.po+" "+file, "SMTP           127.0.0.1:2599")
	assert.Must(t, x.cmd.Process.Signal(os.Interrupt))
	assert.Equal(t, x.end(t), 0, "exit code")
}

// A17: a daemon that does not end in time is killed, and the others still end in
// their turn.
func TestRunKillsDaemonThatDoesNotEnd(t *testing.T) {
	x := startRun(t, []string{"DAEMON_router=stubborn"}, "run", "--stop-timeout", "1s") // enough for the others, on a busy machine too
	x.until(t, "up smtpserver", "up router", "up scheduler")
	assert.Must(t, x.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, x.end(t), 0, "exit code")
	assert.Same(t, x.order("down", "asked"), []string{"down smtpserver", "asked router", "down scheduler"}, "ended")
	wantIn(t, strings.Join(x.seen, ""), "daemon-killed", "signal: killed")
}

// Op1: one daemon that cannot use its configuration strands none of the others.
func TestOp1DaemonThatCannotUseItsConfigurationStopsNoOther(t *testing.T) {
	x := startRun(t, []string{"DAEMON_scheduler=78"}, "run")
	x.until(t, "up smtpserver", "up router", "daemon-refused")
	assert.Must(t, x.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, x.end(t), 0, "exit code")
	assert.Equal(t, len(x.order("up scheduler")), 1, "starts of the scheduler")
}

func TestRunEndsWhenNoDaemonCanUseItsConfiguration(t *testing.T) {
	x := startRun(t, []string{"DAEMON_scheduler=78", "DAEMON_router=78", "DAEMON_smtpserver=78"}, "run")
	assert.Equal(t, x.end(t), config.ExitConfig, "exit code")
}

// Op1: a configuration with errors is refused before anything is started, with all of them.
func TestOp1RunChecksFirst(t *testing.T) {
	conf := t.TempDir()
	assert.Must(t, config.WriteDefaults(conf))
	file := filepath.Join(conf, "zmailer.conf")
	assert.Must(t, os.WriteFile(file, []byte("MAXSIZE=big\nRELAYNETS=192.0.2.0/33\n"), 0o644), os.WriteFile(filepath.Join(conf, "access"), []byte("allow x\n"), 0o644))
	x := startRun(t, nil, "--config", file, "run")
	assert.Equal(t, x.end(t), config.ExitConfig, "exit code")
	assert.Equal(t, len(x.order("up")), 0, "daemons started")
	wantIn(t, strings.Join(x.seen, ""), file+":1: ", file+":2: ", filepath.Join(conf, "access")+":1: ")
}

// A daemon that has worked and meets a bad configuration when it is started again is tried
// on; the others stay.
func TestBadConfigurationOfALaterStartStopsNoOther(t *testing.T) {
	first := filepath.Join(t.TempDir(), "first")
	assert.Must(t, os.WriteFile(first, nil, 0o600))
	x := startRun(t, []string{"DAEMON_scheduler=once, then 78", "FIRST_TIME=" + first}, "run")
	x.until(t, "up smtpserver", "up router", "daemon=scheduler reason=\"exit status 1\"", "daemon=scheduler reason=\"exit status 78\"", "again=2s")
	assert.Must(t, x.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, x.end(t), 0, "exit code")
}

// A killed zmctl leaves no daemon: the kernel kills them with it.
func TestDaemonsDieWithKilledZmctl(t *testing.T) {
	x := startRun(t, []string{"DAEMON_smtpserver=stubborn", "DAEMON_router=stubborn", "DAEMON_scheduler=stubborn"}, "run")
	x.until(t, "up smtpserver", "up router", "up scheduler")
	assert.Must(t, x.cmd.Process.Kill())
	// The outputs end when no process has them open any more.
	x.end(t)
	if got := x.order("down", "asked"); len(got) > 0 {
		t.Errorf("daemons were asked to end: got %q, want them killed", got)
	}
}

func TestRunWithoutProgramsTellsWhatIsMissing(t *testing.T) {
	office.New(t)
	t.Setenv("PATH", t.TempDir())
	_, code, err := invoke(t, "run")
	assert.Equal(t, code, config.ExitOSErr, "exit code")
	wantIn(t, err.Error(), "find the program smtpserver")
}

func TestRunRefusesBadConfiguration(t *testing.T) {
	office.New(t)
	file := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(file, []byte("HASHLEVELS=7\n"), 0o600))
	for _, command := range []string{"run", "status", "queue", "check", "init", "resubmit"} {
		exits(t, config.ExitConfig, "--config", file, command)
	}
}

// A7: --strict is for the first start alone: a router that dies and comes back must
// not refuse because of what died with it.
func TestRunIsStrictAtTheFirstStartAlone(t *testing.T) {
	first := filepath.Join(t.TempDir(), "first")
	assert.Must(t, os.WriteFile(first, nil, 0o600))
	x := startRun(t, []string{"DAEMON_router=once", "FIRST_TIME=" + first}, "--log-format", "text", "run", "--strict")
	x.until(t, "up smtpserver", "up scheduler", "up router", "daemon-ended")
	x.until(t, "again=1s")
	for len(x.order("up router")) < 2 {
		line, err := x.lines.ReadString('\n')
		if err != nil {
			t.Fatalf("no second start: %v after\n%s", err, strings.Join(x.seen, ""))
		}
		x.seen = append(x.seen, line)
	}
	var strict []string
	for _, line := range x.seen {
		if strings.HasPrefix(line, "up ") && strings.Contains(line, "--strict") {
			strict = append(strict, strings.Fields(line)[1])
		}
	}
	slices.Sort(strict)
	assert.Same(t, strict, []string{"router", "scheduler"}, "daemons with --strict")
	assert.Must(t, x.cmd.Process.Signal(syscall.SIGTERM))
	x.end(t)
}
