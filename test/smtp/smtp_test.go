package smtp

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

var (
	postfix = flag.Bool("postfix", false, "run the dialogues against Postfix, too")
	bin     string
)

// patience bounds each wait for a reply.
const patience = 20 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

func dialogues(t *testing.T) []Dialogue {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []Dialogue
	for _, file := range files {
		d, err := Read(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d...)
	}
	return all
}

// Net2: the reply to each command in each state, to each parameter and to lines of each
// length is what the RFC says.
func TestDialogues(t *testing.T) {
	all := dialogues(t)
	if len(all) < 250 {
		t.Errorf("%d dialogues, want at least 250", len(all))
	}
	s := startServer(t)
	for _, d := range all {
		t.Run(fmt.Sprintf("%s:%d %s", filepath.Base(d.File), d.Line, d.Title), func(t *testing.T) { s.run(t, d) })
	}
}

// The judge of the table is a server that is not ours.
func TestDialoguesWithPostfix(t *testing.T) {
	if !*postfix {
		t.Skip("-postfix runs the dialogues against Debian's Postfix")
	}
	s := startPostfix(t)
	for _, d := range dialogues(t) {
		if d.Ours || d.Port != "mx" {
			continue
		}
		t.Run(fmt.Sprintf("%s:%d %s", filepath.Base(d.File), d.Line, d.Title), func(t *testing.T) { s.run(t, d) })
	}
}

// server is what the dialogues are run against.
type server struct {
	ports   map[string]string
	router  string // where accepted messages appear; "": it is not ours
	postfix bool
	pid     int
	tls     *tls.Config
}

func startServer(t *testing.T) *server {
	ca := peer.NewCA(t, "smtp")
	cert, key := ca.Pair("mta.example")
	s := &suite.Suite{Bin: bin, Dir: t.TempDir(), Users: []string{"alice"}}
	ports := map[string]string{}
	for _, port := range []string{"mx", "submission", "submissions", "lmtp"} {
		addr, err := peer.FreeAddr()
		if err != nil {
			t.Fatal(err)
		}
		ports[port] = addr
	}
	s.SMTPAddr = ports["mx"]
	passwords := filepath.Join(s.Dir, "passwords")
	s.Settings = map[string]string{
		"SUBMISSIONLISTEN": ports["submission"], "SUBMISSIONSLISTEN": ports["submissions"], "LMTPLISTEN": ports["lmtp"],
		"TLSCERT": cert, "TLSKEY": key, "AUTH": "file:" + passwords, "MAXSIZE": "1M", "XCLIENTNETS": "127.0.0.0/8", "RCPTCHECK": "no", "SMTPCONNECTIONS": "20000",
	}
	if err := s.Init(); err != nil {
		t.Fatal(err)
	}
	passwd := s.Command("zmctl", "passwd", "ann")
	passwd.Stdin = strings.NewReader("secret\n")
	if out, err := passwd.CombinedOutput(); err != nil {
		t.Fatalf("zmctl passwd: %v\n%s", err, out)
	}
	cmd := s.Command("smtpserver")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the end of the log:\n%s", log.Bytes()[max(0, log.Len()-4000):])
		}
	})
	// It answers when all ports are open.
	if err := peer.AwaitListener(s.SMTPAddr, patience); err != nil {
		t.Fatal(err)
	}
	return &server{ports: ports, pid: cmd.Process.Pid, router: filepath.Join(s.PostOffice(), "router"),
		tls: &tls.Config{ServerName: "mta.example", RootCAs: ca.Pool()}}
}

func startPostfix(t *testing.T) *server {
	addr := rig.FreeAddr(t)
	p := &peer.Postfix{Dir: rig.ShortDir(t), Listen: addr, RelayHost: "[127.0.0.1]:9", Settings: []string{
		"smtpd_error_sleep_time = 0", "smtpd_hard_error_limit = 1000", "smtpd_soft_error_limit = 1000", "message_size_limit = 1048576",
		"defer_transports = smtp", "smtpd_authorized_xclient_hosts = 127.0.0.0/8", "smtpd_client_connection_rate_limit = 0",
		"smtputf8_enable = yes", "smtpd_helo_required = yes"}}
	rig.Postfix(t, p, nil)
	return &server{ports: map[string]string{"mx": addr}, postfix: true}
}

// run runs a dialogue, or all its cuts.
func (s *server) run(t *testing.T, d Dialogue) {
	if !d.Cut {
		s.once(t, d)
		return
	}
	var group string
	var replies []Step
	for _, step := range d.Steps {
		if step.Kind == 'C' || step.Kind == 'c' {
			group += step.Text
		} else {
			replies = append(replies, step)
		}
	}
	for i := 1; i < len(group) && !t.Failed(); i++ {
		cut := d
		cut.Steps = append([]Step{{Kind: 'c', Text: group[:i]}, {Kind: 'W'}, {Kind: 'c', Text: group[i:]}}, replies...)
		s.once(t, cut)
	}
}

// preambles lead to a state.
func preamble(d Dialogue) []Step {
	hello := "EHLO client.example\r\n"
	if d.Port == "lmtp" {
		hello = "LHLO client.example\r\n"
	}
	steps := []Step{{Kind: 'S', Text: "220"}, {Kind: 'C', Text: hello}, {Kind: 'S', Text: "250"},
		{Kind: 'C', Text: "MAIL FROM:<a@client.example>\r\n"}, {Kind: 'S', Text: "250"},
		{Kind: 'C', Text: "RCPT TO:<b@far.example>\r\n"}, {Kind: 'S', Text: "250"}}
	if d.Port == "lmtp" {
		steps[5].Text = "RCPT TO:<alice@mta.example>\r\n"
	}
	return steps[:map[string]int{"connected": 1, "greeted": 3, "mail": 5, "rcpt": 7}[d.State]]
}

func (s *server) once(t *testing.T, d Dialogue) {
	t.Helper()
	steps := append(preamble(d), d.Steps...)
	if len(steps) == len(d.Steps) {
		t.Fatalf("%s:%d: unknown state %q", d.File, d.Line, d.State)
	}
	c, err := net.Dial("tcp", s.ports[d.Port])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Close() }()
	handshake := func() {
		secure := tls.Client(c, s.tls)
		if err := secure.Handshake(); err != nil {
			t.Fatalf("%s:%d: handshake: %v", d.File, d.Line, err)
		}
		c = secure
	}
	before := s.messages(t)
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if d.Port == "submissions" {
		handshake()
	}
	r := bufio.NewReader(c)
	var reply []string
	for _, step := range steps {
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("%s:%d: %s", d.File, step.Line, fmt.Sprintf(format, args...))
		}
		switch step.Kind {
		case 'C', 'c':
			if _, err := io.WriteString(c, step.Text); err != nil {
				fail("send: %v", err)
			}
		case 'W':
			awaitSent(c)
		case 'S':
			want := step.Text
			if s.postfix && step.Postfix != "" {
				want = step.Postfix
			}
			if reply, err = readReply(r); err != nil {
				fail("want %s, got %v after %q", want, err, reply)
			}
			if last := reply[len(reply)-1]; !strings.HasPrefix(last, want) && (!s.postfix || last[:3] != want[:3]) {
				fail("want %s, got %q", want, reply)
			}
		case 'H', 'L':
			found := false
			for _, line := range reply {
				found = found || line[4:] == step.Text || step.Kind == 'L' && strings.HasPrefix(line[4:], step.Text)
			}
			if found != (step.Kind == 'H') && !s.postfix {
				fail("got %q", reply)
			}
		case 'T':
			handshake()
			r = bufio.NewReader(c)
		case 'X':
			if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "reset") {
				fail("the connection has %q, %v", rest, err)
			}
		case 'M', 'N':
			if s.postfix {
				continue
			}
			now := s.messages(t)
			if len(now) != len(before)+map[byte]int{'M': 1, 'N': 0}[step.Kind] {
				fail("%d messages before, %d now", len(before), len(now))
			}
			for name := range now {
				if before[name] || step.Kind == 'N' {
					continue
				}
				text, err := os.ReadFile(filepath.Join(s.router, name))
				if err != nil {
					fail("%v", err)
				}
				if _, content, ok := bytes.Cut(text, []byte("env-end\n")); !ok || string(content) != step.Text {
					fail("content %q, want %q", content, step.Text)
				}
			}
			before = now
		}
	}
}

// messages returns the names of those that were accepted.
func (s *server) messages(t *testing.T) map[string]bool {
	t.Helper()
	if s.postfix {
		return nil
	}
	entries, err := os.ReadDir(s.router)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	return names
}

// readReply reads the lines of one reply, without their ends. All of them have its code.
func readReply(r *bufio.Reader) (lines []string, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return append(lines, line), err
		}
		text, ok := strings.CutSuffix(line, "\r\n")
		lines = append(lines, text)
		if !ok || len(text) < 4 || text[:3] != lines[0][:3] || text[3] != ' ' && text[3] != '-' || len(line) > 512 {
			return lines, errors.New("no reply of RFC 5321 section 4.2")
		}
		if text[3] == ' ' {
			return lines, nil
		}
	}
}
