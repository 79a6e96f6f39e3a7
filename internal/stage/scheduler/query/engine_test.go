package query

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
)

// played is an engine with threads, whose turns are measured.
type played struct {
	core     *thread.Core
	messages []*thread.Message
	now      time.Time
	work     chan func()
	turns    []time.Duration
}

func (e *played) Ask(fn func(View))                           { e.work <- func() { fn(e) } }
func (e *played) Kick(_ string, then func(int))               { then(0) }
func (e *played) Now() time.Time                              { return e.now }
func (e *played) Core() *thread.Core                          { return e.core }
func (e *played) Status() Status                              { return Status{Messages: len(e.messages)} }
func (e *played) MessageOfInode(inode uint64) *thread.Message { return e.Message(inode) }
func (e *played) Message(number uint64) *thread.Message {
	if i := slices.IndexFunc(e.messages, func(m *thread.Message) bool { return m.Number == number }); i >= 0 {
		return e.messages[i]
	}
	return nil
}
func (e *played) Messages(_ int, fn func(*thread.Message)) (parts int) {
	for _, m := range e.messages {
		fn(m)
	}
	return 1
}

// run is the engine's goroutine.
func (e *played) run() {
	for fn := range e.work {
		began := time.Now()
		fn()
		e.turns = append(e.turns, time.Since(began))
	}
}

// serve makes an engine with many messages, each for the host that a function returns, and
// a server that asks it. stop ends the engine; its turns can be looked at then.
func serve(t testing.TB, many int, hostOf func(i int) string) (q *Server, e *played, stop func()) {
	t.Helper()
	f, err := conf.Parse("scheduler.conf", []byte("smtp/*\n\tcommand=ta\n"), nil)
	assert.Must(t, err)
	e = &played{core: thread.New(rand.New(rand.NewPCG(1, 2))), now: time.Unix(1_800_000_000, 0), work: make(chan func())}
	for i := range many {
		host := hostOf(i)
		m := &thread.Message{Number: uint64(i) + 1, Stamp: e.now.UnixNano(), Open: 1, Total: 1}
		m.SetName(fmt.Sprint(i + 1))
		e.messages = append(e.messages, m)
		s := f.Match("smtp", host)
		e.core.Add(m, e.core.Ring(s.RingKey("smtp", host), s.Policy), "smtp", host, []thread.Recipient{thread.NewRecipient(100, "a@b")},
			thread.History{Attempts: 1, Next: e.now.Add(time.Hour)}, e.now)
	}
	q = newServer(e, Config{Conf: f, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return e.now }})
	var engine sync.WaitGroup
	engine.Go(e.run)
	return q, e, sync.OnceFunc(func() {
		close(e.work)
		engine.Wait()
	})
}

// A listing, and the search for one thread, look at a thousand vertices or threads in a turn
// of the engine and not at more, however many there are.
func TestDel9ListingOfManyMessagesMakesNoTurnLong(t *testing.T) {
	const many = 100_000
	q, e, stop := serve(t, many, func(i int) string {
		if i%2 == 0 {
			return fmt.Sprintf("h%d.example", i%1000)
		}
		return "big.example"
	})
	defer stop()
	rings, sums, _, err := q.rings()
	assert.Must(t, err)
	threads, recipients := 0, 0
	var big threadShot
	for _, r := range rings {
		assert.Must(t, q.each(r, func(s *threadShot) error {
			threads++
			recipients += s.stats.Recipients
			if s.host == "big.example" {
				big = *s
			}
			return nil
		}))
	}
	listed := map[string]bool{}
	thr, _, err := q.find("smtp", "BIG.example")
	if err != nil || thr == nil || thr.Host != "big.example" {
		t.Fatal(thr, err)
	}
	if thr, _, err := q.find("smtp", "none.example"); thr != nil || err != nil {
		t.Errorf("got %v, %v", thr, err)
	}
	assert.Must(t, q.messages(thr, func(m *threadMessage) error {
		listed[m.name] = true
		return nil
	}))
	if sums.Threads != 501 || threads != 501 || recipients != many || big.stats.Recipients != many/2 || len(listed) != many/2 {
		t.Errorf("got %d threads, %d recipients, %d of the big one", threads, recipients, len(listed))
	}
	if stop(); q.most > askedAtOnce || len(e.turns) < many/askedAtOnce {
		t.Errorf("%d vertices in one turn, in %d turns", q.most, len(e.turns))
	}
}

// An ETRN looks at a thousand threads in a turn of the engine.
func TestDel9WalkIsMadeOfShortParts(t *testing.T) {
	const many = 20 * askedAtOnce
	_, e, stop := serve(t, many, func(i int) string { return fmt.Sprintf("h%d.example", i) })
	defer stop()
	w := NewWalk(e.core)
	seen, parts := 0, 0
	for done := false; !done; parts++ {
		var n int
		if n, done = w.Part(func(*thread.Thread) { seen++ }); n > askedAtOnce {
			t.Errorf("%d threads in one part", n)
		}
	}
	if seen != many || parts < many/askedAtOnce {
		t.Errorf("%d threads in %d parts, want %d", seen, parts, many)
	}
}

// BenchmarkListing lists a million messages to ten thousand hosts: when the first line
// comes, how long all of it takes, and how long the engine was kept each time: the 99th
// percentile, and at most.
func BenchmarkListing(b *testing.B) {
	q, e, stop := serve(b, 1_000_000, func(i int) string { return fmt.Sprintf("h%d.example", i%10_000) })
	defer stop()
	first := time.Duration(0)
	for b.Loop() {
		begin, sent := time.Now(), false
		rings, _, _, err := q.rings()
		assert.Must(b, err)
		for _, r := range rings {
			assert.Must(b, q.each(r, func(*threadShot) error {
				if !sent {
					sent, first = true, max(first, time.Since(begin))
				}
				return nil
			}))
		}
	}
	stop()
	b.ReportMetric(float64(first.Microseconds()), "µs-to-first-line")
	slices.Sort(e.turns)
	b.ReportMetric(float64(e.turns[len(e.turns)*99/100].Microseconds()), "µs-turn-p99")
	b.ReportMetric(float64(e.turns[len(e.turns)-1].Microseconds()), "µs-turn-max")
}
