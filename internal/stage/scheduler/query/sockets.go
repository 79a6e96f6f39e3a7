package query

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"

	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/conf"
)

// sockets are those that a query is served on.
type sockets struct {
	mu     sync.Mutex
	closed bool
	home   net.Listener // $POSTOFFICE/.mailq
	other  net.Listener // PARAM mailqsock; nil: none
	asked  string       // the value of that
}

// Start makes the sockets and serves them. One that cannot be made is logged and left: mail
// goes on.
func Start(ctx context.Context, e Engine, c Config) *Server {
	q := newServer(e, c)
	q.ctx, q.cancel = context.WithCancel(context.WithoutCancel(ctx))
	home := q.homePath()
	l, err := socket.Listen(home, 0o660)
	if err == nil {
		q.sockets.home = l
		q.serve(l, home, nil)
	} else {
		q.serve(nil, home, err)
	}
	q.listenBesides(c.Conf.MailQSock)
	return q
}

func (q *Server) homePath() string { return filepath.Join(q.Dir, postoffice.QuerySocket) }

// Follow has a new scheduler.conf's mailqsock take the place of the one before. What could
// not be made before is tried again. Who is connected stays so.
func (q *Server) Follow(mailqsock string) {
	q.sockets.mu.Lock()
	same := q.sockets.asked == mailqsock && (q.sockets.other != nil || mailqsock == "")
	q.sockets.mu.Unlock()
	if same {
		return
	}
	// A name may have to be looked up.
	q.serving.Go(func() { q.listenBesides(mailqsock) })
}

// listenBesides closes the socket of PARAM mailqsock and makes another.
func (q *Server) listenBesides(mailqsock string) {
	s := &q.sockets
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.leave()
	s.asked = mailqsock
	network, addr := conf.QuerySocket(mailqsock)
	var err error
	switch {
	case network == "":
		return
	case network == "unix" && filepath.Clean(addr) == filepath.Clean(q.homePath()):
		return
	case network == "unix":
		// Whoever may look at it the authfile rules.
		l := (*net.UnixListener)(nil)
		if l, err = socket.Listen(addr, 0o666); err == nil {
			s.other = l
		}
	default:
		var lc net.ListenConfig
		s.other, err = lc.Listen(q.ctx, network, addr)
	}
	q.serve(s.other, addr, err)
}

// leave closes the socket of PARAM mailqsock. The caller has s.mu.
func (s *sockets) leave() {
	if s.other == nil {
		return
	}
	// Nothing is buffered in it.
	_ = s.other.Close()
	if network, path := conf.QuerySocket(s.asked); network == "unix" {
		// Crash: a socket that no one serves; the next one who makes it takes its place.
		_ = os.Remove(path)
	}
	s.other = nil
}

// close ends all of them; none is made any more.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.home != nil {
		// Nothing is buffered in it.
		_ = s.home.Close()
	}
	if s.other != nil {
		_ = s.other.Close()
	}
}

func (q *Server) serve(l net.Listener, addr string, err error) {
	if err != nil {
		q.Log.Error("query-not-served", "socket", addr, "reason", err,
			"advice", "mail goes on; zmctl thread and mailq get no answer until that is mended, and zmctl reload is called or the scheduler started again")
		return
	}
	if network := l.Addr().Network(); network != "unix" {
		addr = l.Addr().String()
	}
	q.Log.Info("query-served", "socket", addr)
	q.serving.Go(func() { q.accept(l) })
}
