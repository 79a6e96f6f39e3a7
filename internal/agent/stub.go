// Package agent is what every transport agent shares: it talks to the scheduler,
// claims recipients in the work specification, and marks and reports what became
// of them.
package agent

import (
	"context"
	"io"
	"log/slog"
	"time"

	"zmailer/internal/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/status"
	"zmailer/internal/taproto"
	"zmailer/internal/workspec"
)

// Agent is a running transport agent.
type Agent struct {
	PostOffice *postoffice.PostOffice
	Owner      *postoffice.Owner
	Name       string   // for diagnostics: "smtp", "mailbox"
	Channels   []string // the channels it takes recipients of; empty: any
	Log        *slog.Logger
	Now        func() time.Time
}

// Deliverer delivers the recipients of one job: it must give every recipient of d a
// result by d.Delivered, d.Failed or d.Deferred; one without is deferred.
type Deliverer interface {
	Deliver(ctx context.Context, d *Delivery)
}

// Run serves the scheduler on in and out with the given number of slots until in
// ends or ctx is done; running deliveries finish first.
func (a *Agent) Run(ctx context.Context, in io.Reader, out io.Writer, slots int, to Deliverer) error {
	panic("stub")
}

// Do performs one job and returns the lines for the scheduler: an answer for each
// recipient that it locked, or a resync if the file cannot be used or nothing in
// it is open for this host.
func (a *Agent) Do(ctx context.Context, job taproto.Job, to Deliverer) []taproto.Line { panic("stub") }

// Delivery is one job's message and the recipients that this agent has locked.
type Delivery struct {
	Job        taproto.Job
	ID         postoffice.SpoolID
	Spec       *workspec.Spec
	Recipients []*Recipient // one Sender and header block: see Groups
	Message    durable.File // queue/NAME
	Size       int64        // of the message file
}

// Recipient is a locked recipient.
type Recipient struct {
	workspec.Recipient
	Group *workspec.Group
}

// Result is what became of a recipient.
type Result struct {
	Outcome status.Outcome
	Code    status.Code
	Reply   string // last answer, one line: "550 5.1.1 no such user"
	Remote  string // "dns; mx.example.org (192.0.2.1)"
	Text    string // the dialogue, lines parted by \n
	// Host: the trouble is the host's or the network's, not this recipient's: every
	// recipient of the thread waits (deferall). Only with Deferred.
	Host bool
	// After: try no recipient of this host for so long (retryat). Only with Deferred.
	After time.Duration
	// Relayed: the next host took over the sender's notification requests (RFC 3461
	// §4.1), so no success report is owed by us.
	Relayed bool
}

// Header is the header block to send for a group.
func (d *Delivery) Header(g *workspec.Group) []byte { panic("stub") }

// Body reads the body from its offset, with the empty line before it if the message
// has one.
func (d *Delivery) Body() io.Reader { panic("stub") }

// Sent records that the final dot is about to be sent (in doubt until Done).
func (d *Delivery) Sent() error { panic("stub") }

// Done records a recipient's result: tag, diagnostic, answer.
func (d *Delivery) Done(r *Recipient, res Result) { panic("stub") }
