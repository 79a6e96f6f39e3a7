package main

import (
	"net"
	"slices"
	"sync"

	"zmailer/internal/stage/scheduler/agents"
)

// schedulersAtOnce bounds the connections to a launcher; one of them is the scheduler's.
const schedulersAtOnce = 8

// place is one connection with what serves it.
type place struct {
	conn *net.UnixConn
	s    *agents.Launcher
}

// places are those that are served. A silent client, or a scheduler that hangs, must
// not keep the next one waiting: when all are taken, the one that is used least is left,
// the oldest of several.
type places struct {
	mu  sync.Mutex
	all []*place // the oldest first
}

// take makes room for a connection. False: agents run for all that there are.
func (l *places) take(p *place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) >= schedulersAtOnce {
		least, use := 0, agents.Busy
		for i, other := range l.all {
			if u := other.s.Use(); u < use {
				least, use = i, u
			}
		}
		if use == agents.Busy {
			return false
		}
		_ = l.all[least].conn.Close() // what serves it ends
		l.all = slices.Delete(l.all, least, least+1)
	}
	l.all = append(l.all, p)
	return true
}

// leave ends a connection.
func (l *places) leave(p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = p.conn.Close() // it may be already
	if i := slices.Index(l.all, p); i >= 0 {
		l.all = slices.Delete(l.all, i, i+1)
	}
}
