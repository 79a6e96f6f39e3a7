package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Limits of readers.
const (
	readers     = 8                // at once
	readTimeout = 10 * time.Second // for a question and its answer
	questionMax = 16 << 10         // bytes
	pause       = time.Second      // after an error of accept(2)
)

// Socket returns the name of the Unix socket in the postoffice on which a program's numbers
// are read.
func Socket(program string) string { return ".metrics." + program }

// Listen makes a Unix socket that no one serves yet: socket.ListenAlone.
type Listen func(path string, mode os.FileMode) (*net.UnixListener, error)

// Serve answers those who read until stop is called. The socket is made in dir, the
// postoffice. What cannot be served is logged, and mail goes on.
func (s *Set) Serve(dir string, listen Listen, log *slog.Logger) (stop func()) {
	if s == nil {
		return func() {}
	}
	where, path := s.address, ""
	var l net.Listener
	var err error
	if where == "unix" {
		path = filepath.Join(dir, Socket(s.program))
		where = path
		l, err = listen(path, 0o660)
	} else {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", where)
	}
	if err != nil {
		log.Error("metrics-not-served", "address", where, "reason", err,
			"advice", "mail goes on; to read this program's metrics correct METRICS and restart it")
		return func() {}
	}
	if path == "" {
		where = l.Addr().String()
	}
	log.Info("metrics-served", "address", where)
	d := &server{set: s, listener: l, log: log, stopped: make(chan struct{}), open: map[net.Conn]struct{}{}}
	d.all.Go(d.accept)
	return func() {
		if path != "" {
			// While we listen the name is ours; behind that it may be a successor's.
			// Crash: the socket stays, unanswered, and the next one replaces it.
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				log.Warn("metrics-trouble", "reason", fmt.Errorf("remove socket: %w", err))
			}
		}
		d.close()
	}
}

// server is an HTTP/1.1 server with one page that closes the connection after each answer.
type server struct {
	set      *Set
	listener net.Listener
	log      *slog.Logger
	stopped  chan struct{}
	all      sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

func (d *server) close() {
	close(d.stopped)
	_ = d.listener.Close() // nothing is buffered in it
	d.mu.Lock()
	for c := range d.open {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.all.Wait()
}

func (d *server) accept() {
	places := make(chan struct{}, readers)
	for {
		c, err := d.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// EMFILE and the like: it passes.
			d.log.Warn("metrics-trouble", "reason", err)
			select {
			case <-time.After(pause):
				continue
			case <-d.stopped:
				return
			}
		}
		select {
		case places <- struct{}{}:
			d.all.Go(func() {
				defer func() { <-places }()
				d.answer(c)
			})
		default:
			_ = c.Close() // too many
		}
	}
}

// keep notes an open connection; false: the server is closed.
func (d *server) keep(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.stopped:
		return false
	default:
	}
	d.open[c] = struct{}{}
	return true
}

func (d *server) answer(c net.Conn) {
	defer func() { _ = c.Close() }()
	if !d.keep(c) {
		return
	}
	defer func() {
		d.mu.Lock()
		delete(d.open, c)
		d.mu.Unlock()
	}()
	if err := c.SetDeadline(time.Now().Add(readTimeout)); err != nil {
		return
	}
	method, target, ok := question(c)
	status, text := "200 OK", []byte(nil)
	switch {
	case !ok:
		status, text = "400 Bad Request", []byte("not HTTP\n")
	case method != "GET" && method != "HEAD":
		status, text = "405 Method Not Allowed", []byte("GET /metrics\n")
	case target == "/health":
		if text = []byte("healthy\n"); d.set.healthy != nil && !d.set.healthy() {
			status, text = "503 Service Unavailable", []byte("not healthy\n")
		}
	case target != "/metrics":
		status, text = "404 Not Found", []byte("GET /metrics\n")
	default:
		text = d.set.Append(nil)
	}
	head := fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n", status, len(text))
	if method == "HEAD" {
		text = nil
	}
	// A client that does not read to the end misses the rest.
	_, _ = c.Write(append([]byte(head), text...))
}

// question reads a request to the end of its header.
func question(c io.Reader) (method, target string, ok bool) {
	r := bufio.NewReader(io.LimitReader(c, questionMax))
	line, err := r.ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/1.") {
		return "", "", false
	}
	target, _, _ = strings.Cut(words[1], "?")
	if rest, absolute := strings.CutPrefix(target, "http://"); absolute { // RFC 9112 §3.2.2
		_, path, _ := strings.Cut(rest, "/")
		target = "/" + path
	}
	for strings.TrimRight(line, "\r\n") != "" {
		if line, err = r.ReadString('\n'); err != nil {
			return "", "", false
		}
	}
	return words[0], target, true
}
