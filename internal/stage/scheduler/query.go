package scheduler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/events"
)

// query answers on the query socket (docs/mailq.md). Each client has a goroutine of its
// own, which waits for the client and for files; the engine is asked for snapshots, one
// at a time and each of bounded size, and waits for nobody.
type query struct {
	e       *engine
	events  *events.Stream
	asking  chan struct{} // held while the engine is asked: one question a turn
	reading chan struct{} // held while a specification is read: listings take one core at most
	ended   chan struct{} // closed when the engine asks no more
	cancel  context.CancelFunc
	ctx     context.Context
	sockets querySockets
	serving sync.WaitGroup

	visited, most int // vertices in this question and in the longest one; the engine's
}

// Limits of the query socket.
const (
	queryClients = 32               // at once, for each socket
	queryLogin   = 30 * time.Second // to log in
	queryIdle    = 10 * time.Minute // between requests
	queryWrite   = 30 * time.Second // for 32 KB of an answer to be taken
	queryLogins  = 3                // that fail before the connection is closed
	queryPause   = time.Second      // after a login that fails

	// askedAtOnce is how many vertices or threads the engine looks at in one turn for
	// all clients together.
	askedAtOnce = 1000
)

// accept takes clients in.
func (q *query) accept(l net.Listener) {
	places := &queryPlaces{}
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// EMFILE and the like: it passes.
			q.e.log.Warn("query-trouble", "reason", err)
			if !q.pause(queryPause) {
				return
			}
			continue
		}
		q.receive(places, conn)
	}
}

// pause waits; false: the scheduler stops.
func (q *query) pause(d time.Duration) bool {
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
func (q *query) ask(fn func()) error {
	select {
	case q.asking <- struct{}{}:
	case <-q.ended:
		return errStopped
	}
	defer func() { <-q.asking }()
	done := make(chan struct{})
	q.e.post(func() {
		q.visited = 0
		fn()
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

// stop ends the service. The engine calls it when it asks no more.
func (q *query) stop() {
	close(q.ended)
	q.cancel()
	q.sockets.close()
	q.serving.Wait()
	// Crash: the socket stays, nobody answers, and the next scheduler takes its place.
	if err := os.Remove(filepath.Join(q.e.conf.Dir, postoffice.QuerySocket)); err != nil && !errors.Is(err, os.ErrNotExist) {
		q.e.log.Warn("query-trouble", "reason", fmt.Errorf("remove socket: %w", err))
	}
}
