package e2e

import (
	"errors"
	"net"
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

// asUser starts a program of the system as a user, with some capabilities.
func asUser(t *testing.T, s *suite.Suite, uid, gid int, caps []uintptr, env string, program string) *exec.Cmd {
	t.Helper()
	cmd := s.Command(program)
	cmd.Env = append(cmd.Env, env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, AmbientCaps: caps}
	assert.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all is well
	return cmd
}

// ends stops a program by SIGTERM.
func ends(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	assert.Must(t, cmd.Process.Signal(syscall.SIGTERM))
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
	assert.Must(t, err)
	defer l.Close()
	f, err := l.File()
	assert.Must(t, err)
	defer f.Close()
	assert.Must(t, os.Chmod(socket, 0o666))
	launcher := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" --start-agents`, filepath.Join(s.Bin, "scheduler"))
	launcher.Env, launcher.ExtraFiles, launcher.Stderr = s.Env(), []*os.File{f}, os.Stderr
	assert.Must(t, launcher.Start())
	defer func() { _ = launcher.Process.Kill() }() // it has ended, if all is well

	silent := make([]net.Conn, 10) // more than are served at once
	for i := range silent {
		silent[i], err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		assert.Must(t, err)
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
		assert.Must(t, err)
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
		assert.Must(t, err)
		defer l.Close()
		for _, path := range []string{socket, filepath.Dir(socket), filepath.Dir(filepath.Dir(socket))} {
			assert.Must(t, os.Chmod(path, 0o777))
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
		assert.Equal(t, cmd.ProcessState.ExitCode(), want, greeting)
	}
}

// systemd is systemd's end of sd_notify(3).
type systemd struct {
	t    *testing.T
	conn *net.UnixConn
	path string
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	m := &systemd{t: t, path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: m.path}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close() })
	return m
}

// await reads notifications until there is a line.
func (m *systemd) await(line string) {
	m.t.Helper()
	b, heard := make([]byte, 4096), ""
	assert.Must(m.t, m.conn.SetReadDeadline(time.Now().Add(patience)))
	for {
		n, err := m.conn.Read(b)
		if err != nil {
			m.t.Fatalf("no notification %s, but\n%s", line, heard)
		}
		for got := range strings.Lines(string(b[:n])) {
			if got = strings.TrimSpace(got); got == line {
				return
			}
			heard += got + "\n"
		}
	}
}

// start starts a daemon as systemd does, with a watchdog of a short time.
func (m *systemd) start(s *suite.Suite, program string) *exec.Cmd {
	m.t.Helper()
	cmd := s.Command(program)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=1000000")
	cmd.Stderr = os.Stderr
	if !testing.Verbose() {
		cmd.Stderr = nil
	}
	assert.Must(m.t, cmd.Start())
	m.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// Each daemon notifies systemd when it serves, from its main loop for the watchdog, and when it
// stops; the scheduler also when it reloads scheduler.conf.
func TestEachDaemonNotifiesSystemd(t *testing.T) {
	for _, program := range []string{"smtpserver", "router", "scheduler"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			s, m := prepare(t, nil, nil), newSystemd(t)
			cmd := m.start(s, program)
			m.await("READY=1")
			for range 3 {
				m.await("WATCHDOG=1")
			}
			if program == "scheduler" {
				assert.Must(t, cmd.Process.Signal(syscall.SIGHUP))
				m.await("RELOADING=1")
				m.await("READY=1")
			}
			if program == "smtpserver" {
				// The interruption of accept(2) costs no client anything.
				c, err := net.Dial("tcp", s.SMTPAddr)
				assert.Must(t, err)
				defer c.Close()
				m.await("WATCHDOG=1")
			}
			assert.Must(t, cmd.Process.Signal(syscall.SIGTERM))
			m.await("STOPPING=1")
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
