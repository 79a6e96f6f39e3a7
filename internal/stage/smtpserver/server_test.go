package smtpserver

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// running is a server of this package on a loopback address.
type running struct {
	t    testing.TB
	dir  string
	addr string
	log  *logtest.Buffer
	disk *durable.OS
	stop context.CancelFunc
	done chan error // what Run returned
}

// start runs a server with a postoffice of its own until the test ends.
func start(t testing.TB, change func(*Config)) *running {
	t.Helper()
	r := &running{t: t, dir: t.TempDir(), log: &logtest.Buffer{}, done: make(chan error, 1)}
	var err error
	if r.disk, err = durable.NewOS(r.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.disk.Close() })
	if err := postoffice.Init(r.disk); err != nil {
		t.Fatal(err)
	}
	c := Config{
		PostOffice: r.dir, Listen: []string{"127.0.0.1:0"}, Hostname: "mx.example.org",
		Access:  policy.Config{RelayNets: loopback},
		MaxSize: 200 << 20, MaxRecipients: 100, MaxConnections: 100,
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	ready := make(chan net.Addr, 1)
	c.Ready = func(a []net.Addr) { ready <- a[0] }
	if change != nil {
		change(&c)
	}
	if c.FS == nil {
		c.FS = r.disk
	} else if f, ok := c.FS.(*troubled); ok {
		f.FS = r.disk
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- Run(ctx, c) }()
	select {
	case a := <-ready:
		r.addr = a.String()
	case err := <-r.done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("the server does not stop")
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log.String())
		}
	})
	return r
}

// ended waits for Run and lets the cleanup see its result too.
func (r *running) ended() error {
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(patience):
		r.t.Fatal("the server does not stop")
		return nil
	}
}

// names lists a directory of the postoffice.
func (r *running) names(sub string) []string {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, sub))
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// nothing fails the test if there is a file in public/ or router/. A session takes
// its file away before it answers or ends.
func (r *running) nothing() {
	r.t.Helper()
	if pub, rou := r.names("public"), r.names("router"); len(pub)+len(rou) > 0 {
		r.t.Errorf("public/ holds %q, router/ %q", pub, rou)
	}
}

// eventually waits until a condition holds that another process or goroutine brings
// about without an event to wait for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("not in time: ", what)
		}
	}
}

var clientPort = regexp.MustCompile(`(?m)^(rcvdfrom \S+ \(\[127\.0\.0\.1\]:)\d+\)$`)

// message reads one file of router/ after checking its name, mode and size (M1). The
// octets line is cut off and the client's port replaced.
func (r *running) message(name string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, "router", name)
	info, err := os.Stat(path)
	if err != nil {
		r.t.Fatal(err)
	}
	if ino := strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10); name != ino {
		r.t.Errorf("name %s, inode %s", name, ino)
	}
	if info.Mode() != 0o700|os.ModeSticky {
		r.t.Errorf("%s: mode %v, want 01700", name, info.Mode())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	if want := fmt.Sprintf("comment octets %016d %08x", info.Size(), crc32.Checksum(rest, crc32.MakeTable(crc32.Castagnoli))); string(first) != want {
		r.t.Errorf("%s: first line %q, want %q", name, first, want)
	}
	return clientPort.ReplaceAllString(string(rest), "${1}PORT)")
}

// only is the one message in router/.
func (r *running) only() string {
	r.t.Helper()
	names := r.names("router")
	if len(names) != 1 {
		r.t.Fatalf("router/ holds %q, want one message", names)
	}
	if left := r.names("public"); len(left) > 0 {
		r.t.Errorf("public/ holds %q", left)
	}
	return r.message(names[0])
}

// content is what follows the envelope of the one message.
func (r *running) content() string {
	r.t.Helper()
	_, content, ok := strings.Cut(r.only(), "env-end\n")
	if !ok {
		r.t.Error("no env-end")
	}
	return content
}

// golden compares with testdata/NAME.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// peer is a client that sends exactly the test's bytes.
type peer struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (r *running) dial() *peer {
	r.t.Helper()
	p := r.connect()
	p.expect("220")
	return p
}

// connect does not wait for the greeting.
func (r *running) connect() *peer {
	r.t.Helper()
	return r.connectTo("tcp", r.addr)
}

func (r *running) connectTo(network, addr string) *peer {
	r.t.Helper()
	c, err := net.Dial(network, addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	return &peer{r.t, c, bufio.NewReader(c)}
}

func (p *peer) send(s string) {
	p.t.Helper()
	if _, err := p.Write([]byte(s)); err != nil {
		p.t.Fatalf("send %.60q: %v", s, err)
	}
}

// reply reads one reply, all its lines.
func (p *peer) reply() string {
	p.t.Helper()
	var all string
	for {
		line, err := p.r.ReadString('\n')
		if err != nil {
			p.t.Fatalf("after %q: %v", all+line, err)
		}
		all += line
		if len(line) > 3 && line[3] == ' ' {
			return all
		}
	}
}

// expect reads one reply for each prefix and gives the last.
func (p *peer) expect(prefixes ...string) string {
	p.t.Helper()
	var got string
	for _, want := range prefixes {
		if got = p.reply(); !strings.HasPrefix(got, want) {
			p.t.Fatalf("reply %q, want %s", got, want)
		}
	}
	return got
}

// say sends a command and expects a reply.
func (p *peer) say(line, prefix string) string {
	p.t.Helper()
	p.send(line + "\r\n")
	return p.expect(prefix)
}

// transaction opens one up to the 354.
func (p *peer) transaction() {
	p.t.Helper()
	p.openTo("b@example.org")
}

func (p *peer) openTo(rcpt string) {
	p.t.Helper()
	p.say("EHLO client.example.net", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<"+rcpt+">", "250")
	p.say("DATA", "354")
}

// end expects that the server closes the connection.
func (p *peer) end() {
	p.t.Helper()
	if b, err := p.r.ReadByte(); err == nil {
		p.t.Errorf("byte %q, want the end of the connection", b)
	}
}
