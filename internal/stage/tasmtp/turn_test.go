package tasmtp

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/run/assert"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/smtpclient"
)

// wanted returns a request for a connection on which nothing is sent.
func wanted(t *testing.T, key poolKey) request {
	return request{key: key, open: func() (*link, *refusal) {
		near, distant := Pipe()
		t.Cleanup(func() { near.Close(); distant.Close() })
		return &link{key: key, conn: smtpclient.New(near, smtpclient.Config{})}, nil
	}}
}

var there = poolKey{channel: "smtp", host: "there.test"}

// A message that waits for a connection has the next one that becomes idle, and one that
// could not be opened leaves its place to those who wait.
func TestWhoWaitsForAConnectionGetsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(time.Hour, 1, 1)
		l, _ := p.get(wanted(t, there))
		got := make(chan *link)
		next := func() {
			l, _ := p.get(wanted(t, there))
			got <- l
		}
		go next()
		synctest.Wait()
		p.release(l)
		if <-got != l {
			t.Error("the waiting message has another connection")
		}
		l.conn.Close()
		p.release(l)
		e := wanted(t, there)
		e.open = func() (*link, *refusal) {
			go next()
			synctest.Wait()
			panic("test")
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			p.get(e)
		}()
		if l := <-got; l == nil {
			t.Error("no connection behind a panic")
		} else {
			p.release(l)
		}
		p.close()
	})
}

// What is known of a server outlives a change of the files tls and credentials.
func TestSlowHostIsKnownWithOtherTerms(t *testing.T) {
	p := newPool(time.Hour, 1, 1)
	p.slow(there)
	other := there
	other.terms.relaxed = true
	if !p.isSlow(other) {
		t.Error("forgotten")
	}
}

// panics is a log that panics on an event.
type panics struct {
	slog.Handler
	on string
}

func (p panics) Enabled(context.Context, slog.Level) bool { return true }

func (p panics) Handle(_ context.Context, r slog.Record) error {
	if r.Message == p.on {
		panic("test")
	}
	return nil
}

// A panic in the middle of a job leaves the pool whole: the connection is given back.
func TestPanicInAJobGivesTheConnectionBack(t *testing.T) {
	_, s := newPair(t, &Sink{Answer: On(".", "HANGUP")}, func(c *Config) { c.Log = slog.New(panics{slog.DiscardHandler, "in-doubt"}) })
	s.one("smtp", "[127.0.0.1]")
	assert.Equal(t, len(s.relay.pool.links), 0, "connections")
}
