// Package answer is the server's side of a helper that is asked by lines on its standard input: it
// writes the answers of many goroutines, a line each, in the order in which they are known.
//
// What survives a crash: nothing.
//
// Diagnostics: Wait returns the error of the output; from then on the context is done, and the server
// reads no more.
package answer

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Server answers. Use New.
type Server struct {
	ctx     context.Context
	cancel  context.CancelFunc
	out     io.Writer
	places  chan struct{}
	working sync.WaitGroup

	mu     sync.Mutex
	failed error
}

// New writes a greeting. most is how many requests are answered at the same time. The context that it
// returns is done when the client is gone, or after Wait.
func New(ctx context.Context, out io.Writer, most int, greeting string) (*Server, context.Context) {
	s := &Server{out: out, places: make(chan struct{}, most)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.Say(greeting)
	return s, s.ctx
}

// Say writes a line.
func (s *Server) Say(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.out, line+"\n"); err != nil && s.failed == nil {
		s.failed = fmt.Errorf("answer: %w", err)
		s.cancel() // the client is gone
	}
}

// Go writes what find returns, in a goroutine, once there is a place for it.
func (s *Server) Go(find func() string) {
	select {
	case s.places <- struct{}{}:
	case <-s.ctx.Done():
		return
	}
	s.working.Go(func() {
		defer func() { <-s.places }()
		s.Say(find())
	})
}

// Wait waits until all requests are answered.
func (s *Server) Wait() error {
	s.working.Wait()
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// maxText bounds what an answer says. Bytes.
const maxText = 400

// Text returns a text as a line may end with it.
func Text(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "")
}
