package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/admin/service"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/supervise"
)

// host is a machine without systemd, on which zmctl is called as from a shell, with
// stand-ins for the daemons.
type host struct {
	self string
	env  []string
	po   string
}

func newHost(t *testing.T, settings ...string) *host {
	t.Helper()
	self, err := os.Executable()
	assert.Must(t, err)
	dir := t.TempDir()
	for _, name := range service.Daemons() {
		assert.Must(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	h := &host{self: self, po: filepath.Join(dir, "po")}
	conf := filepath.Join(dir, "conf")
	assert.Must(t, config.WriteDefaults(conf, append(settings, "POSTOFFICE="+h.po)...))
	h.env = append(os.Environ(), "BE_ZMCTL=1", "PATH="+dir, "ZCONFIG="+filepath.Join(conf, "zmailer.conf"), "POSTOFFICE=", "TERM=dumb")
	t.Cleanup(func() {
		// Not the test's context, which has ended.
		st, err := service.Ask(context.Background(), h.po, service.Request{Do: "status"})
		if err != nil {
			return
		}
		_ = syscall.Kill(st.Pid, syscall.SIGKILL)
		for _, d := range st.Daemons {
			if d.Pid > 0 {
				_ = syscall.Kill(d.Pid, syscall.SIGKILL)
			}
		}
	})
	return h
}

// call runs a command to its end.
func (h *host) call(t *testing.T, args ...string) (said string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), h.self, args...)
	cmd.Env = h.env
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (h *host) must(t *testing.T, args ...string) string {
	t.Helper()
	said, code := h.call(t, args...)
	if code != 0 {
		log, _ := os.ReadFile(filepath.Join(h.po, postoffice.LogFile))
		t.Fatalf("zmctl %q: exit code %d\n%s\nthe log:\n%s", args, code, said, log)
	}
	return said
}

func (h *host) ask(t *testing.T) (*service.Answer, error) {
	t.Helper()
	return service.Ask(t.Context(), h.po, service.Request{Do: "status"})
}

func (h *host) state(t *testing.T, name string) supervise.State {
	t.Helper()
	st, err := h.ask(t)
	assert.Must(t, err)
	i := slices.IndexFunc(st.Daemons, func(d supervise.State) bool { return d.Daemon == name })
	if i < 0 {
		t.Fatalf("no %s in %+v", name, st)
	}
	return st.Daemons[i]
}

// M42: start, status, stop and restart of all, in the background, each also where it is
// so already.
func TestServiceStartsAndStopsInTheBackground(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(t, "init")
	wantIn(t, h.must(t, "stop"), "no daemons are running")
	for n := range 2 {
		out := h.must(t, "start")
		wantIn(t, out, "smtpserver", "router", "scheduler", "run by zmctl run, pid ", filepath.Join(h.po, "log"))
		if strings.Contains(out, " no ") {
			t.Errorf("start %d: %s", n, out)
		}
	}
	first, err := h.ask(t)
	assert.Must(t, err)
	for _, d := range first.Daemons {
		if !d.Runs || !d.Ready || d.Starts != 1 {
			t.Errorf("got %+v", d)
		}
	}
	if pgid, err := syscall.Getpgid(first.Pid); err != nil || pgid != first.Pid {
		t.Errorf("it is in the group %d of whoever started it: %v", pgid, err)
	}
	said, code := h.call(t, "run")
	if code != 1 || !strings.Contains(said, "start zmctl: ") || !strings.Contains(said, fmt.Sprintf("pid %d", first.Pid)) {
		t.Errorf("a second zmctl run: %d %s", code, said)
	}
	h.must(t, "restart")
	second, err := h.ask(t)
	if err != nil || second.Pid == first.Pid {
		t.Errorf("after a restart: got pid %d, %v, want another than %d", second.Pid, err, first.Pid)
	}
	wantIn(t, h.must(t, "status"), "DAEMON", "smtpserver  yes")
	h.must(t, "stop")
	if _, err := h.ask(t); !errors.Is(err, service.ErrNoRun) {
		t.Errorf("after stop: got %v", err)
	}
	log, err := os.ReadFile(filepath.Join(h.po, postoffice.LogFile))
	assert.Must(t, err)
	wantIn(t, string(log), "up router", "down smtpserver", "msg=stopped program=zmctl")
	assert.Equal(t, strings.Count(string(log), "up router"), 2, "starts of the router")
}

// M42: one daemon is stopped, started and restarted while the others go on.
func TestServiceStopsAndStartsOneDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(t, "start")
	scheduler, router := h.state(t, "scheduler").Pid, h.state(t, "router").Pid
	out := h.must(t, "stop", "router")
	wantIn(t, out, "router      no", "stopped: zmctl start router")
	if d := h.state(t, "router"); d.Runs || !d.Stopped {
		t.Errorf("after stop: %+v", d)
	}
	h.must(t, "stop", "router")
	h.must(t, "start", "router")
	if d := h.state(t, "router"); !d.Runs || d.Pid == router {
		t.Errorf("after start: %+v", d)
	}
	router = h.state(t, "router").Pid
	h.must(t, "restart", "router", "smtpserver")
	if d := h.state(t, "router"); !d.Runs || d.Pid == router {
		t.Errorf("after restart: %+v", d)
	}
	assert.Equal(t, h.state(t, "scheduler").Pid, scheduler, "scheduler")
	h.must(t, "stop", "router")
	h.must(t, "start")
	if d := h.state(t, "router"); !d.Runs {
		t.Errorf("start of all: %+v", d)
	}
}

// M42: the flag keeps all from being started, by every way, and says who and why.
func TestFrozenServiceIsNotStartedByAnyWay(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(t, "start")
	h.must(t, "freeze-service", "the disk is moved")
	wantIn(t, h.must(t, "status"), "the service is frozen", "the disk is moved")
	for _, args := range [][]string{{"start"}, {"restart"}, {"start", "router"}} {
		if said, code := h.call(t, args...); code != config.ExitConfig || !strings.Contains(said, "the disk is moved; zmctl thaw-service") {
			t.Errorf("%q: exit code %d\n%s", args, code, said)
		}
	}
	if d := h.state(t, "router"); !d.Runs {
		t.Errorf("what runs was stopped: %+v", d)
	}
	h.must(t, "stop")
	h.must(t, "thaw-service")
	h.must(t, "start")
}

// M42: after a rotation the log goes on in the new file, by zmctl reload and by either
// signal; only SIGUSR1 does not make the scheduler read its configuration.
func TestLogIsReopenedAfterRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "mail.log")
	h := newHost(t, "LOGFILE="+log)
	h.must(t, "start")
	st, err := h.ask(t)
	if err != nil || st.Log != log {
		t.Fatalf("got %+v, %v", st, err)
	}
	rotate := func(n int, how func()) {
		t.Helper()
		old := log + "." + string(rune('0'+n))
		assert.Must(t, os.Rename(log, old))
		how()
		awaitText(t, log, "log-reopened")
		left, err := os.ReadFile(old)
		assert.Must(t, err)
		// A daemon that is started now writes there, too.
		h.must(t, "restart", "router")
		awaitText(t, log, "up router")
		// Each file but the first begins with the line of its own opening.
		if b, err := os.ReadFile(old); err != nil || string(b) != string(left) || strings.Count(string(b), "log-reopened") != min(n-1, 1) {
			t.Errorf("the rotated file was written still: %v\n%s", err, b)
		}
	}
	rotate(1, func() {
		// The stand-in for the scheduler holds no lock, so it gets no signal.
		if said, code := h.call(t, "reload"); code != 1 || !strings.Contains(said, "no scheduler") || !strings.Contains(said, "continues in "+log) {
			t.Errorf("reload: %d\n%s", code, said)
		}
	})
	rotate(2, func() { syscall.Kill(st.Pid, syscall.SIGUSR1) })
	if h.state(t, "scheduler").Starts != 1 {
		t.Error("SIGUSR1 reached the scheduler")
	}
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("SIGHUP is ignored, as below nohup: zmctl run leaves it so")
	}
	rotate(3, func() { syscall.Kill(st.Pid, syscall.SIGHUP) })
	// The stand-in knows no SIGHUP and dies of it.
	awaitText(t, log, "daemon=scheduler reason=\"signal: hangup\"")
}

// awaitText waits until a file holds a text; a file has no event to wait for.
func awaitText(t *testing.T, name, text string) {
	t.Helper()
	end := time.After(20 * time.Second)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		b, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(b), text) {
			return
		}
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("%s has no %q: %v\n%s", name, text, err, b)
		}
	}
}

// If a program cannot start, zmctl start prints its output; the others go on.
func TestStartTellsWhatWentWrong(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.env = append(h.env, "DAEMON_scheduler=78")
	said, code := h.call(t, "start")
	if code != 1 || !strings.Contains(said, "scheduler has ended: exit status 78") {
		t.Errorf("exit code %d\n%s", code, said)
	}
	h.must(t, "stop")
	if _, err := h.ask(t); !errors.Is(err, service.ErrNoRun) {
		t.Errorf("something is left: %v", err)
	}
	first := filepath.Join(t.TempDir(), "first")
	assert.Must(t, os.WriteFile(first, nil, 0o600))
	h.env = append(h.env, "DAEMON_scheduler=", "DAEMON_router=once", "FIRST_TIME="+first)
	said, code = h.call(t, "start")
	if code != 1 || !strings.Contains(said, "router has ended: exit status 1") {
		t.Errorf("exit code %d\n%s", code, said)
	}
	// It is tried again, and comes up.
	h.must(t, "start")
	wantIn(t, h.must(t, "status"), "started 2 times; it had ended: exit status 1")
	for _, args := range [][]string{{"start", "postfix"}, {"stop", "postfix"}, {"restart", "x"}, {"reload", "x"}, {"start", "--nonsense"}} {
		if said, code := h.call(t, args...); code != config.ExitUsage {
			t.Errorf("%q: exit code %d\n%s", args, code, said)
		}
	}
	out, code := h.call(t, "reload", "router", "smtpserver")
	if code != 0 || !strings.Contains(out, "router") {
		t.Errorf("reload router: %d %s", code, out)
	}
}

// A zmctl run in the foreground takes the same orders, and is named for what it is.
func TestForegroundRunTakesOrders(t *testing.T) {
	x := startRun(t, nil, "--log-format", "text", "run")
	x.until(t, "up smtpserver", "up router", "up scheduler")
	if _, err := service.Ask(t.Context(), x.po, service.Request{Do: "wait"}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ZCONFIG", "")
	t.Setenv("POSTOFFICE", x.po)
	mustDo(t, "restart", "--direct")
	st, err := service.Ask(t.Context(), x.po, service.Request{Do: "status"})
	if err != nil || st.Background || st.Pid != x.cmd.Process.Pid {
		t.Errorf("got %+v, %v", st, err)
	}
	if _, err := service.Ask(t.Context(), x.po, service.Request{Do: "dance"}); err == nil || !strings.Contains(err.Error(), "unknown request") {
		t.Errorf("nonsense: got %v", err)
	}
	out, _, _ := invoke(t, "status", "--json")
	var status statusReport
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Service == nil || status.Service.By != "zmctl run" || len(status.Service.Daemons) != 3 {
		t.Errorf("status: %v\n%s", err, out)
	}
	exits(t, 0, "stop", "--direct")
	assert.Equal(t, x.end(t), 0, "exit code")
	assert.Same(t, x.order("down")[3:], []string{"down smtpserver", "down router", "down scheduler"}, "ended")
}

// The socket is for root and the postoffice's owner alone, and goes with zmctl run.
func TestControlSocketIsClosedToOthers(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(t, "start")
	info, err := os.Lstat(filepath.Join(h.po, service.ControlSocket))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
	h.must(t, "stop")
	for _, name := range []string{service.ControlSocket, ".pid.zmctl"} {
		if _, err := os.Lstat(filepath.Join(h.po, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}
