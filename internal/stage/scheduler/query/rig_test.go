package query

import (
	"context"
	"math/rand/v2"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// rig is a postoffice whose queue is served on the sockets. Its engine has the messages and
// threads, and no agents: nothing is delivered.
type rig struct {
	*storetest.Box
	dir    string
	engine *played
	server *Server
	log    *logtest.Buffer
}

// newRig serves an empty queue. head is put before the clauses of scheduler.conf.
func newRig(t testing.TB, head string) *rig {
	t.Helper()
	f, dir := storetest.Disk(t)
	r := &rig{Box: storetest.New(t, f, 0), dir: dir, log: &logtest.Buffer{}}
	c, err := conf.Parse("scheduler.conf", []byte(head+storetest.Conf), nil)
	assert.Must(t, err)
	env := &store.Env{PostOffice: r.PO, Conf: c, Hostname: "mx.example.org", Postmaster: "postmaster@mx.example.org", Now: time.Now, Log: r.log.Logger()}
	r.engine = &played{core: thread.New(rand.New(rand.NewPCG(1, 2))), now: r.Now, work: make(chan func())}
	var engine sync.WaitGroup
	engine.Go(r.engine.run)
	r.server = Start(context.Background(), r.engine, Config{Dir: dir, Conf: c, PostOffice: r.PO, Store: store.New(env), Now: time.Now, Log: r.log.Logger(), Stream: &events.Stream{}})
	t.Cleanup(func() {
		r.server.Stop()
		close(r.engine.work)
		engine.Wait()
	})
	return r
}

// queue puts a message into the queue and has the engine take it in.
func (r *rig) queue(sender string, lines ...string) (name string) {
	r.T.Helper()
	name = r.put(sender, lines...)
	r.read(name)
	return name
}

// put puts a message into the queue. Recipients whose address begins with "defer" have had
// an attempt.
func (r *rig) put(sender string, lines ...string) (name string) {
	r.T.Helper()
	var rcpts []storetest.Rcpt
	for _, line := range lines {
		rcpts = append(rcpts, storetest.Rcpt{Line: line})
	}
	name = r.Queue(sender, rcpts...)
	var tried []store.Outcome
	for _, x := range r.Parse(name).Groups[0].Recipients {
		if strings.HasPrefix(x.Address, "defer") {
			tried = append(tried, store.Outcome{Offset: x.Offset, Address: x.Address, Result: thread.Deferred, Text: "450 4.2.1 later",
				Notary: workspec.Notary{Status: "4.2.1"}, Attempt: 1, Next: r.Now.Add(time.Minute)})
		}
	}
	_, err := r.server.Store.Record(name, tried)
	assert.Must(r.T, err)
	return name
}

// read has the engine take in what a specification says now.
func (r *rig) read(name string) {
	r.T.Helper()
	l, err := r.server.Store.LoadNew(name)
	assert.Must(r.T, err)
	done := make(chan struct{})
	r.engine.work <- func() {
		r.engine.take(r.server.Conf, l)
		close(done)
	}
	<-done
}

// take makes threads of a specification.
func (e *played) take(c *conf.File, l *store.Loaded) {
	m := &thread.Message{Number: l.Number, Stamp: l.ID.MTime, Open: int32(len(l.Open) + l.Held), Total: int32(l.Total)}
	m.SetName(l.Name)
	e.messages = append(e.messages, m)
	for open := l.Open; len(open) > 0; {
		w := open[0]
		var rcpts []thread.Recipient
		for ; len(open) > 0 && open[0].Channel == w.Channel && open[0].Host == w.Host; open = open[1:] {
			rcpts = append(rcpts, thread.NewRecipient(open[0].Offset, open[0].Address))
		}
		s := c.Match(w.Channel, w.Host)
		ring := e.core.Ring(s.RingKey(w.Channel, w.Host), s.Policy)
		if agents.GroupOf(ring) == nil {
			agents.NewGroup(ring, s, w.Channel, w.Host)
		}
		e.core.Add(m, ring, w.Channel, w.Host, rcpts, thread.History{Attempts: w.Attempts, Next: w.Next}, e.now)
	}
}

// connect connects to the socket of the postoffice.
func (r *rig) connect() net.Conn {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), logtest.Patience)
	defer cancel()
	conn, err := socket.Dial(ctx, filepath.Join(r.dir, postoffice.QuerySocket))
	assert.Must(r.T, err)
	return r.patient(conn)
}

// connectTCP connects to the socket of PARAM mailqsock.
func (r *rig) connectTCP() net.Conn {
	r.T.Helper()
	served := regexp.MustCompile(`msg=query-served socket=(127\S+)`).FindStringSubmatch(r.log.String())
	conn, err := net.Dial("tcp", served[1])
	assert.Must(r.T, err)
	return r.patient(conn)
}

// patient closes a connection with the test, and gives each answer a deadline.
func (r *rig) patient(conn net.Conn) net.Conn {
	r.T.Helper()
	r.T.Cleanup(func() { _ = conn.Close() })
	assert.Must(r.T, conn.SetDeadline(time.Now().Add(logtest.Patience)))
	return conn
}

// client is our own client on a connection.
func (r *rig) client(conn net.Conn) *mailq.Client {
	r.T.Helper()
	c, err := mailq.NewClient(conn)
	assert.Must(r.T, err)
	return c
}

// asked returns the lines of an answer, or the answer itself.
func (r *rig) asked(c *mailq.Client, req mailq.Request) []string {
	r.T.Helper()
	list := []string{}
	first, err := c.Ask(req, func(line string) error {
		list = append(list, line)
		return nil
	})
	assert.Must(r.T, err)
	if "+"+first != mailq.Follows {
		return []string{first}
	}
	return list
}
