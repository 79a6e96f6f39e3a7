package smtpserver

import (
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// A rollCall finds out whether every listener still accepts: accept(2) is interrupted for
// each, and who goes round says so.
type rollCall struct {
	listeners []*listener
	round     atomic.Uint64 // the last call
	all       func()        // called when everybody has answered it
}

// deadliner is a listener whose Accept can be interrupted.
type deadliner interface{ SetDeadline(t time.Time) error }

func newRollCall(listeners []*listener, all func()) *rollCall {
	r := &rollCall{all: all}
	for _, l := range listeners {
		if _, ok := l.Listener.(deadliner); ok {
			l.calls.Store(r)
			r.listeners = append(r.listeners, l)
		}
	}
	return r
}

// ask begins a call.
func (r *rollCall) ask() {
	r.round.Add(1)
	for _, l := range r.listeners {
		// One that is closed does not answer: it is the end.
		_ = l.Listener.(deadliner).SetDeadline(time.Unix(1, 0))
	}
}

// answers tells an error of Accept that is a call, and answers it.
func (l *listener) answers(err error) bool {
	r := l.calls.Load()
	if r == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	round := r.round.Load()
	if l.Listener.(deadliner).SetDeadline(time.Time{}) != nil {
		return false
	}
	l.answered.Store(round)
	for _, other := range r.listeners {
		if other.answered.Load() < round {
			return true
		}
	}
	r.all()
	return true
}

// addresses are where listeners listen, for people.
func addresses(listeners []*listener) string {
	list := make([]string, len(listeners))
	for i, l := range listeners {
		list[i] = l.Addr().String() + " (" + string(l.role) + ")"
	}
	return strings.Join(list, ", ")
}

var _ deadliner = (*net.TCPListener)(nil)
