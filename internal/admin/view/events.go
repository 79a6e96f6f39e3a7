package view

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/human"
	"zmailer/internal/wire/mailq"
)

// eventPause is how often the journals are read without a hint that they were written to,
// callPause how often a scheduler that does not answer is called.
const (
	eventPause = time.Second
	callPause  = time.Second
)

// Event is something that happened to a message, from a journal of the ledger or from the
// running scheduler.
type Event struct {
	Time       time.Time        `json:"time"`
	Event      string           `json:"event"`
	By         string           `json:"by,omitempty"` // "ledger": a journal has it
	ID         string           `json:"id,omitempty"`
	Rcpt       string           `json:"rcpt,omitempty"`
	Channel    string           `json:"channel,omitempty"`
	Host       string           `json:"host,omitempty"`
	Status     string           `json:"status,omitempty"`
	Reply      string           `json:"reply,omitempty"`
	Who        string           `json:"who,omitempty"`
	Reason     string           `json:"reason,omitempty"`
	Why        string           `json:"why,omitempty"`
	Recipients int64            `json:"recipients,omitempty"`
	Ends       *ledger.Outcomes `json:"ends,omitempty"`
	Count      uint64           `json:"count,omitempty"` // of lost ones

	Raw string `json:"-"` // the scheduler's line, as it came; "" of a journal's
}

// Bad reports whether a message has ended badly for one of its recipients at least.
func (e *Event) Bad() bool {
	return e.Ends != nil && e.Ends.Failed+e.Ends.Silent+e.Ends.Expired+e.Ends.Gone+e.Ends.Unknown > 0
}

// EventStream reads events.
type EventStream struct {
	PO  *postoffice.PostOffice
	Dir string
	// Emit takes each event, one at a time; an error ends the stream.
	Emit func(*Event) error
	// Silent is called when the scheduler does not answer, once until it does.
	Silent func()

	mu sync.Mutex // held while Emit runs
}

// Past emits what the journals hold.
func (s *EventStream) Past() error {
	tail := ledger.NewTail(s.PO, true)
	defer tail.Close()
	return tail.Read(s.journal)
}

// emitError is an error of Emit, which ends a stream while other errors do not.
type emitError struct{ err error }

func (e *emitError) Error() string { return e.err.Error() }
func (e *emitError) Unwrap() error { return e.err }

// Follow emits what happens from now on, until ctx is done or Emit fails.
func (s *EventStream) Follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tail := ledger.NewTail(s.PO, false)
	defer tail.Close()
	if err := tail.Read(s.journal); err != nil {
		return err
	}
	var both sync.WaitGroup
	both.Go(func() { s.listen(ctx, cancel) })
	written := watch.Written(ctx, filepath.Join(s.Dir, postoffice.Ledger))
	tick := time.NewTicker(eventPause)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case <-written:
			err = tail.Read(s.journal)
			continue
		case <-tick.C:
			err = tail.Read(s.journal)
			continue
		case <-ctx.Done():
		}
		if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
			err = nil
		}
		break
	}
	cancel(nil)
	both.Wait()
	return err
}

// listen emits the scheduler's events, and calls it again when it has ended.
func (s *EventStream) listen(ctx context.Context, cancel context.CancelCauseFunc) {
	silent := false
	for ctx.Err() == nil {
		a, err := CallScheduler(ctx, s.Dir)
		if err == nil {
			silent = false
			stop := context.AfterFunc(ctx, a.Close)
			_, err = a.Ask(mailq.Request{Kind: mailq.JSONEvents}, s.scheduler)
			stop()
			a.Close()
		}
		var unwritten *emitError
		if errors.As(err, &unwritten) {
			cancel(err)
			return
		}
		if !silent && ctx.Err() == nil && s.Silent != nil {
			s.Silent()
		}
		silent = true
		again := time.NewTimer(callPause)
		select {
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// scheduler takes a line of the scheduler. What the journal has too is left to it.
func (s *EventStream) scheduler(line string) error {
	var e Event
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		e = Event{Time: time.Now(), Event: "unreadable", Reason: human.Cut(line, 100)}
	}
	if e.Event == "routed" || e.Event == "finished" {
		return nil
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Raw = line
	return s.emit(&e)
}

func (s *EventStream) journal(l ledger.Line) error {
	e := Event{Time: time.UnixMilli(l.Time).UTC(), By: "ledger", ID: l.ID.String(), Recipients: l.N, Why: l.Why}
	switch l.Verb {
	case ledger.In:
		e.Event = "spooled"
	case ledger.Routed:
		if !l.Entered {
			// The program that accepted it could not write into the ledger: the ID has the time.
			if err := s.emit(&Event{Time: l.ID.Time().UTC(), By: "ledger", Event: "spooled", ID: e.ID}); err != nil {
				return err
			}
		}
		e.Event = l.Verb.String()
	case ledger.Found, ledger.Moved, ledger.Gone, ledger.Unknown:
		e.Event = l.Verb.String()
	case ledger.Done, ledger.Half:
		e.Event, e.Ends, e.Recipients = "finished", &l.End, l.End.Total()
	default:
		return nil // of processes
	}
	return s.emit(&e)
}

func (s *EventStream) emit(e *Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Emit(e); err != nil {
		return &emitError{err}
	}
	return nil
}
