package smtpserver

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

var program = suite.Program{Name: "smtpserver"}

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// command returns the real program, on a postoffice of its own; limit goes before it in a
// shell line.
func command(t *testing.T, limit string, args ...string) (*running, *exec.Cmd) {
	t.Helper()
	r := newOffice(t)
	cmd := exec.Command("/bin/sh", append([]string{"-c", limit + `exec "$0" "$@"`, program.Path(t), "--postoffice", r.dir, "--log-format", "text"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return r, cmd
}

// run starts a command and waits until it listens.
func (r *running) run(cmd *exec.Cmd) {
	r.t.Helper()
	cmd.Stderr = r.log
	assert.Must(r.t, cmd.Start())
	r.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	r.log.Await(r.t, "msg=listening")
	address := regexp.MustCompile(`msg=listening .*address=(\S+)`).FindStringSubmatch(r.log.String())
	addr := assert.Get(net.ResolveTCPAddr("tcp", address[1]))(r.t)
	r.addr, r.addrs = addr.String(), []net.Addr{addr}
}

// process returns a running program with one port.
func process(t *testing.T, limit string, args ...string) (*running, *exec.Cmd) {
	t.Helper()
	r, cmd := command(t, limit, append(args, "--listen", "127.0.0.1:0")...)
	r.run(cmd)
	return r, cmd
}

// Z2: 100 MB in constant memory, by DATA, by BDAT, and in TLS.
func TestLargeMessagesTakeConstantMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 300 MB")
	}
	const size = 100 << 20
	cert, key := peer.NewCA(t, "test").Pair("mx.example.org")
	conf := filepath.Join(t.TempDir(), "zmailer.conf")
	writeFile(t, conf, []byte("HOSTNAME=mx.example.org\nTLSCERT="+cert+"\nTLSKEY="+key+"\nRCPTCHECK=no\n"), 0o644)
	r, cmd := process(t, "", "--config", conf)
	line := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	copy(line[len(line)-2:], "\r\n")
	p := r.greeted()
	p.SetDeadline(time.Now().Add(time.Minute))
	content := func() {
		for n := 0; n < size; n += len(line) {
			p.send(string(line))
		}
	}
	p.begin().data()
	content()
	p.say(".", "250 2.0.0")
	p.begin().send(fmt.Sprintf("BDAT %d LAST\r\n", size))
	content()
	p.expect("250 2.0.0")
	p.say("STARTTLS", "220")
	p.secure(&tls.Config{InsecureSkipVerify: true})
	p.say("EHLO c", "250")
	p.begin().send(fmt.Sprintf("BDAT %d LAST\r\n", size))
	content()
	p.expect("250 2.0.0")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	peak, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil || peak > 64<<10 {
		t.Errorf("it used %d kB, %v", peak, err)
	}
	for _, name := range r.names("router") {
		info, err := os.Stat(filepath.Join(r.dir, "router", name))
		if want := int64(size - size/len(line)); err != nil || info.Size() < want || info.Size() > want+1000 {
			t.Errorf("%s has %d bytes, %v; want some more than %d", name, info.Size(), err, want)
		}
	}
}

// A17: SIGTERM in DATA.
func TestSignalLetsTheMessageFinish(t *testing.T) {
	r, cmd := process(t, "")
	idle, p := r.dial(), r.greeted()
	p.begin().data().send("ha")
	assert.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	idle.expect("421 4.3.2")
	p.say("lf\r\n.", "250")
	p.expect("421 4.3.2")
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	assert.Equal(t, r.content(), "half\n")
}

// M2: when all descriptors are taken the server waits, logs it once, and goes on.
func TestServerOutOfDescriptorsRecovers(t *testing.T) {
	r, _ := process(t, "ulimit -n 30; ")
	var waiting []net.Conn
	logtest.Eventually(t, "a shortage", func() bool {
		c, err := net.Dial("tcp", r.addr)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			waiting = append(waiting, c)
		}
		return r.log.Count("msg=accept-trouble") > 0
	})
	for _, c := range waiting {
		c.Close()
	}
	r.greeted().begin().content(plain, "250")
	r.log.Expect(t, 1, "msg=accept-trouble")
}

func TestManyClientsGetAFileEach(t *testing.T) {
	before := runtime.NumGoroutine()
	const clients, messages = 30, 20
	r := start(t, nil)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for m := range messages {
				text := fmt.Sprintf("Subject: %d-%d\r\n\r\nhi\r\n", c, m)
				if err := smtp.SendMail(r.addr, nil, "a@b", []string{"c@d", "e@f"}, []byte(text)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, name := range r.names("router") {
		_, content, _ := strings.Cut(r.message(name), "env-end\n")
		seen[content] = true
	}
	if got := len(r.names("router")); len(seen) != clients*messages || got != clients*messages {
		t.Errorf("%d messages in %d files, want %d", len(seen), got, clients*messages)
	}
	r.ended()
	logtest.Eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// asSystemd passes sockets to a command, as sd_listen_fds(3) takes them.
const asSystemd = "export LISTEN_PID=$$; "

// pass opens sockets as systemd would and passes them to a command.
func pass(t *testing.T, cmd *exec.Cmd, names string, listeners ...net.Listener) {
	t.Helper()
	for _, l := range listeners {
		f := assert.Get(l.(interface{ File() (*os.File, error) }).File())(t)
		t.Cleanup(func() { f.Close(); l.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.Env = append(cmd.Env, "LISTEN_FDS="+strconv.Itoa(len(listeners)), "LISTEN_FDNAMES="+names)
}

func listenOn(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	return assert.Get(net.Listen(network, addr))(t)
}

// Sockets of systemd have their role by their name; no other port is opened unless it is
// set.
func TestSocketsOfSystemdAreServed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lmtp")
	mx, local := listenOn(t, "tcp", "127.0.0.1:0"), listenOn(t, "unix", path)
	r, cmd := command(t, asSystemd)
	pass(t, cmd, "mx:lmtp", mx, local)
	r.run(cmd)
	r.log.AwaitCount(t, 2, "msg=listening")
	assert.Equal(t, r.addr, mx.Addr().String())
	r.greeted().begin().content(plain, "250")
	r.addrs = append(r.addrs, local.Addr())
	r.lmtp().say("LHLO c", "250")
	assert.Must(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("systemd's socket is gone: %v", err)
	}
}

func TestSocketWithoutARoleIsRefused(t *testing.T) {
	_, cmd := command(t, asSystemd)
	pass(t, cmd, "zmailer.socket", listenOn(t, "tcp", "127.0.0.1:0"))
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 78 {
		t.Errorf("%v: %s", err, out)
	}
}
