package desk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// Client asks the other side. It is a Source and an Orderer.
type Client struct {
	start func() (io.ReadWriteCloser, error)

	mu   sync.Mutex
	line *connection // nil: there was none yet
}

// NewClient makes a Client. start starts the other side, and again after it has ended;
// closing what it gives lets that end. If its two directions are closed apart, CloseRead
// closes that of answers, when there are no more.
func NewClient(start func() (io.ReadWriteCloser, error)) *Client { return &Client{start: start} }

// Close lets the other side end. What is being asked fails.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line == nil {
		return nil
	}
	return c.line.stream.Close()
}

// connection is one life of the other side.
type connection struct {
	stream io.ReadWriteCloser

	// writing is not mu: what is blocked in writing must not keep answers from being read.
	writing sync.Mutex
	out     *json.Encoder

	mu    sync.Mutex
	n     uint64
	asked map[uint64]chan answer
	ended bool
}

// open gives the connection, a new one if the last has ended.
func (c *Client) open() (*connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line != nil && !c.line.over() {
		return c.line, nil
	}
	stream, err := c.start()
	if err != nil {
		return nil, err
	}
	line := &connection{stream: stream, out: json.NewEncoder(stream), asked: map[uint64]chan answer{}}
	c.line = line
	go line.read()
	return line, nil
}

// over tells whether the other side has ended.
func (l *connection) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// read gives out answers until there are no more.
func (l *connection) read() {
	lines := json.NewDecoder(l.stream)
	for {
		var a answer
		if lines.Decode(&a) != nil {
			break
		}
		l.mu.Lock()
		to := l.asked[a.N]
		delete(l.asked, a.N)
		l.mu.Unlock()
		if to != nil {
			to <- a
		}
	}
	_ = l.stream.Close() // it has ended or speaks what we do not understand
	if r, ok := l.stream.(interface{ CloseRead() error }); ok {
		_ = r.CloseRead()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, to := range l.asked {
		close(to)
	}
	clear(l.asked)
}

// put writes a question down and says where its answer will come.
func (l *connection) put(what string, a args) (n uint64, to chan answer, err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return 0, nil, ErrEnded
	}
	l.n++
	n, to = l.n, make(chan answer, 1)
	l.asked[n] = to
	l.mu.Unlock()
	if err := l.write(question{N: n, Ask: what, Args: a}); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return n, to, nil
}

func (l *connection) write(q question) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.out.Encode(q)
}

func (l *connection) forget(n uint64) {
	l.mu.Lock()
	delete(l.asked, n)
	l.mu.Unlock()
	// Who does not read it answers no more.
	_ = l.write(question{N: n})
}

// gone is an ErrNotFound in the words of the other side.
type gone struct{ text string }

func (g *gone) Error() string { return g.text }
func (g *gone) Unwrap() error { return ErrNotFound }

// ask asks and reads the answer's value, which may stand beside an error.
func (c *Client) ask(ctx context.Context, what string, a args, value any) error {
	l, err := c.open()
	if err != nil {
		return err
	}
	n, to, err := l.put(what, a)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		l.forget(n)
		return ctx.Err()
	case said, ok := <-to:
		switch {
		case !ok:
			return ErrEnded
		case said.Gone:
			return &gone{said.Error}
		}
		if len(said.Value) > 0 {
			err = json.Unmarshal(said.Value, value)
		}
		if said.Error != "" {
			err = errors.New(said.Error)
		}
		return err
	}
}

// Survey implements Source.
func (c *Client) Survey(ctx context.Context) (*Survey, error) {
	v := &Survey{}
	return v, c.ask(ctx, "survey", args{}, v)
}

// List implements Source.
func (c *Client) List(ctx context.Context, where string, first, most int) (*Listing, error) {
	v := &Listing{}
	return v, c.ask(ctx, "list", args{Where: where, First: first, Most: most}, v)
}

// Waiting implements Source.
func (c *Client) Waiting(ctx context.Context) (n int, err error) {
	err = c.ask(ctx, "waiting", args{}, &n)
	return n, err
}

// Look implements Source.
func (c *Client) Look(ctx context.Context, id postoffice.SpoolID) (*Look, error) {
	v := &Look{}
	return v, c.ask(ctx, "message", args{ID: id.String()}, v)
}

// Threads implements Source.
func (c *Client) Threads(ctx context.Context) (v []mailq.ThreadInfo, err error) {
	err = c.ask(ctx, "threads", args{}, &v)
	return v, err
}

// Thread implements Source.
func (c *Client) Thread(ctx context.Context, channel, host string) (*Thread, error) {
	v := &Thread{}
	return v, c.ask(ctx, "thread", args{Channel: channel, Host: host}, v)
}

// Orders implements Source.
func (c *Client) Orders(ctx context.Context, most int) (v []Order, err error) {
	err = c.ask(ctx, "orders", args{Most: most}, &v)
	return v, err
}

// Order implements Source.
func (c *Client) Order(ctx context.Context, id postoffice.OperationID) (*Order, error) {
	v := &Order{}
	return v, c.ask(ctx, "order", args{ID: string(id)}, v)
}

// Try implements Orderer.
func (c *Client) Try(ctx context.Context, order Command) (text string, err error) {
	err = c.ask(ctx, "try", args{Command: &order}, &text)
	return text, err
}

// Give implements Orderer.
func (c *Client) Give(ctx context.Context, who string, order Command) (*Given, error) {
	v := &Given{}
	return v, c.ask(ctx, "give", args{Who: who, Command: &order}, v)
}

// Undo implements Orderer.
func (c *Client) Undo(ctx context.Context, who string, id postoffice.OperationID) (text string, err error) {
	err = c.ask(ctx, "undo", args{Who: who, ID: string(id)}, &text)
	return text, err
}
