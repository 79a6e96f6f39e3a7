// Package rig is what tests with real programs have in common: directories that all users may
// enter, programs of Debian and a Postfix that run beside ours until the test ends, our own system,
// and waits for what each of them does.
//
//	rig.Needs(t, "/usr/sbin/dovecot")
//	addr := rig.FreeAddr(t)
//	rig.Daemon(t, addr, exec.Command("/usr/sbin/dovecot", "-F", "-c", conf))
//	s := &suite.Suite{Bin: bin, Dir: rig.Dir(t)}
//	assert.Must(t, s.Init())
//	rig.Start(t, s)
//
// It keeps nothing beyond a test. Diagnostics: a failure ends the test, which then has the end of
// each program's log; a program that is not installed skips it.
package rig

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

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// Patience is how long an event may take on a loaded machine.
const Patience = 60 * time.Second

// Needs skips a test without root or a file, which is a program or a library of Debian.
func Needs(t testing.TB, files ...string) {
	t.Helper()
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			t.Skipf("%s is not installed", file)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can do this")
	}
}

// Dir returns a directory of the test that all users may enter.
func Dir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	return dir
}

// ShortDir is Dir with a name that is short enough for sockets in it.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir := assert.Get(os.MkdirTemp("", "rig"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	assert.Must(t, os.Chmod(dir, 0o755))
	return dir
}

// Proxy starts a proxy before a server on a network, tcp or unix, until the test ends.
func Proxy(t testing.TB, network, server string) *peer.Proxy {
	t.Helper()
	p := assert.Get(peer.NewProxy(network, listenOn(t, network, filepath.Base(server)), server))(t)
	t.Cleanup(p.Close)
	return p
}

// Serve has a function serve each connection to a new address of a network, tcp or unix, until the
// test ends; the function closes it.
func Serve(t testing.TB, network string, each func(net.Conn)) (addr string) {
	t.Helper()
	l := assert.Get(net.Listen(network, listenOn(t, network, "s")))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go each(c)
		}
	}()
	return l.Addr().String()
}

// listenOn returns a new address to listen on; name is that of a socket.
func listenOn(t testing.TB, network, name string) string {
	t.Helper()
	if network == "unix" {
		return filepath.Join(ShortDir(t), name)
	}
	return "127.0.0.1:0"
}

// FreeAddr returns an address of loopback that no process listens on.
func FreeAddr(t testing.TB) string {
	t.Helper()
	return assert.Get(peer.FreeAddr())(t)
}

// Sink starts a sink, which ends with the test.
func Sink(t testing.TB, s *peer.Sink) *peer.Sink {
	t.Helper()
	assert.Must(t, s.Start())
	t.Cleanup(s.Close)
	return s
}

// Start starts a system of ours, waits for its daemons, and kills it when the test ends.
func Start(t testing.TB, s *suite.Suite) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of our log:\n%s", tail(s.Log(), 6000))
		}
		s.Kill()
	})
	assert.Must(t, s.Start())
	s.AwaitDaemons(Patience)
}

// Event waits for an event of our log; pairs are keys and what their values hold.
func Event(t testing.TB, s *suite.Suite, word string, pairs ...string) suite.Event {
	t.Helper()
	e, err := s.Wait(Patience, word+" "+strings.Join(pairs, " "), func(e suite.Event) bool { return e.Is(word, pairs...) })
	if err != nil {
		what, _, _ := strings.Cut(err.Error(), "\n") // the log follows, see Start
		t.Fatal(what)
	}
	return e
}

// Await looks at a state that other processes bring about, which has no event that could be waited
// for.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitFor(t, Patience, what, ok)
}

// AwaitFor is Await for what may take so long.
func AwaitFor(t testing.TB, long time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(long); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s after %v", what, long)
		}
	}
}

// Daemon starts a program in the foreground, with a session of its own, which ends with the test,
// and waits until it listens on host:port or on a socket. The log is what it prints, unless the
// command has another place for it.
func Daemon(t testing.TB, addr string, cmd *exec.Cmd) *logtest.Buffer {
	t.Helper()
	return DaemonAs(t, nil, addr, cmd, Patience)
}

// DaemonAs is Daemon as another user, for a program that may take so long to start.
func DaemonAs(t testing.TB, as *syscall.Credential, addr string, cmd *exec.Cmd, long time.Duration) *logtest.Buffer {
	t.Helper()
	log := &logtest.Buffer{}
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = log, log
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setsid: true, Credential: as}
	assert.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", cmd.Path, tail(log.String(), 4000))
		}
	})
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	AwaitFor(t, long, cmd.Path+" that listens on "+addr, func() bool {
		c, err := net.DialTimeout(network, addr, time.Second)
		if err == nil {
			_ = c.Close()
			return true
		}
		select {
		case <-ended:
			t.Fatalf("%s has ended", cmd.Path)
		default:
		}
		return false
	})
	return log
}

// Postfix starts a Postfix, which ends with the test, and waits until it greets; nil: as its
// command is, else change may alter that.
func Postfix(t testing.TB, p *peer.Postfix, change func(*exec.Cmd) *exec.Cmd) *logtest.Buffer {
	t.Helper()
	Needs(t, peer.PostfixMaster)
	cmd := assert.Get(p.Command())(t)
	if change != nil {
		cmd = change(cmd)
	}
	log := Daemon(t, p.Listen, cmd)
	assert.Must(t, peer.AwaitListener(p.Listen, Patience))
	return log
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }
