package query

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/helper"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/wire/mailq"
)

// session is one client.
type session struct {
	q         *Server
	conn      net.Conn
	in        *bufio.Reader
	out       *bufio.Writer
	challenge string
	from      netip.Addr // where it comes from, for the authfile
	who       string     // for logs and for the history of messages
	rights    mailq.Rights
	trusted   bool         // it has all rights, by the uid of its process
	failures  int          // logins
	idle      atomic.Int64 // since when the client is to say something; 0: it is answered

	asides asides
}

// challenges counts them, so that no two are alike.
var challenges atomic.Uint64

func newSession(q *Server, conn net.Conn) *session {
	s := &session{q: q, conn: conn}
	s.in = bufio.NewReaderSize(conn, mailq.MaxLine)
	s.out = bufio.NewWriterSize(patientWriter{conn}, 32<<10)
	now := q.Now()
	s.challenge = mailq.Challenge(fmt.Sprintf("%d.%d.%d.%d", now.Unix(), now.Nanosecond()/1000, os.Getpid(), challenges.Add(1)))
	s.who = conn.RemoteAddr().String()
	switch c := conn.(type) {
	case *net.UnixConn:
		s.from = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		s.who = "unix"
		if uid, ok := helper.PeerUID(c); ok {
			s.who = fmt.Sprintf("uid %d", uid)
			if uid == 0 || uid == os.Geteuid() || uid == q.owner() {
				s.rights, s.trusted = mailq.All, true
			}
		}
	case *net.TCPConn:
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			s.from = a.AddrPort().Addr()
		}
	}
	return s
}

// patientWriter gives the client a time to take each part of an answer.
type patientWriter struct{ conn net.Conn }

func (w patientWriter) Write(b []byte) (int, error) {
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return w.conn.Write(b)
}

// owner returns the uid that the postoffice belongs to, -1 if that is unknown.
func (q *Server) owner() int {
	var st unix.Stat_t
	if unix.Stat(q.Dir, &st) != nil {
		return -1
	}
	return int(st.Uid)
}

// run serves the client until one of the two ends it.
func (s *session) run() {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		// The end of the scheduler, or of the client, ends every wait.
		select {
		case <-s.q.ctx.Done():
		case <-stop:
		}
		_ = s.conn.Close()
	}()
	_, _ = s.out.Write(mailq.Greeting(s.challenge))
	for s.out.Flush() == nil {
		line, err := s.line()
		if err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				_ = s.no("BAD; a line without end")
				_ = s.out.Flush()
			}
			return
		}
		if err := s.answer(line); err != nil {
			if errors.Is(err, errStopped) {
				_ = s.out.Flush()
			}
			return
		}
	}
}

// line reads a request. A request without its newline is none.
func (s *session) line() ([]byte, error) {
	wait := idleTimeout
	if !s.rights.LoggedIn() {
		wait = loginTimeout
	}
	if err := s.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	s.idle.Store(time.Now().UnixNano())
	b, err := s.in.ReadSlice('\n')
	s.idle.Store(0)
	if err != nil {
		return nil, err
	}
	return b[:len(b)-1], nil
}

// errBye ends a session.
var errBye = errors.New("bye")

// answer does what a line asks for. Its errors end the session.
func (s *session) answer(line []byte) error {
	r, err := mailq.ParseRequest(line)
	switch {
	case err != nil && !s.rights.LoggedIn():
		return s.no("BAD; USER MUST AUTHENTICATE")
	case err != nil:
		return s.no("MAILQ2 Unknown command; there are AUTH, SHOW, ETRN, KILL, JSON, QUIT")
	case !s.rights.May(r.Kind) && !s.rights.LoggedIn():
		return s.no("BAD; USER MUST AUTHENTICATE")
	case !s.rights.May(r.Kind):
		s.q.Log.Warn("query-refused", "client", s.who, "command", r.Kind.String())
		return s.no("MAILQ2 refused by access control: " + r.Kind.String())
	}
	switch r.Kind {
	case mailq.Auth:
		return s.login(r)
	case mailq.Quit:
		_ = s.yes("Bye bye")
		_ = s.out.Flush()
		return errBye
	case mailq.ETRN:
		return s.etrn(r)
	case mailq.KillThread:
		return s.killThread(r)
	case mailq.KillMessage:
		return s.killMessage(r)
	case mailq.JSONEvents:
		return s.follow()
	default:
		return s.show(r)
	}
}

// no is the reply to a request that was refused.
func (s *session) no(text string) error { return s.say("-" + text) }

// yes is the reply to a request that was carried out.
func (s *session) yes(text string) error { return s.say("+" + text) }

func (s *session) say(text string) error {
	_, err := s.out.WriteString(text + "\n")
	return err
}

// write writes lines of an answer.
func (s *session) write(b []byte) error {
	_, err := s.out.Write(b)
	return err
}

// block writes an answer of several lines.
func (s *session) block(lines func() error) error {
	if err := s.say(mailq.Follows); err != nil {
		return err
	}
	if err := lines(); err != nil {
		return err
	}
	return s.say(mailq.End)
}

// login gives the rights that the authfile gives. An operator who has all of them already,
// by the uid of his process, keeps them whatever the client sends: ZMailer's mailq always logs
// in.
func (s *session) login(r mailq.Request) error {
	if s.rights == mailq.All {
		return s.yes("OK")
	}
	f, err := s.q.authFile()
	if err != nil {
		s.q.Log.Error("query-authfile", "reason", err, "advice", "no client can log in until it can be read")
		return s.no("BAD USER OR AUTHENTICATOR OR CONTACT ADDRESS")
	}
	s.rights = f.Login(r.User, r.Digest, s.challenge, s.from)
	if s.rights.LoggedIn() {
		s.who = r.User + " from " + s.conn.RemoteAddr().String()
		return s.yes("OK")
	}
	s.failures++
	s.q.Log.Warn("query-login-failed", "client", s.who, "user", store.Cut(r.User))
	if !s.q.pause(pauseTime) {
		return errStopped
	}
	_ = s.no("BAD USER OR AUTHENTICATOR OR CONTACT ADDRESS")
	if s.failures >= maxLogins {
		_ = s.out.Flush()
		return errBye
	}
	return nil
}

// maxAuthFile is how large an authfile may be.
const maxAuthFile = 1 << 20

// authFile reads PARAM authfile as it is now.
func (q *Server) authFile() (*mailq.AuthFile, error) {
	name := q.authFileName()
	if name == "" {
		return mailq.ParseAuthFile(nil), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxAuthFile))
	if err != nil {
		return nil, err
	}
	a := mailq.ParseAuthFile(text)
	if len(a.Bad) > 0 {
		q.Log.Warn("query-authfile", "reason", fmt.Errorf("%s: lines %v cannot be read", name, a.Bad), "advice", "they let no client in")
	}
	if info, err := f.Stat(); err == nil && info.Mode()&(fs.ModePerm&0o006) != 0 {
		q.Log.Warn("query-authfile", "reason", fmt.Errorf("%s: its mode is %v: every user can read its passwords", name, info.Mode()), "advice", "chmod o= it")
	}
	return a, nil
}

// authFileName returns the path of the authfile, "" if there is none. One without a slash at
// its beginning is beside zmailer.conf.
func (c *Config) authFileName() string {
	name := c.Conf.Current().AuthFile
	if name != "" && !filepath.IsAbs(name) && c.ZConfig != "" {
		name = filepath.Join(filepath.Dir(c.ZConfig), name)
	}
	return name
}
