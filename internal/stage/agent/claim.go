package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// claim opens a job's files and locks the recipients that are to be delivered. With
// a nil Delivery the lines are the whole answer.
func (a *Agent) claim(job taproto.Job, alone bool) (*Delivery, []taproto.Line) {
	if !fs.ValidPath(job.Name) {
		return nil, a.resync(job, errors.New("not a name below transport/"))
	}
	file, err := a.PostOffice.Queue.Open(job.Name)
	if err != nil {
		return nil, a.resync(job, err)
	}
	d := &Delivery{reading: reading{Job: job, agent: a, file: file}}
	lines, err := a.lockRecipients(d, alone)
	if err != nil {
		lines = a.resync(job, err)
	}
	if err != nil || lines != nil {
		d.close()
		return nil, lines
	}
	return d, nil
}

// resync asks the scheduler to read the file again.
func (a *Agent) resync(job taproto.Job, err error) []taproto.Line {
	if err != nil {
		a.log().Warn("resync", "name", job.Name, "host", job.Host, "reason", err)
	}
	return []taproto.Line{{Kind: taproto.LineResync, Name: job.Name}}
}

// lockRecipients reads and locks under the specification's flock, so that no two agents
// lock one recipient. If it returns lines, they are the whole answer to the job.
func (a *Agent) lockRecipients(d *Delivery, alone bool) ([]taproto.Line, error) {
	if err := d.file.Lock(); err != nil {
		return nil, err
	}
	defer func() {
		if err := d.file.Unlock(); err != nil {
			a.log().Error("disk", "name", d.Job.Name, "reason", err)
		}
	}()
	doubts, err := d.readAndChoose(alone)
	if err != nil {
		return nil, err
	}
	if len(d.Recipients) == 0 {
		return a.resync(d.Job, nil), nil
	}
	if err := d.open(d.file, d.Job.Name, d.Spec.BodyOffset); err != nil {
		if errors.Is(err, postoffice.ErrGone) {
			return nil, err
		}
		return d.refuse(err), nil
	}
	if err := d.lock(doubts); err != nil {
		return d.refuse(err), nil
	}
	d.trim()
	return nil, nil
}

// reading is what was read of a specification, and the recipients that were chosen by it.
type reading struct {
	Job        taproto.Job
	Spec       *workspec.Spec
	Recipients []*Recipient // in the order of the file; a Recipient names its Group

	agent  *Agent
	file   *postoffice.Spec
	text   *workspec.Partial // what was read of the specification; see trim
	buffer *[]byte           // whose memory that is; nil: its own
	left   bool              // a recipient of this host is locked by another process
	dead   []int             // owners that were found dead
	end    int64             // of what was read of the specification
	some   bool              // not the whole of it was
}

// readAndChoose reads the specification and chooses recipients, again if a part of it was
// not enough.
func (d *reading) readAndChoose(alone bool) ([]workspec.Event, error) {
	d.buffer = specBuffers.Get().(*[]byte)
	for {
		if err := d.read(); err != nil {
			return nil, err
		}
		dead := len(d.dead)
		doubts := d.choose(alone)
		switch {
		case len(d.Recipients) == 0 && !d.left && d.some:
			// An edit in place may have moved a recipient to this host.
			d.agent.indexes.drop(d.file)
			continue
		case len(d.dead) > dead:
			// The lock owner may have died since the file was read, and have sent meanwhile.
			grown, err := d.grown()
			if err != nil {
				return nil, err
			}
			if grown {
				continue
			}
		}
		return doubts, nil
	}
}

// read reads and parses the specification; of one that is indexed, only the lines about
// this job.
func (d *reading) read() error {
	d.some = false
	ok, valid := d.readSome()
	if ok {
		return d.checkName()
	}
	raw, err := d.file.ReadInto(*d.buffer)
	if err != nil {
		return err
	}
	*d.buffer, d.end = raw, int64(len(raw))
	d.text = workspec.Whole(raw, 0)
	others := false
	if d.Spec, err = workspec.ParseOnly(raw, d.agent.wants(d.Job.Host, &others)); err != nil {
		return fmt.Errorf("read specification %s: %w", d.Job.Name, err)
	}
	if !d.Spec.Complete {
		return fmt.Errorf("read specification %s: its writer did not finish it", d.Job.Name)
	}
	if others && len(raw) >= leastIndexed && !valid {
		d.agent.indexes.make(d.file, raw, d.Spec)
	}
	return d.checkName()
}

// checkName checks that the file still has its name, if a line in it announces that a copy
// with a shorter history may replace it, which may have happened while we waited for the
// lock.
func (d *reading) checkName() error {
	if !d.Spec.Superseded() {
		return nil
	}
	replaced, err := d.file.Replaced()
	if err == nil && replaced {
		err = fmt.Errorf("read specification %s: %w", d.Job.Name, postoffice.ErrReplaced)
	}
	return err
}

// wants selects this agent's recipients for a host, whatever their tags: the others of a
// very long list are not even parsed. nil: all of them. It sets others if the agent will
// get further jobs of this file.
func (a *Agent) wants(host string, others *bool) func(offset int64, channel, host []byte) bool {
	if host == "" && len(a.Channels) == 0 {
		return nil
	}
	want := []byte(host)
	return func(_ int64, channel, host []byte) bool {
		mine := len(a.Channels) == 0 || slices.ContainsFunc(a.Channels, func(c string) bool { return c == string(channel) })
		here := len(want) == 0 || bytes.EqualFold(want, host)
		*others = *others || mine && !here
		return mine && here
	}
}

// takes reports whether a recipient is one of this agent's for a host and not final.
func (a *Agent) takes(r *workspec.Recipient, host string) bool {
	if r.Tag != workspec.TagToDo && r.Tag != workspec.TagLocked {
		return false
	}
	if len(a.Channels) > 0 && !slices.Contains(a.Channels, r.Channel) {
		return false
	}
	return host == "" || strings.EqualFold(host, r.Host)
}

// holds reports whether a live process has the lock of an owner. A lock of our own on a
// file that no other slot works on is one that we failed to release.
func (a *Agent) holds(owner int, alone bool) bool {
	if owner == a.Owner.Number() {
		return !alone
	}
	alive, err := a.PostOffice.Owners.Alive(owner)
	if err != nil {
		a.log().Error("disk", "reason", err)
		return true
	}
	return alive
}

// choose finds the recipients that are to be delivered, and the events that record which
// of them a dead agent may have delivered.
func (d *reading) choose(alone bool) (doubts []workspec.Event) {
	d.Recipients, d.left = nil, false
	doubt, removal, orders := d.Spec.Doubts(), d.Spec.Removal(), d.Spec.Orders()
	var block []Recipient // never grown, so that pointers into it stay good
	for gi := range d.Spec.Groups {
		g := &d.Spec.Groups[gi]
		for ri := range g.Recipients {
			r := &g.Recipients[ri]
			if !d.agent.takes(r, d.Job.Host) || removal.Removed(r) || orders.Waits(r, d.agent.now()) {
				continue
			}
			if r.Tag == workspec.TagLocked && !d.torn(r) {
				if d.agent.holds(r.Owner, alone) {
					d.left = true
					continue
				}
				if !slices.Contains(d.dead, r.Owner) {
					d.dead = append(d.dead, r.Owner)
				}
			}
			if len(block) == cap(block) {
				block = make([]Recipient, 0, min(2*cap(block)+1, 255))
			}
			block = append(block, Recipient{Recipient: r, Group: g, Sent: doubt.Sent(r)})
			d.Recipients = append(d.Recipients, &block[len(block)-1])
			switch owner := doubt.About(r); {
			case owner == 0:
			case !d.agent.Settles:
				doubts = append(doubts, d.agent.doubt(r.Offset, strconv.Itoa(owner)))
			case r.Tag == workspec.TagLocked && r.Owner == owner:
				doubts = append(doubts, d.agent.taken(r.Offset, owner))
			}
		}
	}
	return doubts
}

// maxUnused is how much of a specification may be kept that is not needed any more. Bytes.
const maxUnused = 256 << 10

// trim frees a large specification except for its header blocks.
func (d *reading) trim() {
	if d.text.Len() <= maxUnused {
		return
	}
	from, to := d.Recipients[0].Group.HeaderOffset, int64(0)
	for _, r := range d.Recipients {
		from, to = min(from, r.Group.HeaderOffset), max(to, r.Group.HeaderEnd)
	}
	headers := d.text.Slice(from, to)
	if headers == nil || d.text.Len()-len(headers) <= maxUnused {
		return
	}
	d.text = workspec.Whole(bytes.Clone(headers), from)
	d.releaseBuffer()
}

// specBuffers hold what was read of specifications.
var specBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxBuffer is how large a buffer is kept. Bytes.
const maxBuffer = 1 << 20

// releaseBuffer returns the buffer that the specification was read into.
func (d *reading) releaseBuffer() {
	if d.buffer != nil && cap(*d.buffer) <= maxBuffer {
		specBuffers.Put(d.buffer)
	}
	d.buffer = nil
}

// torn reports whether a crash left only the start of a lock: the owner is aligned to the
// right of its six bytes, so a blank at their end means that its number is cut short.
func (d *reading) torn(r *workspec.Recipient) bool {
	return d.Spec.Format&workspec.FormatPID != 0 && r.Owner != 0 && d.text.Slice(r.Offset, r.Offset+8)[7] == ' '
}

// address returns the address of the locked recipient at an offset.
func (d *reading) address(offset int64) string {
	for _, r := range d.Recipients {
		if r.Offset == offset {
			return r.Address
		}
	}
	return ""
}

// refuse defers all recipients because of a local error.
func (d *Delivery) refuse(err error) []taproto.Line {
	d.agent.log().Error("disk", "id", d.ID(), "name", d.Job.Name, "host", d.Job.Host, "reason", err)
	var lines []taproto.Line
	for _, r := range d.Recipients {
		r.result = r.complete(Result{Outcome: status.Deferred, Code: status.SystemTrouble, Reply: err.Error()})
		lines = append(lines, taproto.Line{Kind: taproto.LineAnswer, Answer: d.agent.answer(d.Spec.Message, r)})
	}
	return lines
}
