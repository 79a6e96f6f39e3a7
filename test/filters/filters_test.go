package filters

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

var update = flag.Bool("update", false, "write testdata/outcomes.txt")

const python = "/usr/bin/python3"

var bin string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(suite.WithPrograms(func(dir string) int {
		bin = dir
		return m.Run()
	}))
}

// server is one of both: ours, or Postfix.
type server struct {
	name string
	addr string
	tls  *tls.Config
	sink *peer.Sink
	// filter is another next hop, where rules send mail; nil: there is none.
	filter *peer.Sink
	key    *domainKey // of messages that are signed; nil: none are
	// aside reports whether the server says that a message was set aside since the last call of
	// begin: "discarded", "held", or "".
	begin func(helo string)
	aside func() string
}

// filter is the running filter of testdata/filter.py.
type filter struct {
	t     *testing.T
	dir   string
	addr  string
	cmd   *exec.Cmd
	heard int // bytes of its log that were read
}

func startFilter(t *testing.T) *filter {
	t.Helper()
	if err := exec.Command(python, "-c", "import Milter").Run(); err != nil {
		t.Skip("needs Debian's python3-milter")
	}
	f := &filter{t: t, dir: t.TempDir(), addr: rig.FreeAddr(t)}
	assert.Must(t, os.WriteFile(filepath.Join(f.dir, "heard"), nil, 0o644))
	f.do(&Case{Acts: map[string][][]string{}})
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *filter) start() {
	f.t.Helper()
	_, port, err := net.SplitHostPort(f.addr)
	assert.Must(f.t, err)
	f.cmd = exec.Command(python, "testdata/filter.py", "inet:"+port+"@127.0.0.1", filepath.Join(f.dir, "case"), filepath.Join(f.dir, "heard"))
	f.cmd.Stderr = os.Stderr
	assert.Must(f.t, f.cmd.Start())
	rig.Await(f.t, "filter that listens", func() bool {
		c, err := net.Dial("tcp", f.addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

func (f *filter) stop() {
	_ = f.cmd.Process.Kill() // it may have ended by itself
	_ = f.cmd.Wait()
}

// do has the filter do what a case wants, from the next connection on.
func (f *filter) do(c *Case) {
	f.t.Helper()
	draft := filepath.Join(f.dir, "draft")
	assert.Must(f.t, os.WriteFile(draft, assert.Get(json.Marshal(c.Acts))(f.t), 0o644))
	assert.Must(f.t, os.Rename(draft, filepath.Join(f.dir, "case")))
}

// log returns what the filter has heard since the last call.
func (f *filter) log() (list [][]string) {
	f.t.Helper()
	b := assert.Get(os.ReadFile(filepath.Join(f.dir, "heard")))(f.t)
	for line := range strings.Lines(string(b[f.heard:])) {
		var words []string
		assert.Must(f.t, json.Unmarshal([]byte(line), &words))
		list = append(list, words)
	}
	f.heard = len(b)
	return list
}

// startOurs starts our system with filters, and with files beside zmailer.conf.
func startOurs(t *testing.T, milters string, files map[string]string) *server {
	t.Helper()
	sink := rig.Sink(t, &peer.Sink{})
	ca := peer.NewCA(t, "test")
	cert, key := ca.Pair("mta.example")
	s := &suite.Suite{Bin: bin, Dir: t.TempDir(), Hostname: "mta.example", Settings: map[string]string{
		"MILTERS": milters, "XCLIENTNETS": "127.0.0.0/8", "RCPTCHECK": "no", "TLSCERT": cert, "TLSKEY": key, "LIMITSEXEMPT": "127.0.0.0/8",
		"RELAYNETS": "0.0.0.0/0", "MILTERTIME": "5s", "MILTERCONTENTTIME": "5s",
	}, Files: map[string]string{"routes": ". smtp!" + sink.RouteHost() + "\n"}}
	maps.Copy(s.Files, files)
	assert.Must(t, s.Init())
	rig.Start(t, s)
	o := &server{name: "ours", addr: s.SMTPAddr, sink: sink, tls: &tls.Config{ServerName: "mta.example", RootCAs: ca.Pool()}}
	discarded, frozen := 0, 0
	o.begin = func(string) { discarded, frozen = s.Count("discarded"), s.Count("frozen") }
	o.aside = func() string {
		switch {
		case s.Count("discarded") > discarded:
			return "discarded"
		case s.Count("frozen") > frozen:
			return "held"
		}
		return ""
	}
	return o
}

// startPostfix starts Debian's Postfix with filters; nil: it is not installed.
func startPostfix(t *testing.T, milters string, settings ...string) *server {
	t.Helper()
	if _, err := os.Stat(peer.PostfixMaster); err != nil || os.Geteuid() != 0 {
		return nil
	}
	sink := rig.Sink(t, &peer.Sink{})
	ca := peer.NewCA(t, "test")
	cert, key := ca.Pair("mta.example")
	addr := rig.FreeAddr(t)
	p := &peer.Postfix{Log: true, Dir: rig.ShortDir(t), Listen: addr, RelayHost: sink.RouteHost(), Settings: append([]string{
		"myhostname = mta.example", "smtpd_milters = " + milters, "smtpd_authorized_xclient_hosts = 127.0.0.0/8", "smtpd_error_sleep_time = 0",
		"smtpd_tls_cert_file = " + cert, "smtpd_tls_key_file = " + key, "smtpd_tls_security_level = may", "smtpd_tls_ciphers = medium",
		"mynetworks = 0.0.0.0/0", "milter_command_timeout = 5s", "milter_connect_timeout = 5s", "milter_content_timeout = 5s", "smtpd_delay_reject = yes",
		"smtpd_peername_lookup = yes", "smtpd_forbid_bare_newline = no", "smtpd_client_connection_rate_limit = 0", "milter_macro_v = zmailer",
	}, settings...)}
	log := rig.Postfix(t, p, nil)
	o := &server{name: "Postfix", addr: addr, sink: sink, tls: &tls.Config{ServerName: "mta.example", RootCAs: ca.Pool()}}
	// A line about a case may come when the next one has begun: the greeting tells them apart.
	var held, discarded *regexp.Regexp
	o.begin = func(helo string) {
		end := ".* helo=<" + regexp.QuoteMeta(helo) + ">"
		held, discarded = regexp.MustCompile(`(milter-hold|NOQUEUE: hold|: hold): `+end), regexp.MustCompile(`discard: `+end)
	}
	o.aside = func() string {
		switch text := log.String(); {
		case discarded.MatchString(text):
			return "discarded"
		case held.MatchString(text):
			return "held"
		}
		return ""
	}
	return o
}

// client is one SMTP session.
type client struct {
	c net.Conn
	r *bufio.Reader
}

// say sends a command and returns the reply's code and the text of all its lines; code "" is
// the end of the connection.
func (k *client) say(line string) (code, text string) {
	if _, err := io.WriteString(k.c, line); err != nil {
		return "", ""
	}
	return k.reply()
}

func (k *client) reply() (code, text string) {
	var lines []string
	for {
		line, err := k.r.ReadString('\n')
		if err != nil || len(line) < 5 {
			return "", ""
		}
		lines = append(lines, strings.TrimRight(line[4:], "\r\n"))
		if line[3] == ' ' {
			return line[:3], strings.Join(lines, "\n")
		}
	}
}

// closed reports whether the server closes the connection now.
func (k *client) closed() bool {
	_, err := io.WriteString(k.c, "NOOP\r\n")
	if err != nil {
		return true
	}
	code, _ := k.reply()
	return code == ""
}

// enhanced is an enhanced status code at the begin of a reply.
var enhanced = regexp.MustCompile(`^[245]\.\d{1,3}\.\d{1,3}`)

// outcome returns what becomes of a case at a server, one fact in a line.
func (s *server) outcome(t *testing.T, c *Case, number int) (facts []string) {
	t.Helper()
	helo := fmt.Sprintf("c%d.client.example", number)
	s.begin(helo)
	conn := assert.Get(net.Dial("tcp", s.addr))(t)
	defer conn.Close()
	assert.Must(t, conn.SetDeadline(time.Now().Add(rig.Patience)))
	k := &client{conn, bufio.NewReader(conn)}
	id := fmt.Sprintf("<%d.%s@client.example>", number, s.name)
	message := "From: " + c.From + "\nDate: Mon, 2 Jan 2006 15:04:05 -0700\nMessage-ID: " + id + "\n" + c.Message
	if c.Sign != "" {
		message = s.key.sign(t, message, c.Sign)
	}
	data := strings.ReplaceAll(message, "\n", "\r\n")
	refused := func(code, text string) []string {
		fact := "refused " + code + " " + enhanced.FindString(text)
		for _, acts := range c.Acts {
			for _, a := range acts {
				if a[0] == "reply" {
					fact = "refused " + code + " " + text
				}
			}
		}
		if code == "" || k.closed() {
			fact += ", closed"
		}
		return append(facts, strings.ReplaceAll(fact, "\n", " / "))
	}
	if code, text := k.reply(); code != "220" {
		return refused(code, text)
	}
	hello := "EHLO " + helo + "\r\n"
	if code, text := k.say(hello); code != "250" {
		return refused(code, text)
	}
	mail, rcpts, bdat := "<a@client.example>", []string{}, false
	for _, words := range c.Client {
		arg := strings.Join(words[1:], " ")
		switch words[0] {
		case "tls":
			if code, text := k.say("STARTTLS\r\n"); code != "220" {
				return refused(code, text)
			}
			secure := tls.Client(conn, s.tls)
			assert.Must(t, secure.Handshake())
			k.c, k.r = secure, bufio.NewReader(secure)
			if code, text := k.say(hello); code != "250" {
				return refused(code, text)
			}
		case "xclient":
			for _, line := range []string{"XCLIENT " + arg + "\r\n", hello} {
				if code, text := k.say(line); code != "220" && code != "250" {
					return refused(code, text)
				}
			}
		case "say":
			code, text := k.say(arg + "\r\n")
			facts = append(facts, strings.TrimSpace("said "+code+" "+enhanced.FindString(text)))
		case "mail":
			mail = arg
		case "rcpt":
			rcpts = append(rcpts, arg)
		case "bdat":
			bdat = true
		}
	}
	if len(rcpts) == 0 {
		rcpts = []string{"<b@sink.example>"}
	}
	if code, text := k.say("MAIL FROM:" + mail + "\r\n"); code != "250" {
		return refused(code, text)
	}
	taken := 0
	for _, rcpt := range rcpts {
		code, text := k.say("RCPT TO:" + rcpt + "\r\n")
		switch {
		case code == "250":
			taken++
		case len(rcpts) > 1:
			facts = append(facts, "recipient refused "+code+" "+enhanced.FindString(text))
		default:
			return refused(code, text)
		}
	}
	var code, text string
	if bdat {
		half := len(data) / 2
		if code, text = k.say(fmt.Sprintf("BDAT %d\r\n%s", half, data[:half])); code == "250" {
			code, text = k.say(fmt.Sprintf("BDAT %d LAST\r\n%s", len(data)-half, data[half:]))
		}
	} else {
		if code, text = k.say("DATA\r\n"); code != "354" {
			return refused(code, text)
		}
		code, text = k.say(strings.ReplaceAll("\r\n"+data, "\r\n.", "\r\n..")[2:] + ".\r\n")
	}
	if code != "250" {
		return refused(code, text)
	}
	_, _ = k.say("QUIT\r\n") // the message is theirs
	return append(facts, s.fate(t, id)...)
}

// fate waits for what becomes of an accepted message.
func (s *server) fate(t *testing.T, id string) []string {
	t.Helper()
	for deadline := time.Now().Add(rig.Patience); ; {
		if s.filter != nil {
			list := s.filter.Messages()
			if i := slices.IndexFunc(list, func(m *peer.Message) bool { return bytes.Contains(m.Data, []byte(id)) }); i >= 0 {
				return append([]string{"filtered"}, describe(list[i], id)...)
			}
		}
		list := s.sink.Messages()
		i := slices.IndexFunc(list, func(m *peer.Message) bool { return bytes.Contains(m.Data, []byte(id)) })
		if i >= 0 {
			return append(describe(list[i], id), s.signatures(list[i])...)
		}
		if aside := s.aside(); aside != "" {
			return []string{aside}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: the message is nowhere", s.name)
		}
		_ = s.sink.Wait(len(list)+1, 20*time.Millisecond) // or the log has it
	}
}

// describe returns the facts of a delivered message.
func describe(m *peer.Message, id string) []string {
	facts := []string{"from <" + m.From + ">"}
	rcpts := slices.Clone(m.Recipients)
	slices.Sort(rcpts)
	for _, r := range rcpts {
		facts = append(facts, "to <"+r+">")
	}
	header, body, _ := strings.Cut(strings.ReplaceAll(string(m.Data), "\r\n", "\n"), "\n\n")
	field := ""
	end := func() {
		name, _, _ := strings.Cut(field, ":")
		switch {
		case strings.EqualFold(name, "Received") && strings.Contains(field, "mta.example"):
			facts = append(facts, "field Received: (ours)")
		case name == "DKIM-Signature", name == "DKIM-Filter", name == "X-Spamd-Bar":
			facts = append(facts, "field "+name+": ...")
		case name == "Authentication-Results":
			facts = append(facts, "field "+results(field))
		case field == "", strings.HasPrefix(field, "Message-ID: "+id):
		case name == "From" || name == "Date":
		default:
			facts = append(facts, "field "+abbreviated(field))
		}
		field = ""
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(header, "\n"), "\n") {
		if line != "" && (line[0] == ' ' || line[0] == '\t') {
			field += "\n" + line
			continue
		}
		end()
		field = line
	}
	end()
	return append(facts, "body "+abbreviated(body))
}

// varying is what differs from run to run in an Authentication-Results field: the begin of a
// signature, and comments.
var varying = regexp.MustCompile(`header\.b=[^;\s]+|\([^()]*\)|x-bits=\d+|reason="[^"]*"`)

// results describes an Authentication-Results field: rspamd's results come in any order.
func results(field string) string {
	parts := strings.Split(varying.ReplaceAllString(field, ""), ";")
	for i := range parts {
		parts[i] = strings.Join(strings.Fields(parts[i]), " ")
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, "; ")
}

func abbreviated(text string) string {
	if len(text) > 150 {
		text = fmt.Sprintf("%s...%s (%d bytes, longest line %d)", text[:40], text[len(text)-40:], len(text), longest(text))
	}
	return fmt.Sprintf("%q", text)
}

func longest(text string) (most int) {
	for line := range strings.SplitSeq(text, "\n") {
		most = max(most, len(line))
	}
	return most
}

// heardFacts returns what a case compares of the filter's log.
func (c *Case) heardFacts(log [][]string) (facts []string) {
	for _, what := range c.Compare {
		last := -1 // macros are compared where the stage came last: TLS has a second HELO
		for i, words := range log {
			if words[0] == what[1%len(what)] {
				last = i
			}
		}
		for i, words := range log {
			bar := max(slices.Index(words, "|"), 1)
			switch {
			case what[0] == "offered" && words[0] == "offered", what[0] == "heard" && words[0] != "offered" && words[0] != "abort" && words[0] != "close":
				if words[0] == "connect" {
					words[1] = "(client)" // we look its name up only with REVERSELOOKUP
				}
				if words[0] == "hello" {
					words[1] = "(client)" // each case has its own
				}
				if words[0] == "body" && len(words[1]) > 4 {
					words[1] = "(a part)" // how much is in one is not said anywhere
				}
				fact := "heard " + strings.Join(words[:bar], " ")
				if words[0] == "offered" {
					fact = "heard " + strings.Join(words, " ")
				}
				if words[0] == "header" && (words[1] == "From" || words[1] == "Date" || words[1] == "Message-ID") {
					continue
				}
				facts = append(facts, fmt.Sprintf("%q", fact))
			case what[0] == "macros" && i == last:
				for _, name := range what[2:] {
					value := "(none)"
					for _, m := range words[bar:] {
						if v, ok := strings.CutPrefix(m, name+"="); ok {
							value = v
						}
					}
					value = strings.NewReplacer("localhost [", "(client) [", "unknown [", "(client) [").Replace(value)
					facts = append(facts, "macro "+what[1]+" "+name+"="+value)
				}
			}
		}
	}
	return facts
}

// one runs a case at a server.
func one(t *testing.T, s *server, f *filter, c *Case, number int) string {
	t.Helper()
	if f != nil {
		f.do(c)
		f.log()
	}
	facts := s.outcome(t, c, number)
	if f != nil {
		facts = append(facts, c.heardFacts(f.log())...)
		for _, acts := range c.Acts {
			if slices.ContainsFunc(acts, func(a []string) bool { return a[0] == "exit" }) {
				_ = f.cmd.Wait()
				f.start()
			}
		}
	}
	return strings.Join(facts, "\n")
}
