package smtpserver

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asSystemd passes sockets to a command, as sd_listen_fds(3) takes them.
const asSystemd = "export LISTEN_PID=$$; "

// passed opens the sockets that systemd would have opened, and gives what passes them.
func passed(t *testing.T, names string, listeners ...net.Listener) func(*exec.Cmd) {
	t.Helper()
	var files []*os.File
	for _, l := range listeners {
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close(); l.Close() })
		files = append(files, f)
	}
	return func(cmd *exec.Cmd) {
		cmd.ExtraFiles = files
		cmd.Env = append(cmd.Env, "LISTEN_FDS="+string(rune('0'+len(files))), "LISTEN_FDNAMES="+names)
	}
}

// Sockets of systemd have their role by their name; nothing else is opened unless it
// is set.
func TestSocketsOfSystemdAreServed(t *testing.T) {
	mx, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "lmtp")
	local, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	r, cmd := processWith(t, asSystemd, passed(t, "mx:lmtp", mx, local))
	if r.addr != mx.Addr().String() {
		t.Errorf("listens on %s, want %s", r.addr, mx.Addr())
	}
	p := r.dial()
	p.transaction()
	p.say("x\r\n.", "250")
	p.say("QUIT", "221")
	p = r.connectTo("unix", path)
	p.expect("220 ")
	p.say("LHLO c", "250")
	p.say("QUIT", "221")
	if got := strings.Count(r.log.String(), "msg=listening"); got != 2 {
		t.Errorf("%d sockets, want 2:\n%s", got, r.log.String())
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("systemd's socket is gone: %v", err)
	}
}

func TestSocketWithoutARoleIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer l.Close()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", asSystemd+`exec "$0" "$@"`, bin, "--postoffice", t.TempDir())
	cmd.Env = []string{"LISTEN_FDS=1", "LISTEN_FDNAMES=zmailer.socket"}
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 78 || !strings.Contains(string(out), "FileDescriptorName=") {
		t.Errorf("%v: %s", err, out)
	}
}
