package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/test/suite"
)

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

// await passes over what it is told until there is a line.
func (m *systemd) await(line string) {
	m.t.Helper()
	b, heard := make([]byte, 4096), ""
	must(m.t, m.conn.SetReadDeadline(time.Now().Add(patience)))
	for {
		n, err := m.conn.Read(b)
		if err != nil {
			m.t.Fatalf("never told %s, but\n%s", line, heard)
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
	must(m.t, cmd.Start())
	m.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// systemd hears from each daemon when it serves, that its main loop goes round while
// nothing happens, and that it stops; from the scheduler also of scheduler.conf.
func TestSystemdHearsFromEachDaemon(t *testing.T) {
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
				must(t, cmd.Process.Signal(syscall.SIGHUP))
				m.await("RELOADING=1")
				m.await("READY=1")
			}
			if program == "smtpserver" {
				// The interruption of accept(2) costs no client anything.
				c, err := net.Dial("tcp", s.SMTPAddr)
				must(t, err)
				defer c.Close()
				m.await("WATCHDOG=1")
			}
			must(t, cmd.Process.Signal(syscall.SIGTERM))
			m.await("STOPPING=1")
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
