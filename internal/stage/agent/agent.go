// Package agent is what every transport agent shares: it talks to the scheduler
// (docs/ta-protocol.md), locks recipients in the work specification, and marks and reports
// their results. The Deliverer delivers.
//
// It owns the tags (the byte that has the state) of the recipients it has locked, from the
// lock to the final tag, and the d and h lines that it appends. It never creates, moves or removes a
// file of the postoffice.
//
// What survives a crash: a recipient is locked with this process's owner number before
// anything is sent, so that the locks of a dead agent are recognized and taken over; a
// history line "sent" is in the file before the final dot, so that the next agent knows
// which deliveries are in doubt; a failure's diagnostic is on the disk before the tag
// "failed".
//
// Diagnostics: an error in one message's file is logged and answered by #resync; a disk
// that cannot be written defers recipients; neither ends the agent. Run fails only when it
// cannot talk to the scheduler.
package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/lease"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// Agent is a running transport agent. Its exported fields are set before the first
// call and not changed after.
type Agent struct {
	PostOffice *postoffice.PostOffice
	Owner      *postoffice.Owner
	Name       string           // for diagnostics: "smtp", "mailbox"
	Channels   []string         // the channels it takes recipients of; empty: any
	Log        *slog.Logger     // nil: discarded
	Now        func() time.Time // nil: time.Now
	// Settles is set if the Deliverer can find out by Recipient.Sent whether a delivery in
	// doubt has taken place; it calls InDoubt where it cannot. Else every doubt is recorded
	// before the recipient is delivered again.
	Settles bool
	// Lease is that of this machine in a cluster; nil: it is in none. Past its deadline nothing
	// is sent, and of results only those of delivered recipients are written.
	Lease *lease.Page

	mu     sync.Mutex
	busy   map[string]int // jobs in progress by the specification's name
	locked bool           // it has set locks; a loss of power may restore them

	indexes indexes
}

// Deliverer delivers the recipients of one job. It gives every recipient of d a
// result by d.Done before it returns; one without is deferred.
//
// ctx is not done by an orderly stop: a delivery that has begun ends by itself,
// within its own time limits.
type Deliverer interface {
	Deliver(ctx context.Context, d *Delivery)
}

// Delivery is one job's message and the recipients that this agent has locked. It
// is valid until Deliver returns.
type Delivery struct {
	reading
	message

	mu    sync.Mutex
	lines []byte // scratch
	tags  tags
	lost  error // why there was no lease at the end; nil: there was
}

// Recipient is a locked recipient.
type Recipient struct {
	*workspec.Recipient
	Group *workspec.Group
	// Sent is the last event "sent" without a later result: its agent died and may have
	// delivered. nil: there is none.
	Sent *workspec.Event

	index  int  // in Delivery.Recipients
	beside bool // no other recipient is between it and the one before it
	resent bool // a "sent" of this delivery has followed
	done   bool // it has its result
	marked bool // and the file says so
	result Result
	answer taproto.Word // of a success
}

// Result is the result of one recipient.
type Result struct {
	Outcome status.Outcome
	Code    status.Code
	Reply   string // last answer, one line: "550 5.1.1 no such user"
	Remote  string // "dns; mx.example.org (192.0.2.1)"
	Text    string // the dialogue, lines parted by \n
	// Way is what protected the connection, as KEY=VALUE with blanks between, for the log.
	Way string
	// Host: the cause is the host or the network, not this recipient: every recipient of
	// the thread waits (deferall). Only with Deferred.
	Host bool
	// Uncertain: the message may have been delivered nevertheless and could not be removed
	// again; the next attempt finds out by Recipient.Sent. Only with Deferred.
	Uncertain bool
	// After: try no recipient of this host for so long (retryat). Only with Deferred.
	After time.Duration
	// Relayed: the next host took over the sender's notification requests (RFC 3461
	// §4.1), so no success report is owed by us.
	Relayed bool
	// Action of the success report, if one is owed: dsn.Delivered or dsn.Relayed (RFC
	// 3464 §2.3.3). Empty: relayed on the channels smtp and smtpx, else delivered.
	Action dsn.Action
}

func (a *Agent) log() *slog.Logger {
	if a.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return a.Log
}

func (a *Agent) now() time.Time {
	if a.Now == nil {
		return time.Now()
	}
	return a.Now()
}

// Release returns the owner number at the end of the process. The number's file stays if
// recipients were locked under it: final tags are not synced, so a loss of power may
// restore a lock, and a reader must then find an owner that is dead, not one that never
// existed. The scheduler removes the file when no lock has the number.
func (a *Agent) Release() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.locked {
		return a.Owner.Leave()
	}
	return a.Owner.Release()
}

// noteLocks is called before recipients are locked.
func (a *Agent) noteLocks() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.locked = true
}

// enter counts a job on a specification and reports whether it is the only one of this
// process.
func (a *Agent) enter(name string) (alone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy == nil {
		a.busy = map[string]int{}
	}
	a.busy[name]++
	return a.busy[name] == 1
}

func (a *Agent) leave(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy[name]--; a.busy[name] == 0 {
		delete(a.busy, name)
	}
}
