package smtpserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/session"
	"zmailer/test/peer"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// loopback is the network that tests come from.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// anyPort is a free port of this machine.
const anyPort = "127.0.0.1:0"

// on returns the addresses of one role.
func on(role session.Role, addrs ...string) map[session.Role][]string {
	return map[session.Role][]string{role: addrs}
}

// running is a server with a postoffice of its own.
type running struct {
	t     testing.TB
	dir   string
	addr  string // the first of addrs
	addrs []net.Addr
	log   *logtest.Buffer
	disk  *faultfs.FS
	tls   *tls.Config // of clients that trust the server's certificate
	ca    string      // file of its authority
	stop  context.CancelFunc
	done  chan error // what Run returned
}

// newOffice makes a postoffice without a server.
func newOffice(t testing.TB) *running {
	t.Helper()
	r := &running{t: t, dir: t.TempDir(), log: &logtest.Buffer{}, done: make(chan error, 1)}
	disk := assert.Get(durable.NewOS(r.dir))(t)
	t.Cleanup(func() { disk.Close() })
	r.disk = faultfs.New(disk)
	assert.Must(t, postoffice.Init(r.disk))
	return r
}

// start runs a server until the test ends. Its clients on loopback may relay.
func start(t testing.TB, change func(*Config)) *running {
	t.Helper()
	r := newOffice(t)
	r.serve(change)
	return r
}

// serve runs the server of a postoffice until the test ends.
func (r *running) serve(change func(*Config)) {
	t := r.t
	t.Helper()
	ready := make(chan []net.Addr, 1)
	c := Config{
		PostOffice: r.dir, FS: r.disk, Ports: Ports{Listen: on(session.RoleMX, anyPort)}, Hostname: "mx.example.org",
		Access: policy.Config{RelayNets: loopback},
		Limits: LimitsConfig{MaxSize: 200 << 20, MaxRecipients: 100, MaxConnections: 100},
		Log:    slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Ready:  func(a []net.Addr) { ready <- a },
	}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- Run(ctx, c) }()
	select {
	case r.addrs = <-ready:
		r.addr = r.addrs[0].String()
	case err := <-r.done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.ended()
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
}

// startSecured serves mx, submission, submissions, in this order, then what change adds, with
// a certificate for mx.example.org.
func startSecured(t testing.TB, change func(*Config)) *running {
	t.Helper()
	ca := peer.NewCA(t, "test")
	cert, key := ca.Pair("mx.example.org")
	r := start(t, func(c *Config) {
		c.Listen[session.RoleSubmission], c.Listen[session.RoleSubmissions] = []string{anyPort}, []string{anyPort}
		c.TLS = listen.CertificateFiles{Certs: []string{cert}, Keys: []string{key}}
		if change != nil {
			change(c)
		}
	})
	r.tls, r.ca = &tls.Config{ServerName: "mx.example.org", RootCAs: ca.Pool()}, ca.File()
	return r
}

// ended stops the server and waits for it. It may be called again.
func (r *running) ended() {
	r.t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		r.done <- nil
		if err != nil {
			r.t.Errorf("Run: %v", err)
		}
	case <-time.After(logtest.Patience):
		r.t.Fatal("the server does not stop")
	}
}

// names lists a directory of the postoffice.
func (r *running) names(sub string) (names []string) {
	r.t.Helper()
	entries := assert.Get(os.ReadDir(filepath.Join(r.dir, sub)))(r.t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// nothing fails the test if there is a file in public/, router/ or freezer/. A session
// removes its file before it answers or ends.
func (r *running) nothing() {
	r.t.Helper()
	for _, dir := range []string{postoffice.Public, postoffice.Router, postoffice.Freezer} {
		if names := r.names(dir); len(names) > 0 {
			r.t.Errorf("%s/ holds %q", dir, names)
		}
	}
}

var clientPort = regexp.MustCompile(`(?m)^(rcvdfrom \S+ \(\[127\.0\.0\.1\]:)\d+\)$`)

// message reads one file of router/ after checking its name, mode and size (M1). The
// octets line is cut off and the client's port replaced.
func (r *running) message(name string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, "router", name)
	info := assert.Get(os.Stat(path))(r.t)
	assert.Equal(r.t, name, strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10), "name, inode")
	assert.Equal(r.t, info.Mode(), 0o700|os.ModeSticky, "%s: mode", name)
	b := assert.Get(os.ReadFile(path))(r.t)
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	if want := fmt.Sprintf("comment octets %016d %08x", info.Size(), crc32.Checksum(rest, crc32.MakeTable(crc32.Castagnoli))); string(first) != want {
		r.t.Errorf("%s: first line %q, want %q", name, first, want)
	}
	return clientPort.ReplaceAllString(string(rest), "${1}PORT)")
}

// only returns the one message in router/, which has to have these lines.
func (r *running) only(lines ...string) string {
	r.t.Helper()
	names := r.names("router")
	if len(names) != 1 {
		r.t.Fatalf("router/ holds %q, want one message", names)
	}
	assert.Equal(r.t, len(r.names("public")), 0)
	got := r.message(names[0])
	for _, line := range lines {
		assert.Contains(r.t, got, line+"\n")
	}
	return got
}

// content returns what follows the envelope of the one message.
func (r *running) content() string {
	r.t.Helper()
	_, content, ok := strings.Cut(r.only(), "env-end\n")
	if !ok {
		r.t.Error("no env-end")
	}
	return content
}

// clear empties router/.
func (r *running) clear() {
	r.t.Helper()
	for _, name := range r.names("router") {
		assert.Must(r.t, os.Remove(filepath.Join(r.dir, "router", name)))
	}
}

// book reads the ledger.
func (r *running) book() *ledger.Book {
	r.t.Helper()
	po := assert.Get(postoffice.Open(postoffice.Config{FS: r.disk}))(r.t)
	book := assert.Get(ledger.Read(po))(r.t)
	return book
}

// golden compares with testdata/NAME.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden")
	if *update {
		writeFile(t, file, []byte(got), 0o644)
	}
	if want := read(t, file); got != string(want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	return assert.Get(os.ReadFile(name))(t)
}

func writeFile(t testing.TB, name string, content []byte, mode os.FileMode) {
	t.Helper()
	assert.Must(t, os.WriteFile(name, content, mode))
	assert.Must(t, os.Chmod(name, mode))
}

// client is one that sends exactly the test's bytes.
type client struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (r *running) dial() *client {
	r.t.Helper()
	p := r.connect(0)
	p.expect("220")
	return p
}

// greeted connects to port i and greets.
func (r *running) greeted() *client {
	r.t.Helper()
	p := r.dial()
	p.say("EHLO client.example.net", "250")
	return p
}

// connect connects to a port and does not wait for the greeting.
func (r *running) connect(port int) *client {
	r.t.Helper()
	return r.connectFrom(nil, r.addrs[port])
}

func (r *running) connectFrom(from, to net.Addr) *client {
	r.t.Helper()
	d := net.Dialer{LocalAddr: from}
	c := assert.Get(d.Dial(to.Network(), to.String()))(r.t)
	r.t.Cleanup(func() { c.Close() })
	assert.Must(r.t, c.SetDeadline(time.Now().Add(logtest.Patience)))
	return &client{r.t, c, bufio.NewReader(c)}
}

// implicit connects to submissions.
func (r *running) implicit() *client {
	r.t.Helper()
	p := r.connect(2)
	p.secure(r.tls)
	p.expect("220")
	return p
}

// as greets from another address, of a user if login is not "", by XCLIENT.
func (r *running) as(addr, login string) *client {
	r.t.Helper()
	p := r.greeted()
	line := "XCLIENT ADDR=" + addr
	if login != "" {
		line += " LOGIN=" + login
	}
	p.say(line, "220")
	p.say("EHLO client.example.net", "250")
	return p
}

// secure goes on in TLS.
func (p *client) secure(c *tls.Config) *tls.Conn {
	p.t.Helper()
	conn := tls.Client(p.Conn, c)
	if err := conn.Handshake(); err != nil {
		p.t.Fatal("handshake: ", err)
	}
	p.Conn, p.r = conn, bufio.NewReader(conn)
	return conn
}

func (p *client) send(s string) {
	p.t.Helper()
	if _, err := p.Write([]byte(s)); err != nil {
		p.t.Fatalf("send %.60q: %v", s, err)
	}
}

// reply reads one reply, all its lines.
func (p *client) reply() string {
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
func (p *client) expect(prefixes ...string) (got string) {
	p.t.Helper()
	for _, want := range prefixes {
		if got = p.reply(); !strings.HasPrefix(got, want) {
			p.t.Fatalf("reply %q, want %s", got, want)
		}
	}
	return got
}

// end expects that the server closes the connection after these replies.
func (p *client) end(prefixes ...string) {
	p.t.Helper()
	p.expect(prefixes...)
	if b, err := p.r.ReadByte(); err == nil {
		p.t.Errorf("byte %q, want the end of the connection", b)
	}
}

// say sends a command and expects a reply.
func (p *client) say(line, prefix string) string {
	p.t.Helper()
	p.send(line + "\r\n")
	return p.expect(prefix)
}

// from begins a transaction.
func (p *client) from(sender string) *client {
	p.t.Helper()
	p.say("MAIL FROM:<"+sender+">", "250")
	return p
}

// to names recipients that are accepted.
func (p *client) to(rcpts ...string) *client {
	p.t.Helper()
	for _, rcpt := range rcpts {
		p.say("RCPT TO:<"+rcpt+">", "250")
	}
	return p
}

const (
	toUs = "b@mx.example.org"
	// plain is a message; its lines end in LF.
	plain = "Subject: x\nTo: one\nTo: two\n\nhi\n"
)

// begin returns a transaction to us.
func (p *client) begin() *client {
	p.t.Helper()
	return p.from("a@example.net").to(toUs)
}

// data opens the content.
func (p *client) data() *client {
	p.t.Helper()
	p.say("DATA", "354")
	return p
}

// content sends a message, whose lines end in LF, and expects a reply for it.
func (p *client) content(message, want string) string {
	p.t.Helper()
	p.data()
	wire := strings.ReplaceAll("\n"+message, "\n", "\r\n")
	p.send(strings.ReplaceAll(wire, "\r\n.", "\r\n..")[2:])
	return p.say(".", want)
}

// mail returns a whole transaction.
func (p *client) mail(from, to, message, want string) string {
	p.t.Helper()
	return p.from(from).to(to).content(message, want)
}

// chunk sends a BDAT command with its content.
func (p *client) chunk(content, last string) {
	p.t.Helper()
	p.send(fmt.Sprintf("BDAT %d%s\r\n%s", len(content), last, content))
}

// accepted is a reply that names a message.
var accepted = regexp.MustCompile(`(?m)^250.* S\w+\r$`)

// id returns the spool ID in a 250 reply.
func (p *client) id(reply string) postoffice.SpoolID {
	p.t.Helper()
	words := strings.Fields(reply)
	id, err := postoffice.ParseSpoolID(words[len(words)-1])
	if err != nil {
		p.t.Fatalf("%q: %v", reply, err)
	}
	return id
}
