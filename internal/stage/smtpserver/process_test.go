package smtpserver

import (
	"bufio"
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

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/logtest"
	"zmailer/test/suite"
)

// process starts the real program; limit goes before it in a shell line.
func process(t *testing.T, limit string, args ...string) (*running, *exec.Cmd) {
	t.Helper()
	args = append([]string{"--listen", "127.0.0.1:0"}, args...)
	return processWith(t, limit, nil, args...)
}

// TestMain removes the program that tests have built.
func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := programDir(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// programDir is where the program of these tests is.
var programDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "smtpserver-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // other users run it
})

// built is the program, built once.
var built = sync.OnceValues(func() (string, error) {
	dir, err := programDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "smtpserver")
	return path, suite.BuildOne(path, "smtpserver")
})

// processWith has change do what it likes with the command before it starts.
func processWith(t *testing.T, limit string, change func(*exec.Cmd), args ...string) (*running, *exec.Cmd) {
	t.Helper()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, dir: t.TempDir(), log: &logtest.Buffer{}}
	disk, err := durable.NewOS(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := postoffice.Init(disk); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-c", limit + `exec "$0" "$@"`, bin,
		"--postoffice", r.dir, "--log-format", "text"}, args...)
	cmd := exec.Command("/bin/sh", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if change != nil {
		change(cmd)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewScanner(stderr)
	listening := regexp.MustCompile(`msg=listening .*address=(\S+)`)
	for lines.Scan() {
		fmt.Fprintln(r.log, lines.Text())
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			r.addr = m[1]
			break
		}
	}
	if r.addr == "" {
		t.Fatalf("it does not listen:\n%s", r.log.String())
	}
	go func() {
		for lines.Scan() {
			fmt.Fprintln(r.log, lines.Text())
		}
	}()
	return r, cmd
}

// Z2: 100 MB in constant memory, by DATA, by BDAT, and in TLS.
func TestLargeMessagesTakeConstantMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 300 MB")
	}
	const size = 100 << 20
	prefix := filepath.Join(t.TempDir(), "mx")
	writePair(t, prefix, "mx.example.org", nextYear())
	conf := filepath.Join(t.TempDir(), "zmailer.conf")
	writeFile(t, conf, []byte("HOSTNAME=mx.example.org\nTLSCERT="+prefix+".pem\nTLSKEY="+prefix+".key\n"), 0o644)
	r, cmd := process(t, "", "--config", conf)
	line := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	copy(line[len(line)-2:], "\r\n")
	p := r.dial()
	p.SetDeadline(time.Now().Add(time.Minute))
	p.transaction()
	for n := 0; n < size; n += len(line) {
		p.send(string(line))
	}
	p.send(".\r\n")
	p.expect("250 2.0.0")
	chunk := func() {
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@d>", "250")
		p.send(fmt.Sprintf("BDAT %d LAST\r\n", size))
		for n := 0; n < size; n += len(line) {
			p.send(string(line))
		}
		p.expect("250 2.0.0")
	}
	chunk()
	p.say("STARTTLS", "220")
	p.secure(&tls.Config{InsecureSkipVerify: true})
	p.say("EHLO c", "250")
	chunk()
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
	idle, p := r.dial(), r.dial()
	p.transaction()
	p.send("ha")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	idle.expect("421 4.3.2")
	p.say("lf\r\n.", "250")
	p.expect("421 4.3.2")
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if got := r.content(); got != "half\n" {
		t.Errorf("got %q", got)
	}
}

// M2: when all descriptors are taken the server waits, says so once, and goes on.
func TestServerOutOfDescriptorsRecovers(t *testing.T) {
	r, _ := process(t, "ulimit -n 30; ")
	var waiting []net.Conn
	eventually(t, "a shortage", func() bool {
		c, err := net.Dial("tcp", r.addr)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			waiting = append(waiting, c)
		}
		return strings.Contains(r.log.String(), "msg=accept-trouble")
	})
	for _, c := range waiting {
		c.Close()
	}
	p := r.dial()
	p.transaction()
	p.say("x\r\n.", "250")
	if got := strings.Count(r.log.String(), "msg=accept-trouble"); got != 1 {
		t.Errorf("said %d times", got)
	}
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
	seen := map[string]int{}
	for _, name := range r.names("router") {
		_, content, _ := strings.Cut(r.message(name), "env-end\n")
		seen[content]++
	}
	for c := range clients {
		for m := range messages {
			if n := seen[fmt.Sprintf("Subject: %d-%d\n\nhi\n", c, m)]; n != 1 {
				t.Errorf("message %d of client %d is there %d times", m, c, n)
			}
		}
	}
	if len(seen) != clients*messages {
		t.Errorf("%d messages, want %d", len(seen), clients*messages)
	}
	if left := r.names("public"); len(left) > 0 {
		t.Errorf("public/ holds %q", left)
	}
	r.stop()
	if err := r.ended(); err != nil {
		t.Error(err)
	}
	eventually(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}
