// Package ecosystem runs the real programs beside those that a mail server has around it:
// mailbox servers, list managers, certbot. The configuration is that of the
// documentation: each page's blocks, with the paths and ports of the test.
package ecosystem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/smtp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/suite"
)

// patience is how long an event may take on a loaded machine.
const patience = 60 * time.Second

var bin string

func TestMain(m *testing.M) {
	suite.AtOnce(4)
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// needs skips a test without root or a program of Debian; files are pairs of file and package.
func needs(t *testing.T, files ...string) {
	t.Helper()
	for i := 0; i < len(files); i += 2 {
		if _, err := os.Stat(files[i]); err != nil {
			t.Skipf("needs Debian's %s", files[i+1])
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// shortDir returns a directory that all users may enter, whose name is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir := assert.Get(os.MkdirTemp("", "eco"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	assert.Must(t, os.Chmod(dir, 0o755))
	return dir
}

// page is what a page of the documentation has as configuration: the text of each fenced block
// that begins with "# NAME", by that name. Replacements are pairs, as of strings.NewReplacer.
type page map[string]string

func readPage(t *testing.T, name string, replacements ...string) page {
	t.Helper()
	text := string(assert.Get(os.ReadFile(filepath.Join("../../docs", name)))(t))
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			t.Fatalf("docs/%s does not have %q, which the test replaces", name, replacements[i])
		}
	}
	p := page{}
	for i, block := range strings.Split(text, "\n```") {
		_, block, _ = strings.Cut(block, "\n") // the language behind the fence
		title, body, found := strings.Cut(block, "\n")
		if name, ok := strings.CutPrefix(title, "# /"); i%2 == 1 && ok && found {
			p["/"+name] = strings.NewReplacer(replacements...).Replace(body) + "\n"
		}
	}
	return p
}

// get returns a block.
func (p page) get(t *testing.T, name string) string {
	t.Helper()
	text, ok := p[name]
	if !ok {
		t.Fatalf("the page has no block %q", name)
	}
	return text
}

// settings returns the block of a zmailer.conf as the suite wants it.
func (p page) settings(t *testing.T, name string) map[string]string {
	t.Helper()
	set := map[string]string{}
	for line := range strings.Lines(p.get(t, name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			set[key] = value
		}
	}
	return set
}

// start starts a system with the files beside zmailer.conf that the page shows.
func (p page) start(t *testing.T, conf string, change func(s *suite.Suite)) *suite.Suite {
	t.Helper()
	s := &suite.Suite{Bin: bin, Dir: shortDir(t), Settings: p.settings(t, conf), Files: map[string]string{"scheduler.conf": schedulerConf}}
	s.Hostname = s.Settings["HOSTNAME"]
	for name, text := range p {
		if rest, ok := strings.CutPrefix(name, "/etc/zmailer/"); ok && !strings.HasPrefix(rest, "zmailer.conf") {
			s.Files[rest] = text
		}
	}
	change(s)
	assert.Must(t, s.Init())
	t.Cleanup(func() {
		if t.Failed() {
			log := s.Log()
			t.Logf("the end of the log:\n%s", log[max(0, len(log)-6000):])
		}
		s.Kill()
	})
	if out, err := s.Command("zmctl", "check-config").CombinedOutput(); err != nil {
		t.Fatalf("check-config: %v\n%s", err, out)
	}
	assert.Must(t, s.Start())
	s.AwaitDaemons(patience)
	return s
}

// schedulerConf is the default one with short waits.
const schedulerConf = `*/*
	interval=1s retries="1 1 2 3" expiry=1h maxta=20 maxring=50 maxthr=20
smtp/*
smtpx/*
lmtp/*
	command="ta-smtp --slots=20 $channel"
local/*
virtual/*
file/*
	command="ta-mailbox --slots=4 $channel"
pipe/*
	maxthr=4 command="ta-mailbox --slots=2 $channel"
`

// event waits for an event with attributes, pairs of key and value.
func event(t *testing.T, s *suite.Suite, word string, attrs ...string) suite.Event {
	t.Helper()
	e, err := s.Wait(patience, fmt.Sprint(word, attrs), func(e suite.Event) bool {
		for i := 0; i < len(attrs); i += 2 {
			if e.Get(attrs[i]) != attrs[i+1] {
				return false
			}
		}
		return e.Word == word
	})
	assert.Must(t, err)
	return e
}

// send sends a message by SMTP.
func send(t *testing.T, s *suite.Suite, from, to, text string) {
	t.Helper()
	src := &peer.Source{Addr: s.SMTPAddr, Connections: 1, Messages: 1, From: from, To: func(int) string { return to },
		Body: func(int) []byte { return []byte(strings.ReplaceAll(text, "\n", "\r\n")) }}
	assert.Must(t, src.Run(context.Background()))
}

// await looks at a state of other programs, which have no event that could be waited for.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	awaitFor(t, patience, what, ok)
}

func awaitFor(t *testing.T, long time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(long); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s after %v", what, long)
		}
	}
}

// sent waits for the message to a recipient that has a text.
func sent(t *testing.T, far *peer.Sink, rcpt, text string) (found string) {
	t.Helper()
	await(t, fmt.Sprintf("message to %s with %q", rcpt, text), func() bool {
		for _, m := range far.Messages() {
			if slices.Contains(m.Recipients, rcpt) && strings.Contains(string(m.Data), text) {
				found = string(m.Data)
			}
		}
		return found != ""
	})
	return found
}

// accepts reports whether a recipient is accepted; 550 is the only other answer.
func accepts(t *testing.T, s *suite.Suite, rcpt string) bool {
	t.Helper()
	c := assert.Get(smtp.Dial(s.SMTPAddr))(t)
	defer c.Close()
	assert.Must(t, c.Mail("ann@far.example"))
	err := c.Rcpt(rcpt)
	if err != nil && !strings.HasPrefix(err.Error(), "550") {
		t.Fatalf("RCPT %s: %v", rcpt, err)
	}
	return err == nil
}

// mail waits for n messages of a local user.
func mail(t *testing.T, maildir string, n int) (list []string) {
	t.Helper()
	await(t, fmt.Sprintf("%d messages in %s", n, maildir), func() bool {
		all := assert.Get(suite.Mail(maildir))(t)
		list = nil
		for _, m := range all {
			list = append(list, strings.ReplaceAll(string(m), "\r\n", "\n"))
		}
		return len(list) >= n
	})
	return list
}

// output collects what a program prints while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// daemon starts a program in the foreground, which ends with the test, and waits until it listens.
func daemon(t *testing.T, addr string, cmd *exec.Cmd) *output {
	t.Helper()
	return daemonAs(t, nil, addr, cmd, patience)
}

// daemonAs is the same as another user, for a program that may take so long to start.
func daemonAs(t *testing.T, as *syscall.Credential, addr string, cmd *exec.Cmd, long time.Duration) *output {
	t.Helper()
	log := &output{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true, Credential: as}
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
		if text := log.String(); t.Failed() {
			t.Logf("the end of the log of %s:\n%s", cmd.Path, text[max(0, len(text)-4000):])
		}
	})
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	awaitFor(t, long, cmd.Path+" that listens on "+addr, func() bool {
		c, err := net.DialTimeout(network, addr, time.Second)
		if err == nil {
			c.Close()
			return true
		}
		select {
		case <-ended:
			t.Fatalf("%s has ended:\n%s", cmd.Path, log)
		default:
		}
		return false
	})
	return log
}

// write writes a file, and its directory.
func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	assert.Must(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), mode), os.Chmod(name, mode)))
	return name
}

// freePort returns an address of loopback and its port.
func freePort(t *testing.T) (addr, port string) {
	t.Helper()
	addr = assert.Get(peer.FreeAddr())(t)
	_, port, _ = net.SplitHostPort(addr)
	return addr, port
}
