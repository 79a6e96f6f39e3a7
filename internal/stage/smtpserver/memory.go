package smtpserver

import (
	"log/slog"
	"sync/atomic"

	"zmailer/internal/run/logging"
)

// memory bounds what all transactions together keep of their recipients (SMTPMEMORY). What
// else a connection needs is constant, and SMTPCONNECTIONS bounds it.
type memory struct {
	most    atomic.Int64 // bytes; 0: no limit
	log     *slog.Logger
	used    atomic.Int64
	trouble logging.Trouble
	short   atomic.Bool // trouble has begun
}

// take asks for n bytes and reports whether there are so many. A fifth is for reserved
// transactions.
func (m *memory) take(n int64, reserved bool) bool {
	limit := m.most.Load()
	most := limit
	if !reserved {
		most -= most / 5
	}
	if used := m.used.Add(n); limit > 0 && used > most {
		m.used.Add(-n)
		return false
	}
	return true
}

// give returns n bytes. A shortage is over when half of the memory is free, so that one that
// comes and goes is logged once.
func (m *memory) give(n int64) {
	if m.used.Add(-n) < m.most.Load()/2 && m.short.CompareAndSwap(true, false) {
		m.trouble.End(m.log, "memory-recovered")
	}
}

// refused logs that a transaction did not get what it asked for.
func (m *memory) refused(client string) {
	m.short.Store(true)
	m.trouble.Begin(m.log, "memory-trouble", "limit", m.most.Load(), "client", client,
		"advice", "recipients are deferred; see SMTPMEMORY")
}
