package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/suite"
)

// asUnit starts a daemon as the daemons' user from the start, with these capabilities, as
// its unit does.
func asUnit(t *testing.T, s *suite.Suite, m *systemd, uid, gid int, caps []uintptr, env []string, program string) {
	t.Helper()
	cmd := s.Command(program)
	cmd.Env = append(append(cmd.Env, "NOTIFY_SOCKET="+m.path), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, AmbientCaps: caps}
	runs(t, cmd)
	m.await("READY=1")
}

// runs starts a daemon that ends with the test.
func runs(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s\n%s", cmd.Path, read(t, log.Name()))
		}
	})
}

// The packages' units: a scheduler without any right, and beside it, behind systemd's
// socket, what starts agents that become users.
func TestSchedulerOfTheUnitsDeliversByItsStarter(t *testing.T) {
	t.Parallel()
	s := confined(t, nil, nil)
	uid, gid := idsOf(t, daemonUser)
	games, gamesGroup := idsOf(t, "games")
	path := filepath.Join(openDir(t), "agents")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Chown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
	starter := exec.Command("/bin/sh", "-c", `export LISTEN_PID=$$; exec "$0" --start-agents`, filepath.Join(s.Bin, "scheduler"))
	starter.Env, starter.ExtraFiles = append(s.Env(), "LISTEN_FDS=1", "LISTEN_FDNAMES=zmailer-agents.socket"), []*os.File{f}
	runs(t, starter)
	m := newSystemd(t)
	if err := os.Chmod(filepath.Dir(m.path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(m.path, 0o666); err != nil {
		t.Fatal(err)
	}
	asUnit(t, s, m, uid, gid, nil, []string{"AGENTSTARTER=" + path}, "scheduler")
	asUnit(t, s, m, uid, gid, []uintptr{unix.CAP_DAC_READ_SEARCH}, nil, "router")
	submitUID(t, s, games, gamesGroup, "Subject: x\n\nby the units\n", "games")
	inbox := filepath.Join(s.Maildir("games"), "new")
	for end := time.Now().Add(patience); ; {
		if found, err := os.ReadDir(inbox); err == nil && len(found) == 1 {
			info, err := found[0].Info()
			if err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(games) {
				t.Errorf("it belongs to another: %v %v", info, err)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("nothing has come")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
