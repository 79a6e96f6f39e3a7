package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/test/suite"
)

// asUser starts a program of the system as a user, with some capabilities.
func asUser(t *testing.T, s *suite.Suite, uid, gid int, caps []uintptr, env string, program string) *exec.Cmd {
	t.Helper()
	cmd := s.Command(program)
	cmd.Env = append(cmd.Env, env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, AmbientCaps: caps}
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all is well
	return cmd
}

// ends stops a program by SIGTERM.
func ends(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v", cmd.Path, err)
	}
}

// As the packages' units run them: the launcher is a service behind systemd's socket, the
// scheduler never was root, the router has one capability, and a second scheduler follows the
// first. Other users are not served, and clients that only say hello do not delay any other.
func TestSchedulerOfTheUnitsDeliversByTheLauncher(t *testing.T) {
	t.Parallel()
	games, gamesGroup := idsOf(t, "games")
	daemon, group := idsOf(t, daemonUser)
	s := confined(t, nil, func(s *suite.Suite) { s.Settings["MAILBOX"] = filepath.Join(s.Dir, "mail") + "/%u" })
	socket := filepath.Join(s.Dir, "agents")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	must(t, err)
	defer l.Close()
	f, err := l.File()
	must(t, err)
	defer f.Close()
	must(t, os.Chmod(socket, 0o666))
	launcher := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" --start-agents`, filepath.Join(s.Bin, "scheduler"))
	launcher.Env, launcher.ExtraFiles, launcher.Stderr = s.Env(), []*os.File{f}, os.Stderr
	must(t, launcher.Start())
	defer func() { _ = launcher.Process.Kill() }() // it has ended, if all is well

	silent := make([]net.Conn, 10) // more than are served at once
	for i := range silent {
		silent[i], err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		must(t, err)
		defer silent[i].Close()
		if _, err := silent[i].Write([]byte(`{"hello":true}`)); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
	}
	env := "AGENTSTARTER=" + socket
	if asUser(t, s, nobody, nobody, nil, env, "scheduler").Wait() == nil {
		t.Error("the launcher served another user's scheduler")
	}
	router := asUser(t, s, daemon, group, []uintptr{unix.CAP_DAC_READ_SEARCH}, "", "router")
	mailbox := filepath.Join(s.Dir, "mail", "games")
	size := int64(0)
	for range 2 {
		scheduler := asUser(t, s, daemon, group, nil, env, "scheduler")
		submitUID(t, s, games, gamesGroup, "Subject: x\n\n", "games@mta.example")
		awaitEmpty(t, s)
		if got := standingOf(t, scheduler.Process.Pid); got.effective != "0000000000000000" || got.noNew != "1" {
			t.Errorf("the scheduler has %+v", got)
		}
		ends(t, scheduler)
		info, err := os.Stat(mailbox)
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != games || info.Size() <= size {
			t.Errorf("the mailbox of %d bytes is uid %d's, want more than %d bytes of uid %d", info.Size(), st.Uid, size, games)
		}
		size = info.Size()
	}
	ends(t, router)
	for _, c := range silent {
		c.Close()
	}
	ends(t, launcher)
}

// A launcher that reports an error needs an operator: the scheduler exits with 78 and systemd does
// not restart it. When the launcher hangs up, the exit code allows a restart.
func TestExitCodeOfASchedulerWithoutALauncher(t *testing.T) {
	t.Parallel()
	daemon, group := idsOf(t, daemonUser)
	s := confined(t, nil, nil)
	for greeting, want := range map[string]int{"": 1, "nonsense": 1, `{"error":"who may write it?"}`: 78} {
		socket := filepath.Join(t.TempDir(), "agents")
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
		must(t, err)
		defer l.Close()
		for _, path := range []string{socket, filepath.Dir(socket), filepath.Dir(filepath.Dir(socket))} {
			must(t, os.Chmod(path, 0o777))
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(greeting))
			c.Close()
		}()
		cmd := asUser(t, s, daemon, group, nil, "AGENTSTARTER="+socket, "scheduler")
		_ = cmd.Wait() // the exit code is compared
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%q: exit code %d, want %d", greeting, code, want)
		}
	}
}
