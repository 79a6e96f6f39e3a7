package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/test/peer"
)

// server is another host: it takes mail for some domains, with random trouble until
// that is switched off.
type server struct {
	*dice
	name  string
	seed  uint64
	books *books
	calm  atomic.Bool
	quiet chan struct{} // closed when it is calm

	mu   sync.Mutex // of dice and sink
	sink *peer.Sink
	addr string
}

// newServer starts one.
func newServer(d *dice, name string, seed uint64, b *books) (*server, error) {
	v := &server{dice: d, name: name, seed: seed, books: b, quiet: make(chan struct{})}
	var err error
	if v.addr, err = ownAddr(); err != nil {
		return nil, err
	}
	return v, v.listen()
}

// listen starts or resumes it, on the same port.
func (v *server) listen() error {
	sink := &peer.Sink{
		Listen: v.addr, Rcpt: v.rcpt, Final: v.final, Cut: v.cut, Stall: v.stall, OnMessage: v.keep,
		Content: func(*peer.Message) io.Writer { return &arrival{} },
	}
	if err := sink.Start(); err != nil {
		return fmt.Errorf("%s: %w", v.name, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sink = sink
	return nil
}

func (v *server) routeHost() string { return v.sink.RouteHost() }

// settle ends all trouble that is not the address's own.
func (v *server) settle() {
	if !v.calm.Swap(true) {
		close(v.quiet)
	}
}

// draw is true in percent of the cases, while there is trouble.
func (v *server) draw(percent int) bool {
	if v.calm.Load() {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.chance(percent)
}

// rcpt decides about a recipient: what its first word says, and some trouble.
func (v *server) rcpt(address string, attempt int) string {
	switch word, _, _ := strings.Cut(address, "."); {
	case word == "perm":
		return "550 5.1.1 no such user here"
	case word == "exp":
		return "451 4.2.1 never today"
	case word == "late" && !v.calm.Load() && attempt < 5:
		return "451 4.7.1 not yet"
	case !v.calm.Load() && attempt < 5 && drawn(v.seed, "rcpt", address, attempt) < 12:
		return "451 4.2.1 come back later"
	case v.draw(2):
		return "421 4.3.2 too busy" // and goes on
	}
	return ""
}

// final decides about a message.
func (v *server) final(m *peer.Message) string {
	switch {
	case strings.HasPrefix(m.Recipients[0], "dot."):
		return "554 5.6.0 we do not like it"
	case v.draw(4):
		return "451 4.3.0 no room now"
	case v.draw(2):
		return "421 4.3.2 too busy" // and goes on
	}
	return ""
}

func (v *server) cut(at string, _ *peer.Message) bool {
	if v.draw(2) {
		v.say("cut at %q", at)
		return true
	}
	return false
}

// stall hangs for a while.
func (v *server) stall(at string, _ *peer.Message) {
	if !v.draw(3) {
		return
	}
	v.mu.Lock()
	length := v.between(50*time.Millisecond, 2*time.Second)
	v.mu.Unlock()
	v.say("hangs at %q for %v", at, length.Round(time.Millisecond))
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-v.quiet:
	}
}

// keep enters what was accepted in the books.
func (v *server) keep(m *peer.Message) {
	a, ok := m.Content.(*arrival)
	if !ok {
		return
	}
	for _, r := range m.Recipients {
		if strings.HasSuffix(r, "@"+backDomain) {
			v.books.reported(r, &a.report)
		} else {
			v.books.arrived(r, a)
		}
	}
}

// outages refuses connections for a while, again and again.
func (v *server) outages(ctx context.Context, d *dice) error {
	for d.pause(ctx, 3*time.Second, 15*time.Second) {
		length := d.between(200*time.Millisecond, 3*time.Second)
		d.say("refuses connections for %v", length.Round(time.Millisecond))
		v.sink.Close()
		wait(ctx, length)
		if err := v.listen(); err != nil {
			return err
		}
	}
	return nil
}

// close ends it.
func (v *server) close() { v.settle(); v.sink.Close() }
