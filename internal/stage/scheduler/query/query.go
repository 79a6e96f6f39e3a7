// Package query answers on the query sockets of the scheduler (docs/mailq.md): it shows the
// queue, follows its events, has hosts tried now (ETRN), expires mail when the postmaster asks for it,
// and measures the queue for the metrics.
//
// It owns the sockets, the clients on them and their rights. It changes a message only by
// operations, as zmctl does, and asks the engine for everything else.
//
// What survives a crash: nothing; a socket that is left is taken over by the next scheduler.
//
// Diagnostics: a socket that cannot be made is logged and mail goes on. A client that is
// refused gets a reply and the log a line.
package query

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// Engine is the scheduler's engine.
type Engine interface {
	// Ask has fn called between two turns of the engine. It does not wait.
	Ask(fn func(View))
	// Kick has a host tried now and then calls then, in the engine, with the number of its
	// threads.
	Kick(host string, then func(threads int))
}

// View is what the engine has at hand. It is valid in the function that gets it alone.
type View interface {
	Now() time.Time
	Core() *thread.Core
	// Message and MessageOfInode find a message by the number in its name and by that in
	// its spool ID; nil: there is none.
	Message(number uint64) *thread.Message
	MessageOfInode(inode uint64) *thread.Message
	// Messages calls fn for the messages in a part of the table, and returns the number of
	// parts.
	Messages(part int, fn func(*thread.Message)) (parts int)
	Status() Status
}

// Status is what the engine knows without a search.
type Status struct {
	Counts
	Messages, Agents, Idle int
	Refused                int // specifications that cannot be used
	Uptime                 time.Duration
	Scanned                bool  // all that was there at the start is known
	First, Oldest          int64 // times of the oldest message, and of the oldest with recipients to be delivered; 0: none
	Alarms                 []alarm.Alarm
	Suspensions            int // of deliveries, in force
}

// Config is what a Server works with.
type Config struct {
	Dir, ZConfig string // the postoffice, and zmailer.conf if there is one
	Conf         *conf.File
	PostOffice   *postoffice.PostOffice
	Store        *store.Store
	Now          func() time.Time
	Log          *slog.Logger
	Stream       *events.Stream
}

// Server answers on the query sockets. Each client has a goroutine of its own, which waits
// for the client and for files.
type Server struct {
	Config
	snapshots
	reading chan struct{} // held while a specification is read: listings take one core at most
	cancel  context.CancelFunc
	ctx     context.Context
	sockets sockets
	serving sync.WaitGroup
}

// snapshots are what the engine is asked for, one at a time and each of bounded size, so that
// it waits for nothing.
type snapshots struct {
	engine Engine
	conf   *conf.File
	asking chan struct{} // held while the engine is asked: one question a turn
	ended  chan struct{} // closed when the engine answers no more

	visited, most int // vertices in this question and in the longest one; the engine's
}

// newServer makes a server without sockets.
func newServer(e Engine, c Config) *Server {
	return &Server{Config: c, reading: make(chan struct{}, 1),
		snapshots: snapshots{engine: e, conf: c.Conf, asking: make(chan struct{}, 1), ended: make(chan struct{})}}
}

func (q *Server) emit(k events.Kind, args ...any) {
	events.Emitter{Log: q.Log, Stream: q.Stream}.Emit(k, args...)
}

// Limits of the query sockets.
const (
	maxClients   = 32               // at once, for each socket
	loginTimeout = 30 * time.Second // to log in
	idleTimeout  = 10 * time.Minute // between requests
	writeTimeout = 30 * time.Second // for 32 KB of an answer to be taken
	maxLogins    = 3                // that fail before the connection is closed
	pauseTime    = time.Second      // after a login that fails

	// askedAtOnce is how many vertices or threads the engine looks at in one turn for
	// all clients together.
	askedAtOnce = 1000
)

// accept takes clients in.
func (q *Server) accept(l net.Listener) {
	places := &places{}
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// EMFILE and the like: it passes.
			q.Log.Warn("query-trouble", "reason", err)
			if !q.pause(pauseTime) {
				return
			}
			continue
		}
		q.receive(places, conn)
	}
}

// pause waits; false: the scheduler stops.
func (q *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-q.ctx.Done():
		return false
	}
}

// errStopped means that the engine answers no more.
var errStopped = errors.New("the scheduler stops")

// ask has fn done by the engine, between two turns. fn looks at no more than
// askedAtOnce vertices.
func (q *snapshots) ask(fn func(View)) error {
	select {
	case q.asking <- struct{}{}:
	case <-q.ended:
		return errStopped
	}
	defer func() { <-q.asking }()
	done := make(chan struct{})
	q.engine.Ask(func(v View) {
		q.visited = 0
		fn(v)
		q.most = max(q.most, q.visited)
		close(done)
	})
	select {
	case <-done:
		return nil
	case <-q.ended:
		return errStopped
	}
}

// Stop ends the service. The engine calls it when it asks no more.
func (q *Server) Stop() {
	close(q.ended)
	q.cancel()
	q.sockets.close()
	q.serving.Wait()
	// Crash: the socket stays, no one answers, and the next scheduler takes its place.
	if err := os.Remove(filepath.Join(q.Dir, postoffice.QuerySocket)); err != nil && !errors.Is(err, os.ErrNotExist) {
		q.Log.Warn("query-trouble", "reason", fmt.Errorf("remove socket: %w", err))
	}
}
