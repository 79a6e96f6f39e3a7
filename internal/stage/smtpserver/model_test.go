package smtpserver

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

var (
	sessionsFor  = flag.Duration("sessions", 2*time.Second, "how long random sessions are compared with the model")
	sessionsSeed = flag.Uint64("sessions-seed", 0, "seed of the random sessions; 0: by the clock")
)

// Net2: random sessions, cut into random segments, get the replies of a model, and what was
// answered 250 is in the spool, byte for byte, and nothing else is.
func TestSessionsFollowAModel(t *testing.T) {
	seed := *sessionsSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-sessions-seed %d", seed)
	s := start(t, func(c *Config) { c.Listen[session.RoleLMTP] = []string{anyPort} })
	random := rand.New(rand.NewPCG(seed, 1))
	goroutines, files := 0, 0
	n, messages := 0, 0
	for end := time.Now().Add(*sessionsFor); time.Now().Before(end) || n < 50; n++ {
		lmtp := random.IntN(4) == 0
		said := randomSession(random, lmtp)
		replies := s.converse(random, said, lmtp)
		m := model{in: said, replies: replies, lmtp: lmtp}
		if err := m.run(); err != nil {
			t.Fatalf("session %d: %v\nclient: %q\nserver: %q", n, err, said, replies)
		}
		var got []string
		for _, name := range s.names("router") {
			_, content, _ := strings.Cut(s.message(name), "env-end\n")
			got = append(got, content)
			assert.Must(t, os.Remove(filepath.Join(s.dir, "router", name)))
		}
		slices.Sort(got)
		slices.Sort(m.accepted)
		if !slices.Equal(got, m.accepted) {
			t.Fatalf("session %d: messages %q, want %q\nclient: %q\nserver: %q", n, got, m.accepted, said, replies)
		}
		messages += len(got)
		s.nothing()
		if n < 10 {
			goroutines, files = max(goroutines, runtime.NumGoroutine()), max(files, openFiles(t))
		}
	}
	// The last connection may still be closing.
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines+mostSpare || openFiles(t) > files; {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines and %d files are left of %d and %d", runtime.NumGoroutine(), openFiles(t), goroutines, files)
		}
		runtime.Gosched()
	}
	if messages == 0 {
		t.Error("no message was accepted")
	}
	t.Logf("%d sessions, %d messages", n, messages)
}

func openFiles(t *testing.T) int {
	return len(assert.Get(os.ReadDir("/proc/self/fd"))(t))
}

// converse sends a session in random segments and returns the replies.
func (r *running) converse(random *rand.Rand, said []byte, lmtp bool) [][]string {
	r.t.Helper()
	port := 0
	if lmtp {
		port = 1
	}
	c := assert.Get(net.Dial("tcp", r.addrs[port].String()))(r.t)
	defer c.Close()
	assert.Must(r.t, c.SetDeadline(time.Now().Add(time.Minute)))
	var segments [][]byte
	for rest := said; len(rest) > 0; {
		n := len(rest)
		if len(segments) < 8 && random.IntN(8) > 0 {
			n = 1 + random.IntN(n)
		}
		segments, rest = append(segments, rest[:n]), rest[n:]
	}
	sent := make(chan bool)
	defer func() { <-sent }()
	go func() {
		defer close(sent)
		for _, segment := range segments {
			// A server that has closed takes no more; its replies are judged.
			if _, err := c.Write(segment); err != nil {
				break
			}
			runtime.Gosched()
		}
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	text, err := io.ReadAll(c)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		r.t.Fatal(err)
	}
	var replies [][]string
	var reply []string
	for line := range strings.Lines(string(text)) {
		reply = append(reply, line)
		if len(line) > 3 && line[3] == ' ' {
			replies = append(replies, reply)
			reply = nil
		}
	}
	return replies
}

// randomSession returns what a client sends: mostly sessions as they should be, with commands
// that are out of place, altered or cut off.
func randomSession(random *rand.Rand, lmtp bool) []byte {
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	hello := "EHLO"
	if lmtp {
		hello = "LHLO"
	}
	text := func() string {
		return pick("", "Subject: x\r\n\r\nhello\r\n", "..\r\n", ".x\r\n", "a\nb\r\n", "\r\n.\rx\r\n", "\x00\xff\r\n", "RSET\r\n", strings.Repeat("long ", random.IntN(10000))+"\r\n", "\n.\n\r\n")
	}
	command := func() string {
		switch random.IntN(16) {
		case 0:
			return hello + " client.example\r\n"
		case 1, 2, 3:
			return "MAIL FROM:<" + pick("", "a@b.example", "c@d.example") + ">" + pick("", " SIZE=10", " BODY=8BITMIME", " SMTPUTF8", " XYZZY", " SIZE=x") + "\r\n"
		case 4, 5, 6:
			return "RCPT TO:<" + pick("u@mx.example.org", "postmaster", "", "v@mx.example.org") + ">" + pick("", " NOTIFY=NEVER", " NOTIFY=X") + "\r\n"
		case 7, 8:
			return "DATA\r\n" + text() + text() + ".\r\n"
		case 9, 10:
			var b strings.Builder
			for range random.IntN(3) {
				part := text()
				fmt.Fprintf(&b, "BDAT %d\r\n%s", len(part), part)
			}
			part := text()
			fmt.Fprintf(&b, "BDAT %d LAST\r\n%s", len(part), part)
			return b.String()
		case 11:
			return pick("BDAT", "BDAT x", "BDAT 5 LAST x", "BDAT -1") + "\r\n"
		case 12:
			return pick("RSET", "NOOP", "NOOP x", "rset", "RSET x", "VRFY x", "VRFY", "HELP", "EXPN x") + "\r\n"
		case 13:
			return pick("XYZZY", "", "STARTTLS", "AUTH PLAIN x", "HELO c", "LHLO c", "EHLO c", "EHLO", "QUITX", "\x01") + "\r\n"
		case 14:
			return "NOOP " + strings.Repeat("x", random.IntN(6000)) + "\r\n"
		}
		return pick("NOOP\r\n", "NOOP\r\n", "NOOP\n", "QUIT\r\n")
	}
	var b bytes.Buffer
	if random.IntN(10) > 0 {
		b.WriteString(hello + " client.example\r\n")
	}
	for range 1 + random.IntN(15) {
		if random.IntN(3) == 0 {
			fmt.Fprintf(&b, "MAIL FROM:<a@b.example>\r\nRCPT TO:<u@mx.example.org>\r\n")
		}
		b.WriteString(command())
	}
	said := b.Bytes()
	for random.IntN(3) == 0 && len(said) > 0 {
		at := random.IntN(len(said))
		switch random.IntN(3) {
		case 0:
			said[at] = byte(random.IntN(256))
		case 1:
			said = said[:at]
		case 2:
			said = append(said[:at:at], said[at+random.IntN(min(10, len(said)-at)):]...)
		}
	}
	return said
}

// model is SMTP and LMTP as the table in docs/smtpserver.md has it, without a thought of
// speed: it reads all that a client has sent beside all that the server has replied.
type model struct {
	in       []byte
	replies  [][]string
	lmtp     bool
	accepted []string // contents of messages

	greeted, mail, utf8 bool
	rcpts, refused      int
}

// errEnded means that there is nothing more to be compared.
var errEnded = fmt.Errorf("ended")

// want takes the next reply, which has to have one of the codes; "2" is every code with it.
func (m *model) want(why string, codes ...string) (string, error) {
	if len(m.replies) == 0 {
		return "", fmt.Errorf("no reply to %.200q, want %q", why, codes)
	}
	got := m.replies[0]
	m.replies = m.replies[1:]
	for _, line := range got {
		if line[:3] != got[0][:3] || !strings.HasSuffix(line, "\r\n") {
			return "", fmt.Errorf("%q is no reply", got)
		}
	}
	for _, code := range codes {
		if strings.HasPrefix(got[0], code) {
			return got[0][:3], nil
		}
	}
	return "", fmt.Errorf("reply %q to %.200q, want %q", got, why, codes)
}

func (m *model) run() error {
	_, err := m.want("the connection", "220")
	for err == nil {
		err = m.command()
	}
	if err != errEnded {
		return err
	}
	// A connection that ends in the middle of content may get 421.
	if len(m.replies) > 1 || len(m.replies) == 1 && !strings.HasPrefix(m.replies[0][0], "421") {
		return fmt.Errorf("more replies: %q", m.replies)
	}
	return nil
}

// line takes the next line that the client has sent.
func (m *model) line() (line string, tooLong bool, err error) {
	i := bytes.IndexByte(m.in, '\n')
	if i < 0 {
		return "", false, errEnded
	}
	line = string(m.in[:i])
	m.in = m.in[i+1:]
	limit := 4096
	if len(line) > 5 && strings.EqualFold(line[:5], "AUTH ") {
		limit = 12288
	}
	return strings.TrimSuffix(line, "\r"), i+1 > limit, nil
}

var (
	strictMail = regexp.MustCompile(`(?i)^FROM:<([a-z]@[bd]\.example)?>( SIZE=10| BODY=8BITMIME| SMTPUTF8)?$`)
	strictRcpt = regexp.MustCompile(`(?i)^TO:<([uv]@mx\.example\.org|postmaster)>( NOTIFY=NEVER)?$`)
	strictBDAT = regexp.MustCompile(`(?i)^([0-9]{1,18})([ \t]+LAST)?$`)
	control    = regexp.MustCompile("[\x00-\x08\x0b-\x1f\x7f]")
)

// words returns the verb in upper case and its argument.
func words(line string) (verb, arg string) {
	end := strings.IndexAny(line, " \t")
	if end < 0 {
		end = len(line)
	}
	return strings.ToUpper(line[:end]), strings.Trim(line[end:], " \t")
}

var verbs = []string{"EHLO", "HELO", "LHLO", "MAIL", "RCPT", "DATA", "BDAT", "RSET", "NOOP", "VRFY", "EXPN", "HELP", "QUIT", "STARTTLS", "AUTH", "ETRN", "XCLIENT"}

func (m *model) command() error {
	line, tooLong, err := m.line()
	if err != nil {
		return err
	}
	verb, arg := words(line)
	is := func(codes ...string) error { _, err := m.want(line, codes...); return err }
	order := !m.greeted
	switch verb {
	case "MAIL", "AUTH", "ETRN":
		order = order || m.mail
	case "XCLIENT":
		order = m.mail
	case "RCPT":
		order = order || !m.mail
	case "DATA":
		order = order || m.rcpts == 0
	default:
		order = false
	}
	noArgument := slices.Contains([]string{"DATA", "RSET", "QUIT"}, verb) && arg != ""
	switch known := slices.Contains(verbs, verb); {
	case tooLong, !known:
		return is("500")
	case control.MatchString(line), noArgument:
		return is("501")
	case order && m.refused > 0 && m.rcpts == 0 && verb == "DATA":
		return is("554")
	case order:
		return is("503")
	}
	switch verb {
	case "EHLO", "HELO", "LHLO":
		if m.lmtp != (verb == "LHLO") {
			return is("500")
		}
		if arg == "" {
			return is("501")
		}
		m.reset()
		m.greeted = true
		return is("250")
	case "MAIL":
		code, err := m.wantByForm(line, strictMail.MatchString(arg))
		if code == "250" {
			m.mail, m.utf8 = true, strings.Contains(strings.ToUpper(arg), "SMTPUTF8")
		}
		return err
	case "RCPT":
		code, err := m.wantByForm(line, strictRcpt.MatchString(arg))
		if code == "250" {
			m.rcpts++
		} else {
			m.refused++
		}
		return err
	case "DATA":
		if err := is("354"); err != nil {
			return err
		}
		return m.data()
	case "BDAT":
		return m.bdat(line, arg)
	case "RSET":
		m.reset()
		return is("250")
	case "NOOP":
		return is("250")
	case "VRFY":
		if arg == "" {
			return is("501")
		}
		return is("252")
	case "HELP":
		return is("214")
	case "QUIT":
		if err := is("221"); err != nil {
			return err
		}
		return errEnded
	case "XCLIENT":
		return is("550")
	case "ETRN":
		return is("2", "4", "5")
	}
	return is("502") // EXPN, STARTTLS, AUTH
}

// wantByForm wants 250 for what is right beyond doubt. The model has no parser: it takes
// either answer to other forms.
func (m *model) wantByForm(line string, right bool) (string, error) {
	if right {
		return m.want(line, "250")
	}
	return m.want(line, "250", "4", "5")
}

func (m *model) reset() { m.mail, m.utf8, m.rcpts, m.refused = false, false, 0, 0 }

var endOfData = regexp.MustCompile(`(?s)^(.*?)(?:^|\r\n)\.\r\n`)

func (m *model) data() error {
	found := endOfData.FindSubmatchIndex(m.in)
	if found == nil {
		return errEnded
	}
	text := string(m.in[:found[1]-len(".\r\n")])
	m.in = m.in[found[1]:]
	text = strings.TrimPrefix(text, ".")
	text = strings.ReplaceAll(text, "\r\n.", "\r\n")
	return m.message(text)
}

// message wants the replies to a content that has arrived.
func (m *model) message(text string) error {
	m.accepted = append(m.accepted, strings.ReplaceAll(text, "\r\n", "\n"))
	n := 1
	if m.lmtp {
		n = m.rcpts
	}
	m.reset()
	for range n {
		if _, err := m.want("content", "250"); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) bdat(line, arg string) error {
	chunk := func(arg string) (text string, last, ok bool, err error) {
		f := strictBDAT.FindStringSubmatch(arg)
		if f == nil {
			return "", false, false, nil
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		if int64(len(m.in)) < n {
			err = errEnded
			n = int64(len(m.in))
		}
		text = string(m.in[:n])
		m.in = m.in[n:]
		return text, f[2] != "", true, err
	}
	text, last, ok, err := chunk(arg)
	switch {
	case !ok:
		_, err := m.want(line, "501")
		return err
	case m.rcpts == 0:
		want := "503"
		if m.refused > 0 && m.greeted {
			want = "554"
		}
		if _, wrong := m.want(line, want); wrong != nil {
			return wrong
		}
		return err
	}
	for stray := 0; err == nil && !last; {
		if _, err := m.want(line, "250"); err != nil {
			return err
		}
		for more := true; more; {
			before := m.in
			line, tooLong, ended := m.line()
			if ended != nil {
				return ended
			}
			verb, arg := words(line)
			codes := "503"
			switch {
			case tooLong:
				codes = "500"
			case slices.Contains([]string{"RSET", "QUIT", "EHLO", "HELO", "LHLO"}, verb):
				m.in = before
				m.reset()
				return nil
			case control.MatchString(line):
				codes = "501"
			case verb == "NOOP":
				codes = "250"
			case verb == "BDAT":
				var next string
				if next, last, ok, err = chunk(arg); ok {
					text += next
					more = false
					continue
				}
				codes = "501"
			}
			if _, err := m.want(line, codes); err != nil {
				return err
			}
			if stray++; stray > 10 {
				return errEnded
			}
		}
	}
	if err != nil {
		return err
	}
	return m.message(text)
}
