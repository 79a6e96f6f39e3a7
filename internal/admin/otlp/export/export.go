// Package export follows a postoffice and sends the trace of each message that has ended
// to a collector of OpenTelemetry.
//
// What survives a crash: nothing. Requests that wait to be sent are in memory; a message
// that ends while no exporter runs is not sent, and zmctl trace --otlp still prints it.
//
// Diagnostics: Run does not fail. Trouble of the postoffice is logged and tried again; a
// collector that does not answer is logged, once until it does, and asked again.
package export

import (
	"context"
	"hash/fnv"
	"log/slog"
	"net/http"
	"time"

	"zmailer/internal/admin/view"
)

// Limits of queues and intervals.
const (
	gather    = time.Second // messages that end within it are traced together; the log has caught up after it
	batchMost = 100         // messages in a request
	heldMost  = 200         // requests that wait for a collector; then the oldest is dropped
	firstWait = time.Second // until a collector that has failed is asked again; doubled each time
	lastWait  = time.Minute
	mostWait  = time.Hour   // that a collector may ask for
	again     = time.Second // until events are followed again
)

// Exporter sends traces.
type Exporter struct {
	// Follow emits events until ctx is done.
	Follow func(ctx context.Context, emit func(*view.Event) error) error
	// Trace makes the body of a request about messages; empty if nothing is known of them.
	// What it could not read is its error, beside the body.
	Trace func(ctx context.Context, ids []string) ([]byte, error)

	Endpoint string
	Header   http.Header
	Client   *http.Client
	Percent  int // of the messages, by their spool ID
	Log      *slog.Logger

	held    [][]byte
	dropped int
	failing bool
	wait    time.Duration
}

// Run follows until ctx is done; messages that have ended by then are sent.
func (e *Exporter) Run(ctx context.Context) {
	ended := make(chan string, 10*batchMost)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		e.follow(ctx, ended)
	}()
	batch := newTimer()
	retry := newTimer()
	defer batch.Stop()
	defer retry.Stop()
	var ids []string
	for {
		select {
		case id := <-ended:
			if ids = append(ids, id); len(ids) == 1 {
				batch.Reset(gather)
			}
			if len(ids) < batchMost {
				continue
			}
			// They ended just now, and their lines may not be in the log yet: wait all the same.
			select {
			case <-batch.C:
			case <-ctx.Done():
			}
		case <-batch.C:
		case <-retry.C:
			e.sendHeld(ctx, retry)
			continue
		case <-followed:
			for len(ended) > 0 {
				ids = append(ids, <-ended)
			}
			e.last(ctx, ids)
			return
		}
		if e.trace(ctx, ids) {
			ids = nil
		}
		if e.wait == 0 { // else retry will
			e.sendHeld(ctx, retry)
		}
	}
}

// newTimer returns a timer that does not run.
func newTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// last sends the rest at the end, once.
func (e *Exporter) last(ctx context.Context, ids []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	traced := e.trace(ctx, ids)
	e.sendHeld(ctx, nil)
	n := len(e.held)
	if !traced {
		n++
	}
	if n > 0 {
		e.Log.Warn("export-dropped", "requests", n, "reason", "the end of the program")
	}
}

// follow passes on the spool IDs of messages that end, until ctx is done.
func (e *Exporter) follow(ctx context.Context, ended chan<- string) {
	for {
		err := e.Follow(ctx, func(v *view.Event) error {
			if v.Event == "finished" && v.By == "ledger" && e.chosen(v.ID) {
				ended <- v.ID // Run takes it until follow has ended
			}
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		e.Log.Warn("export-trouble", "reason", err)
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

// chosen takes a part of the messages; each message, whenever it ends, is always taken or
// always left.
func (e *Exporter) chosen(id string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // it never fails
	return int(h.Sum32()%100) < e.Percent
}

// trace has a request made for messages, and keeps it. It reports whether it could; if not,
// ctx is done.
func (e *Exporter) trace(ctx context.Context, ids []string) bool {
	if len(ids) == 0 {
		return true
	}
	body, err := e.Trace(ctx, ids)
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		e.Log.Warn("export-trouble", "reason", err)
	}
	if len(body) == 0 {
		return true
	}
	if e.held = append(e.held, body); len(e.held) > heldMost {
		e.held = e.held[1:]
		e.dropped++
	}
	return true
}
