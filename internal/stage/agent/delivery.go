package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"zmailer/internal/mail/status"
	"zmailer/internal/run/lease"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// Do performs one job and returns the lines for the scheduler: see do.
func (a *Agent) Do(ctx context.Context, job taproto.Job, to Deliverer) (lines []taproto.Line) {
	a.do(ctx, job, to, func(l *taproto.Line) { lines = append(lines, *l) })
	return lines
}

// do performs one job and passes the lines for the scheduler to say: an answer for each
// recipient that it locked, and a resync if the file cannot be used, if no recipient of
// this host is open, or if a live process has locked one. Several goroutines may call it
// at once.
func (a *Agent) do(ctx context.Context, job taproto.Job, to Deliverer, say func(*taproto.Line)) {
	// The file may have been moved to another hash directory and given to us again.
	base := path.Base(job.Name)
	if err := a.Lease.Check(lease.Step); err != nil {
		for _, line := range a.resync(job, err) {
			say(&line)
		}
		return
	}
	alone := a.enter(base)
	defer a.leave(base)
	d, lines := a.claim(job, alone)
	if d != nil {
		defer d.close()
		a.deliver(ctx, d, to)
		d.finish()
		line := taproto.Line{Kind: taproto.LineAnswer}
		for _, r := range d.Recipients {
			if d.lost != nil && r.result.Outcome != status.Delivered {
				continue // the file has no result
			}
			line.Answer = d.agent.answer(d.Spec.Message, r)
			say(&line)
		}
		if d.left {
			lines = a.resync(job, errors.New("a recipient is locked by another process"))
		}
		if d.lost != nil {
			lines = a.resync(job, d.lost)
		}
	}
	for i := range lines {
		say(&lines[i])
	}
}

// deliver calls the Deliverer; one that panics leaves its recipients deferred and
// the agent alive.
func (a *Agent) deliver(ctx context.Context, d *Delivery, to Deliverer) {
	defer func() {
		if p := recover(); p != nil {
			a.log().Error("panic", "id", d.ID(), "name", d.Job.Name, "host", d.Job.Host,
				"reason", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	to.Deliver(ctx, d)
}

// close closes the files and releases the buffers.
func (d *Delivery) close() {
	err := errors.Join(d.file.Close(), d.message.close())
	d.text = nil
	d.releaseBuffer()
	if err != nil {
		d.agent.log().Error("disk", "id", d.ID(), "name", d.Job.Name, "reason", err)
	}
}

// Header returns the header block to send for a group: whole lines without the empty
// line after them. It must not be changed.
func (d *Delivery) Header(g *workspec.Group) []byte {
	return d.text.Slice(g.HeaderOffset, g.HeaderEnd)
}

// appendSent appends a sent event for recipients, by their offsets.
func (d *Delivery) appendSent(b []byte, open []int64, where []workspec.Attr) []byte {
	e := workspec.Event{Time: d.agent.now(), Event: workspec.EventSent,
		Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(d.agent.Owner.Number())}}}
	switch {
	case len(open) == 1:
		e.Recipient = open[0]
	case len(open) <= maxListed:
		list := make([]string, len(open))
		for i, offset := range open {
			list[i] = strconv.FormatInt(offset, 10)
		}
		e.Attrs = append(e.Attrs, workspec.Attr{Key: "rcpts", Value: strings.Join(list, ",")})
	}
	e.Attrs = append(e.Attrs, where...)
	return workspec.AppendEvent(b, &e)
}

// Sent records that the message is about to be sent for every recipient that has no
// result yet: until Done they are in doubt. After an error the message must not be sent: it could
// not be recorded, or this machine has no lease.
func (d *Delivery) Sent() error { return d.SentTo(d.Recipients) }

// SentTo is Sent for some of the recipients, where one delivery takes several
// transactions. where describes how to find out, after a crash, whether it took place.
func (d *Delivery) SentTo(rcpts []*Recipient, where ...workspec.Attr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var open []int64
	for _, r := range rcpts {
		if !r.done {
			open = append(open, r.Offset)
		}
	}
	if len(open) == 0 {
		return nil
	}
	page := d.agent.Lease
	if err := page.Check(lease.Step); err != nil {
		return err // without a mark there is no doubt
	}
	d.lines = d.lines[:0]
	for len(open) > 0 {
		n := len(open)
		if n > maxListed && (len(rcpts) < len(d.Recipients) || d.agent.Settles) {
			// Several events list the recipients, so that they are about these alone: other
			// slots have locked recipients, too.
			n = maxListed
		}
		d.lines = d.appendSent(d.lines, open[:n], where)
		open = open[n:]
	}
	// Crash: a process that is killed after this leaves its lock and this line, so
	// that the doubt is known; a power loss may take both and only repeats.
	if err := d.file.Append(d.lines); err != nil {
		return err
	}
	for _, r := range rcpts {
		r.resent = true
	}
	if page == nil {
		return nil
	}
	// In a cluster the mark is durable before the deadline is read, and that comes last
	// (docs/cluster.md, step 7). Crash: as after Append.
	if err := d.file.Sync(); err != nil {
		return err
	}
	return page.Check(lease.Step)
}
