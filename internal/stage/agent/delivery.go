package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"zmailer/internal/postoffice"
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
	alone := a.enter(base)
	defer a.leave(base)
	d, lines := a.claim(job, alone)
	if d != nil {
		defer d.close()
		a.deliver(ctx, d, to)
		d.finish()
		line := taproto.Line{Kind: taproto.LineAnswer}
		for _, r := range d.Recipients {
			line.Answer = d.answer(r)
			say(&line)
		}
		if d.left {
			lines = a.resync(job, errors.New("a recipient is locked by another process"))
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
	err := d.file.Close()
	if d.Message != nil {
		err = errors.Join(err, d.Message.Close())
	}
	d.text = nil
	d.releaseBuffer()
	if d.small != nil {
		smallBuffers.Put(d.small)
		d.small, d.whole = nil, nil
	}
	if err != nil {
		d.agent.log().Error("disk", "id", d.ID(), "name", d.Job.Name, "reason", err)
	}
}

// Header is the header block to send for a group: whole lines without the empty
// line after them. It must not be changed.
func (d *Delivery) Header(g *workspec.Group) []byte {
	return d.text.Slice(g.HeaderOffset, g.HeaderEnd)
}

// Body reads the body from its offset, with the empty line before it if the message
// has one; each call from the start. It reads the file as it is asked to and holds
// nothing. A message that is all header has no empty line.
func (d *Delivery) Body() io.Reader {
	if d.whole != nil {
		return bytes.NewReader(d.whole[d.body:])
	}
	return io.NewSectionReader(d.Message, d.body, d.BodySize())
}

// BodySize is how many bytes Body reads.
func (d *Delivery) BodySize() int64 { return d.Size - d.body }

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

// ID is the message's spool ID. It takes a system call, and is needed only for log lines,
// which are rare.
func (d *Delivery) ID() postoffice.SpoolID {
	d.idMu.Lock()
	defer d.idMu.Unlock()
	if !d.known && d.Message != nil {
		if info, err := d.Message.Stat(); err == nil {
			d.known, d.id = true, postoffice.IDOf(info)
		}
	}
	return d.id
}

// Sent records that the message is about to be sent for every recipient that has no
// result yet: until Done they are in doubt. After an error the message must not be sent.
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
	return nil
}
