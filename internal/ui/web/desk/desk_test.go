package desk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// known is a side that knows something.
type known struct {
	text    string
	blocked chan struct{} // closed when a question waits until nobody asks it any more
	given   atomic.Int32
	began   chan struct{} // closed when an order has begun
	slow    chan struct{} // orders take until it is closed
}

func (k *known) Survey(ctx context.Context) (*Survey, error) {
	if k.text == "boom" {
		k.panics()
	}
	if k.blocked != nil {
		close(k.blocked)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &Survey{Messages: 3, Status: &Status{PostOffice: k.text}, Oldest: &Message{ID: "S1", Since: time.Unix(1, 0)}}, nil
}

func (k *known) List(_ context.Context, where string, first, most int) (*Listing, error) {
	return &Listing{All: first + most, Problem: where, Messages: []*Message{{Sender: k.text, Recipients: []Recipient{{Address: k.text, Open: true}}}}}, nil
}

func (k *known) Waiting(context.Context) (int, error) { return 0, errors.New("nobody answers") }

func (k *known) Look(_ context.Context, id postoffice.SpoolID) (*Look, error) {
	return nil, fmt.Errorf("message %s: %w", id, ErrNotFound)
}

func (k *known) panics() { panic("boom " + k.text) }

func (k *known) Threads(context.Context) ([]mailq.ThreadInfo, error) {
	return []mailq.ThreadInfo{{Channel: "smtp", Host: k.text}}, nil
}

func (k *known) Thread(_ context.Context, channel, host string) (*Thread, error) {
	return &Thread{State: channel + "/" + host}, nil
}

func (k *known) Orders(_ context.Context, most int) ([]Order, error) { return make([]Order, most), nil }

func (k *known) Order(_ context.Context, id postoffice.OperationID) (*Order, error) {
	return &Order{ID: string(id)}, nil
}

func (k *known) Try(_ context.Context, c Command) (string, error) { return c.Verb + c.Reason, nil }

func (k *known) Give(_ context.Context, who string, c Command) (*Given, error) {
	if k.slow != nil {
		close(k.began)
		<-k.slow
	}
	k.given.Add(1)
	return &Given{Order: who, Lines: c.IDs}, nil
}

func (k *known) Undo(_ context.Context, who string, id postoffice.OperationID) (string, error) {
	return who + string(id), errors.New("it was undone")
}

// between is a Client of a side that serves, and what tells that it has ended.
func between(t *testing.T, k *known, orders Orderer) (*Client, chan error) {
	t.Helper()
	ended := make(chan error, 10)
	c := NewClient(func() (io.ReadWriteCloser, error) {
		ours, theirs := net.Pipe()
		go func() {
			err := Serve(context.WithoutCancel(t.Context()), theirs, theirs, k, orders)
			ended <- errors.Join(err, theirs.Close())
		}()
		return ours, nil
	})
	t.Cleanup(func() { c.Close() })
	return c, ended
}

// nasty may stand wherever a stranger has written.
const nasty = "\"\n{\"n\":1}\n\u202e</script>\x01"

func TestAnswersAreThoseOfTheOtherSide(t *testing.T) {
	k := &known{text: nasty}
	c, _ := between(t, k, k)
	ctx := t.Context()
	if v, err := c.Survey(ctx); err != nil || v.Messages != 3 || v.Status.PostOffice != nasty || !v.Oldest.Since.Equal(time.Unix(1, 0)) {
		t.Errorf("survey: got %+v, %v", v, err)
	}
	if v, err := c.List(ctx, nasty, 100, 7); err != nil || v.All != 107 || v.Problem != nasty || v.Messages[0].Recipients[0].Address != nasty {
		t.Errorf("list: got %+v, %v", v, err)
	}
	if v, err := c.Threads(ctx); err != nil || len(v) != 1 || v[0].Host != nasty {
		t.Errorf("threads: got %+v, %v", v, err)
	}
	if v, err := c.Thread(ctx, "smtp", "a.example"); err != nil || v.State != "smtp/a.example" {
		t.Errorf("thread: got %+v, %v", v, err)
	}
	if v, err := c.Orders(ctx, 5); err != nil || len(v) != 5 {
		t.Errorf("orders: got %+v, %v", v, err)
	}
	if v, err := c.Order(ctx, "x"); err != nil || v.ID != "x" {
		t.Errorf("order: got %+v, %v", v, err)
	}
	if v, err := c.Try(ctx, Command{Verb: "hold", Reason: nasty}); err != nil || v != "hold"+nasty {
		t.Errorf("try: got %q, %v", v, err)
	}
	if v, err := c.Give(ctx, "web:anna", Command{IDs: []string{"S1", "S2"}}); err != nil || v.Order != "web:anna" || len(v.Lines) != 2 {
		t.Errorf("give: got %+v, %v", v, err)
	}
	if _, err := c.Waiting(ctx); err == nil || err.Error() != "nobody answers" {
		t.Errorf("waiting: got %v", err)
	}
	if v, err := c.Undo(ctx, "web", "y"); v != "weby" || err == nil || err.Error() != "it was undone" {
		t.Errorf("a value beside an error: got %q, %v", v, err)
	}
	if _, err := c.Look(ctx, postoffice.SpoolID{Ino: 1, MTime: 1}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "message S") {
		t.Errorf("what is not there: got %v", err)
	}
}

func TestNoOrdersAreTakenForReadersAlone(t *testing.T) {
	k := &known{}
	c, _ := between(t, k, nil)
	_, err := c.Give(t.Context(), "web", Command{Verb: "remove"})
	_, undo := c.Undo(t.Context(), "web", "x")
	_, try := c.Try(t.Context(), Command{})
	if err == nil || undo == nil || try == nil || k.given.Load() > 0 {
		t.Errorf("got %v, %v, %v", err, undo, try)
	}
}

// Many questions and long answers, over a pipe that keeps nothing: neither side waits for
// the other with what it holds.
func TestManyAskAtOnce(t *testing.T) {
	k := &known{text: strings.Repeat("x", 100000)}
	c, _ := between(t, k, k)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if v, err := c.List(t.Context(), "", 0, 1); err != nil || len(v.Messages[0].Sender) != 100000 {
				t.Errorf("got %v", err)
			}
		})
	}
	all.Wait()
}

func TestWhoAsksNoMoreIsNotAnswered(t *testing.T) {
	k := &known{blocked: make(chan struct{})}
	c, ended := between(t, k, k)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-k.blocked
		cancel()
	}()
	if _, err := c.Survey(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil { // it would wait for the question
		t.Errorf("got %v", err)
	}
}

// A child that dies costs what was being asked, not what is asked then; and an order that
// is being given is finished by one that nobody asks any more.
func TestNextQuestionStartsAnother(t *testing.T) {
	k := &known{slow: make(chan struct{}), began: make(chan struct{})}
	c, ended := between(t, k, k)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Give(t.Context(), "web", Command{Verb: "hold"})
		failed <- err
	}()
	<-k.began
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, ErrEnded) {
		t.Errorf("got %v", err)
	}
	close(k.slow)
	if err := <-ended; err != nil || k.given.Load() != 1 {
		t.Errorf("got %v, %d given", err, k.given.Load())
	}
	if v, err := c.Thread(t.Context(), "smtp", "x"); err != nil || v.State != "smtp/x" {
		t.Errorf("after it: got %v", err)
	}
}

// What one page asks for must not end what others do.
func TestPanicIsAnAnswer(t *testing.T) {
	k := &known{text: "boom"}
	c, ended := between(t, k, k)
	if _, err := c.Survey(t.Context()); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v", err)
	}
	if v, err := c.Thread(t.Context(), "smtp", "x"); err != nil || v.State != "smtp/x" || len(ended) > 0 {
		t.Errorf("after it: got %+v, %v", v, err)
	}
}
