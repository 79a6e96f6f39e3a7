package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/run/supervise"
)

// ControlSocket is the name, in the postoffice, of the socket on which zmctl run takes
// requests. Root and the owner of the postoffice may connect to it.
const ControlSocket = ".run"

// Request is a line of JSON that zmctl run is sent; it answers with one, too.
type Request struct {
	Do      string   `json:"do"` // status, wait, start, stop, restart, reload or reopen
	Daemons []string `json:"daemons,omitempty"`
}

// Answer describes zmctl run and its daemons after the request.
type Answer struct {
	Pid        int               `json:"pid"`
	Since      time.Time         `json:"since"`
	Background bool              `json:"background,omitempty"` // started by zmctl start
	Log        string            `json:"log,omitempty"`        // LOGFILE
	Daemons    []supervise.State `json:"daemons"`
	Ending     bool              `json:"ending,omitempty"` // it is about to end
	Error      string            `json:"error,omitempty"`
}

// requestTimeout is how long a client may take to send its request.
const requestTimeout = 10 * time.Second

// accept serves the control socket until it is closed.
func (r *Run) accept(ctx context.Context, l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors: clients wait or give up.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		go r.answer(ctx, conn)
	}
}

func (r *Run) answer(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	var q Request
	err := conn.SetDeadline(time.Now().Add(requestTimeout))
	if err == nil {
		err = json.NewDecoder(conn).Decode(&q)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return // it has gone, or its request is malformed
	}
	if q.Do == "stop" && len(q.Daemons) == 0 {
		// The answer is the end of the connection, which comes with the end of the process.
		r.stop()
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	_ = json.NewEncoder(conn).Encode(r.do(ctx, q)) // a client that has gone does not want it
}

func (r *Run) do(ctx context.Context, q Request) *Answer {
	var err error
	switch q.Do {
	case "status":
	case "wait":
		err = r.s.AwaitReady(ctx)
	case "start":
		err = r.s.Start(ctx, q.Daemons)
	case "restart":
		r.s.Stop(q.Daemons)
		err = r.s.Start(ctx, q.Daemons)
	case "stop":
		r.s.Stop(q.Daemons)
	case "reload":
		err = r.reload()
	case "reopen":
		err = r.reopen()
	case "hangup":
		err = r.hangUp(q.Daemons)
	default:
		err = fmt.Errorf("unknown request %q; this zmctl run may be of an older version", q.Do)
	}
	a := &Answer{Pid: os.Getpid(), Since: r.since, Background: r.background, Log: r.LogPath(), Daemons: r.s.States(), Ending: r.s.Stopping()}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// ErrNoRun means that no zmctl run serves a postoffice.
var ErrNoRun = errors.New("no zmctl run serves this postoffice")

// Ask sends a request to the zmctl run of the postoffice in dir. After a stop of all daemons
// the answer is nil, and the process has ended.
func Ask(ctx context.Context, dir string, q Request) (*Answer, error) {
	conn, err := socket.Dial(ctx, filepath.Join(dir, ControlSocket))
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNoRun
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("zmctl run answers root and the owner of the postoffice only: %w", err)
	case err != nil:
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return nil, fmt.Errorf("%w: it has just ended: %w", ErrNoRun, err)
	}
	var a Answer
	err = json.NewDecoder(conn).Decode(&a)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("ask zmctl run: %w", ctx.Err())
	case err != nil && q.Do == "stop" && len(q.Daemons) == 0:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: it has just ended: %w", ErrNoRun, err)
	case a.Error != "":
		return &a, errors.New(a.Error)
	}
	return &a, nil
}
