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

	"zmailer/test/suite"
)

// As under systemd: the starter is a service with a socket, the scheduler was never root,
// and another scheduler comes after it. Strangers are not served, and those that
// say hello alone keep nobody waiting.
func TestSchedulerThatNeverWasRootAsksAService(t *testing.T) {
	t.Parallel()
	games, _ := idsOf(t, "games")
	daemon, group := idsOf(t, daemonUser)
	s := confined(t, nil, func(s *suite.Suite) { s.Settings["MAILBOX"] = filepath.Join(s.Dir, "mail") + "/%u" })
	socket := filepath.Join(s.Dir, "agents")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	starter := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" --start-agents`, filepath.Join(s.Bin, "scheduler"))
	starter.Env, starter.ExtraFiles, starter.Stderr = s.Env(), []*os.File{f}, os.Stderr
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = starter.Process.Kill() }() // it has ended, if all is well

	silent := make([]net.Conn, 10) // more than are served at once
	for i := range silent {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent[i] = c
		if _, err := c.Write([]byte(`{"hello":true}`)); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
	}
	asked := func(uid, gid int) *exec.Cmd {
		cmd := s.Command("scheduler")
		cmd.Env = append(cmd.Env, "AGENTSTARTER="+socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		return cmd
	}
	if said, code := run(t, asked(nobody, nobody)); code == 0 {
		t.Errorf("a stranger's scheduler was served: %s", said)
	}
	mailbox := filepath.Join(s.Dir, "mail", "games")
	for size := int64(0); ; {
		submit(t, s, "Subject: x\n\n", "-f", "games@mta.example", "games@mta.example")
		if said, code := call(t, s, "router", "--once"); code != 0 {
			t.Fatalf("router: exit code %d, %s", code, said)
		}
		cmd := asked(daemon, group)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitEmpty(t, s)
		if got := standingOf(t, cmd.Process.Pid); got.effective != "0000000000000000" || got.noNew != "1" {
			t.Errorf("the scheduler has %+v", got)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the scheduler: %v", err)
		}
		info, err := os.Stat(mailbox)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != games {
			t.Errorf("the mailbox is uid %d's, want %d's", st.Uid, games)
		}
		if size > 0 {
			if info.Size() <= size {
				t.Error("the second scheduler delivered nothing")
			}
			break
		}
		size = info.Size()
	}
	for _, c := range silent {
		c.Close()
	}
	if err := starter.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := starter.Wait(); err != nil {
		t.Errorf("the starter: %v", err)
	}
}

// A starter that says why it cannot work wants somebody to mend that, and systemd starts
// the scheduler no more (RestartPreventExitStatus=78); one that hangs up may be back in a
// moment.
func TestSchedulerIsStartedAgainWhenTheStarterIsGone(t *testing.T) {
	t.Parallel()
	daemon, group := idsOf(t, daemonUser)
	s := confined(t, nil, nil)
	for greeting, want := range map[string]int{"": 1, "nonsense": 1, `{"error":"who may write it?"}`: 78} {
		socket := filepath.Join(t.TempDir(), "agents")
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, path := range []string{socket, filepath.Dir(socket), filepath.Dir(filepath.Dir(socket))} {
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(greeting))
			c.Close()
		}()
		cmd := s.Command("scheduler")
		cmd.Env = append(cmd.Env, "AGENTSTARTER="+socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(daemon), Gid: uint32(group)}}
		said, code := run(t, cmd)
		if code != want || !strings.Contains(said, "start agents") || want == 78 && !strings.Contains(said, "who may write it?") {
			t.Errorf("%q: exit code %d, want %d: %s", greeting, code, want, said)
		}
	}
}
