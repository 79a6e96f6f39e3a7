package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/mailq"
)

// rig is a running scheduler over real files and processes.
type rig struct {
	*box
	dir         string
	events      *logLines
	child       *logLines // log of a scheduler in a process of its own
	conf        *conf.File
	config      Config
	cancel      context.CancelFunc
	ended       chan error
	starts      int
	suspensions int
}

// patience bounds every wait for an event.
const patience = 30 * time.Second

// quick has every clause wait milliseconds instead of minutes.
func quick(s *conf.Settings) { s.Interval = 20 * time.Millisecond; s.IdleMax = 200 * time.Millisecond }

func newRig(t testing.TB, conf string, levels int, change func(*conf.Settings)) *rig {
	t.Helper()
	f, dir := storetest.Disk(t)
	r := &rig{box: boxOf(t, storetest.New(t, f, levels), conf), dir: dir, events: newLogLines(), child: newLogLines()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the other process:\n%s\nnotes:\n%s", r.child, strings.Join(r.notes(), "\n"))
		}
	})
	assert.Must(t, unix.Mkfifo(filepath.Join(dir, "gate"), 0o600))
	r.conf = r.spool.Conf
	for _, channel := range []string{"smtp", "local", "x"} {
		if s := r.conf.Match(channel, "h"); s != nil && change != nil {
			change(s)
		}
	}
	r.config = Config{Dir: dir, HashLevels: levels, Conf: r.conf, Hostname: "mx.example.org", Postmaster: "postmaster@mx.example.org",
		StopTimeout: 20 * time.Second, Look: time.Hour, tuning: tuning{restart: 20 * time.Millisecond}, Log: slog.New(r.events)}
	return r
}

// start runs the scheduler; it is stopped with the test.
func (r *rig) start() {
	r.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.ended = cancel, make(chan error, 1)
	go func() {
		err := Run(ctx, r.config)
		if err != nil {
			r.config.Log.Error("run", "reason", err)
		}
		r.ended <- err
	}()
	if r.starts++; r.starts > 1 {
		return
	}
	r.T.Cleanup(func() {
		if r.ended != nil {
			r.stop()
		}
		if r.T.Failed() {
			r.T.Logf("log:\n%s", r.events)
		}
	})
}

// stop ends the scheduler.
func (r *rig) stop() {
	r.T.Helper()
	r.cancel()
	r.waitEnd()
}

// waitEnd waits until the scheduler has ended without an error.
func (r *rig) waitEnd() {
	r.T.Helper()
	select {
	case err := <-r.ended:
		r.ended = nil
		assert.NoError(r.T, err)
	case <-time.After(patience):
		r.T.Fatalf("the scheduler does not end:\n%s", r.events)
	}
}

// queue hands over a message of a@b, each of whose recipients is "CHANNEL HOST ADDRESS".
func (r *rig) queue(rcpts ...string) (name string) {
	r.T.Helper()
	var list []storetest.Rcpt
	for _, line := range rcpts {
		list = append(list, storetest.Rcpt{Line: line})
	}
	return r.Queue("a@b", list...)
}

// wait waits until n log lines hold all the words.
func (r *rig) wait(n int, words ...string) {
	r.T.Helper()
	if err := r.events.wait(n, words...); err != nil {
		r.T.Fatalf("%v\nnotes:\n%s", err, strings.Join(r.notes(), "\n"))
	}
}

// exactly checks that n log lines hold all the words.
func (r *rig) exactly(n int, words ...string) {
	r.T.Helper()
	got, _ := r.events.count(words...)
	assert.Equal(r.T, got, n, "log lines with %q", words)
}

// never checks that no log line holds all the words.
func (r *rig) never(words ...string) {
	r.T.Helper()
	r.exactly(0, words...)
}

// reports checks how many reports there are.
func (r *rig) reports(n int) {
	r.T.Helper()
	assert.Equal(r.T, len(r.Reports()), n, "reports")
}

// notes returns what the agents noted.
func (r *rig) notes(prefix ...string) []string {
	text, err := os.ReadFile(filepath.Join(r.dir, "notes"))
	if err != nil {
		return nil
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		if len(prefix) == 0 || strings.HasPrefix(line, prefix[0]) {
			list = append(list, strings.TrimSuffix(line, "\n"))
		}
	}
	return list
}

// atGate waits until an agent is at the gate; it goes on when the gate is opened.
func (r *rig) atGate() (open func()) {
	r.T.Helper()
	type opened struct {
		f   *os.File
		err error
	}
	c := make(chan opened, 1)
	go func() {
		f, err := os.OpenFile(filepath.Join(r.dir, "gate"), os.O_WRONLY, 0)
		c <- opened{f, err}
	}()
	select {
	case o := <-c:
		if o.err != nil {
			r.T.Fatal(o.err)
		}
		return func() { _ = o.f.Close() }
	case <-time.After(patience):
		r.T.Fatal("no agent comes to the gate")
		return nil
	}
}

// deliveredOnce checks that each address was delivered exactly once, and that
// nothing is left.
func (r *rig) deliveredOnce(addresses ...string) {
	r.T.Helper()
	count := map[string]int{}
	for _, line := range r.notes("delivered ") {
		count[strings.Fields(line)[2]]++
	}
	for _, a := range addresses {
		assert.Equal(r.T, count[a], 1, "deliveries of %s", a)
	}
	if len(count) != len(addresses) {
		r.T.Errorf("delivered: %v, want %d addresses", count, len(addresses))
	}
	r.empty()
}

func (r *rig) empty() {
	r.T.Helper()
	for _, dir := range []string{"queue", "transport"} {
		if err := filepath.WalkDir(filepath.Join(r.dir, dir), func(path string, d os.DirEntry, err error) error {
			// Of a message that was done with before it came a note stays until the next look.
			if err == nil && !d.IsDir() && !strings.HasPrefix(d.Name(), "look.") {
				r.T.Errorf("left behind: %s", path)
			}
			return err
		}); err != nil {
			r.T.Error(err)
		}
	}
}

// logLines is a log that can be waited for.
type logLines struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
	slog.Handler
}

func newLogLines() *logLines {
	e := &logLines{more: make(chan struct{})}
	e.Handler = slog.NewTextHandler(e, &slog.HandlerOptions{Level: slog.LevelDebug})
	return e
}

func (e *logLines) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, line, _ := strings.Cut(string(b), " ") // without its time
	e.lines = append(e.lines, strings.TrimSuffix(line, "\n"))
	close(e.more)
	e.more = make(chan struct{})
	return len(b), nil
}

func (e *logLines) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.lines, "\n")
}

// count counts the lines that hold all the words; more is closed at the next line.
func (e *logLines) count(words ...string) (n int, more chan struct{}) {
	more, n, _ = e.after(0, words)
	return n, more
}

// after counts from a line on; to is how many lines there are.
func (e *logLines) after(from int, words []string) (more chan struct{}, n, to int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, line := range e.lines[from:] {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return e.more, n, len(e.lines)
}

var errPatience = errors.New("did not happen in time")

func (e *logLines) wait(n int, words ...string) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for got, from := 0, 0; ; {
		more, found, to := e.after(from, words)
		if got, from = got+found, to; got >= n {
			return nil
		}
		select {
		case <-more:
		case <-deadline.C:
			return fmt.Errorf("%w: %d lines with %q, got %d", errPatience, n, words, got)
		}
	}
}

// lineWriter parts what a process writes into lines.
type lineWriter struct {
	to   *logLines
	rest []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		_, _ = w.to.Write(w.rest[:i+1])
		w.rest = w.rest[i+1:]
	}
}

// box is a postoffice with a store.Store on a virtual clock.
type box struct {
	*storetest.Box
	spool *store.Store
}

// boxOf gives a postoffice a store that works by a scheduler.conf.
func boxOf(t testing.TB, in *storetest.Box, conf string) *box {
	t.Helper()
	b := &box{Box: in}
	b.spool = store.New(&store.Env{PostOffice: b.PO, Conf: mustConf(t, conf), Hostname: "mx.example.org", Postmaster: "postmaster@mx.example.org",
		Now: func() time.Time { return b.Now }, Log: b.Logger()})
	return b
}

// diskBox returns a box on the real file system.
func diskBox(t testing.TB) (*box, string) {
	t.Helper()
	f, dir := storetest.Disk(t)
	return boxOf(t, storetest.New(t, f, 0), storetest.Conf), dir
}

// newStepped makes an engine over real files whose turns the test takes, without agents.
func newStepped(t testing.TB, b *box, dir string, change func(*Config)) *engine {
	t.Helper()
	c := Config{Conf: b.spool.Conf, Dir: dir, Log: b.spool.Log, Look: 15 * time.Second}
	if change != nil {
		change(&c)
	}
	e := newEngine(c, b.PO)
	e.pool = newPool(e.intake.load)
	t.Cleanup(func() {
		e.pool.close()
		e.spool.Ledger.Close()
	})
	e.clock.tick()
	e.suspender.begin()
	return e
}

// turns lets a stepped engine go on until done.
func turns(t *testing.T, e *engine, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		for _, fn := range e.box.take(nil) {
			fn()
		}
		if done() {
			return
		}
		select {
		case <-e.box.wake:
		case <-deadline.C:
			t.Fatal("the engine did not come so far")
		}
	}
}

func (b *box) load(name string) *store.Loaded {
	b.T.Helper()
	l, err := b.spool.Load(name)
	assert.Must(b.T, err)
	return l
}

func mustConf(t testing.TB, text string) *conf.File {
	t.Helper()
	c, err := conf.Parse("scheduler.conf", []byte(text), nil)
	assert.Must(t, err)
	return c
}

// dial connects to the query socket as the owner of the postoffice.
func (r *rig) dial() (*mailq.Client, net.Conn) {
	r.T.Helper()
	r.wait(r.starts, "msg=query-served", postoffice.QuerySocket)
	conn, err := socket.Dial(context.Background(), filepath.Join(r.dir, postoffice.QuerySocket))
	assert.Must(r.T, err)
	r.T.Cleanup(func() { _ = conn.Close() })
	assert.Must(r.T, conn.SetDeadline(time.Now().Add(patience)))
	c, err := mailq.NewClient(conn)
	assert.Must(r.T, err)
	return c, conn
}

// status asks for JSON STATUS.
func (r *rig) status(c *mailq.Client) (s mailq.StatusInfo) {
	r.T.Helper()
	_, err := c.Ask(mailq.Request{Kind: mailq.JSONStatus}, func(line string) error { return json.Unmarshal([]byte(line), &s) })
	assert.Must(r.T, err)
	return s
}
