package desk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"zmailer/internal/postoffice"
)

// question is a line from the pages; answer is one to them, with the same number.
type question struct {
	N    uint64 `json:"n"`
	Ask  string `json:"ask"` // "" : nobody waits for the answer any more
	Args args   `json:"args"`
}

// args are what a question is about; each has some of them.
type args struct {
	ID      string   `json:"id,omitempty"`
	Where   string   `json:"where,omitempty"`
	First   int      `json:"first,omitempty"`
	Most    int      `json:"most,omitempty"`
	Channel string   `json:"channel,omitempty"`
	Host    string   `json:"host,omitempty"`
	Who     string   `json:"who,omitempty"`
	Command *Command `json:"command,omitempty"`
}

type answer struct {
	N     uint64          `json:"n"`
	Value json.RawMessage `json:"value,omitempty"`
	Error string          `json:"error,omitempty"`
	Gone  bool            `json:"gone,omitempty"` // ErrNotFound
}

// Serve answers the questions of in on out until in ends, and then waits for orders that
// are being given. orders may be nil: then none is taken.
func Serve(ctx context.Context, in io.Reader, out io.Writer, source Source, orders Orderer) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{source: source, orders: orders, out: json.NewEncoder(out), asked: map[uint64]context.CancelFunc{}}
	defer s.all.Wait()
	defer cancel()
	lines := json.NewDecoder(in)
	for {
		var q question
		err := lines.Decode(&q)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil // who asks has ended
		}
		if err != nil {
			return fmt.Errorf("read a question: %w", err)
		}
		if q.Ask == "" {
			s.forget(q.N)
			continue
		}
		s.begin(ctx, &q)
	}
}

// server is the side that knows.
type server struct {
	source Source
	orders Orderer
	all    sync.WaitGroup

	// writing is not mu: what is blocked in writing must not keep questions from being read.
	writing sync.Mutex
	out     *json.Encoder

	mu    sync.Mutex
	asked map[uint64]context.CancelFunc
}

// begin answers a question in a goroutine of its own.
func (s *server) begin(ctx context.Context, q *question) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.asked[q.N] = cancel
	s.mu.Unlock()
	s.all.Go(func() {
		defer s.forget(q.N)
		value, err := s.survive(ctx, q)
		a := answer{N: q.N}
		if err != nil {
			a.Error, a.Gone = err.Error(), errors.Is(err, ErrNotFound)
		}
		text, err := json.Marshal(value)
		if err != nil {
			a.Error = err.Error()
		}
		a.Value = text
		s.writing.Lock()
		defer s.writing.Unlock()
		// Who does not read it has ended: Serve sees that, too.
		_ = s.out.Encode(&a)
	})
}

func (s *server) forget(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.asked[n]; cancel != nil {
		cancel()
		delete(s.asked, n)
	}
}

// survive answers; a question that makes us panic must not end what others asked for.
func (s *server) survive(ctx context.Context, q *question) (value any, err error) {
	defer func() {
		if r := recover(); r != nil {
			debug.PrintStack() // on standard error, which is the log
			value, err = nil, fmt.Errorf("answer %q: the program failed, and its log tells where: %v", q.Ask, r)
		}
	}()
	return s.answer(ctx, q)
}

// answer asks who knows. A value may come beside an error.
func (s *server) answer(ctx context.Context, q *question) (any, error) {
	a := &q.Args
	switch q.Ask {
	case "survey":
		return s.source.Survey(ctx)
	case "list":
		return s.source.List(ctx, a.Where, a.First, a.Most)
	case "waiting":
		return s.source.Waiting(ctx)
	case "message":
		id, err := postoffice.ParseSpoolID(a.ID)
		if err != nil {
			return nil, err
		}
		return s.source.Look(ctx, id)
	case "threads":
		return s.source.Threads(ctx)
	case "thread":
		return s.source.Thread(ctx, a.Channel, a.Host)
	case "orders":
		return s.source.Orders(ctx, a.Most)
	case "order":
		return s.source.Order(ctx, postoffice.OperationID(a.ID))
	}
	if s.orders == nil {
		return nil, errors.New("no orders are taken here")
	}
	switch q.Ask {
	case "try", "give":
		if a.Command == nil {
			return nil, errors.New("an order without a command")
		}
		if q.Ask == "try" {
			return s.orders.Try(ctx, *a.Command)
		}
		return s.orders.Give(ctx, a.Who, *a.Command)
	case "undo":
		return s.orders.Undo(ctx, a.Who, postoffice.OperationID(a.ID))
	}
	return nil, fmt.Errorf("nobody knows what %q asks", q.Ask)
}
