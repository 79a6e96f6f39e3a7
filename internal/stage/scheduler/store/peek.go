package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// Peeked is the content of a specification, read without a lock and without changes.
type Peeked struct {
	ID     postoffice.SpoolID
	Sender string
	Origin thread.Origin
	Away   time.Duration
	Open   []Waiting // by channel and host
	// Recipients without a thread: those that end at once, and those that do not wait for an
	// agent.
	Ending, Aside int
	// Failed has the failures of hosts in trouble, by recipient.
	Failed []HostFailure
}

// HostFailure is a time at which a host failed.
type HostFailure struct {
	Host string // channel/host
	At   time.Time
}

// Peek reads a specification without a lock and changes nothing. nil: it has nothing to
// deliver.
func (s *Store) Peek(name string) (*Peeked, error) {
	f, err := s.openToLook(name)
	if err != nil || f.noMessage || !f.spec.Complete || len(f.spec.Groups) == 0 {
		return nil, err
	}
	p := &Peeked{ID: f.id, Sender: f.spec.Groups[0].Sender.Address, Origin: whoseMail(f.spec), Away: f.away()}
	last, now := lastDeferrals(f.spec), s.Now()
	for g, r := range f.spec.All() {
		r.Tag = f.tagOf(r)
		if final(r.Tag) {
			continue
		}
		settings, unserved := s.Unserved(r)
		switch {
		case r.Channel == builtin.Error, r.Channel == builtin.Bitbucket:
			p.Ending++
		case unserved, f.orders.Waits(r, now):
			p.Aside++
		default:
			e := last[r.Offset]
			w := s.waiting(f, g, r, settings, e, false)
			p.Open = append(p.Open, w)
			if w.HostTries > 0 {
				p.Failed = append(p.Failed, HostFailure{ThreadName(w.Channel, w.Host), e.Time})
			}
		}
	}
	slices.SortStableFunc(p.Open, func(a, b Waiting) int {
		return strings.Compare(ThreadName(a.Channel, a.Host), ThreadName(b.Channel, b.Host))
	})
	return p, nil
}

// ThreadName returns a thread's channel/host, with the host in lower case.
func ThreadName(channel, host string) string { return channel + "/" + strings.ToLower(host) }

// openToLook is open for reading only.
func (s *Env) openToLook(name string) (f *work, err error) {
	file, err := s.PostOffice.FS().Open(postoffice.Transport+"/"+name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read specification %s: %w: %w", name, postoffice.ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read specification %s: %w", name, err)
	}
	// Nothing was written.
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err == nil && !info.Mode.IsRegular() {
		err = errors.New("not a regular file")
	}
	f = &work{Spec: &postoffice.Spec{Name: name, Info: info}}
	if err == nil {
		f.raw, err = io.ReadAll(io.NewSectionReader(file, 0, info.Size))
	}
	if err == nil {
		f.spec, err = workspec.Parse(f.raw)
	}
	if err != nil {
		return nil, fmt.Errorf("read specification %s: %w", name, err)
	}
	f.removal, f.orders = f.spec.Removal(), f.spec.Orders()
	message, err := s.PostOffice.Queue.StatMessage(name)
	if errors.Is(err, postoffice.ErrGone) {
		f.noMessage = true
		return f, nil
	}
	f.id = postoffice.IDOf(message)
	return f, err
}

// SenderOf reads the sender of the message with an ID. ErrGone: it is not there any more.
func (s *Store) SenderOf(name string, id postoffice.SpoolID) (string, error) {
	f, err := s.open(name)
	if err != nil {
		return "", err
	}
	defer f.close()
	if f.id != id && !f.noMessage {
		return "", fmt.Errorf("read specification %s: it is another message's: %w", name, postoffice.ErrGone)
	}
	return strings.Clone(senderOf(f.spec)), nil
}

// OpenRecipient is a recipient that is not final, for those who ask what waits.
type OpenRecipient struct {
	Channel, Host, Address string
	Sender                 string // "": the null sender
	Offset                 int64
	Tries                  int
	Next                   time.Time
	Last                   time.Time // of the last attempt
	Answer, Status         string    // of the last deferral
	State                  string    // queued, waiting, running, unserved, held, frozen
	Until                  time.Time // end of a hold
	Cause                  string    // of a freeze
	Accepted, Expires      time.Time
}

// OpenRecipients reads the open recipients of the message with an ID; channel not "": those
// of one thread. There are none if the file is gone, cannot be read, or is another message's.
func (s *Store) OpenRecipients(name string, id postoffice.SpoolID, channel, host string) (list []OpenRecipient) {
	f, err := s.open(name)
	if err != nil {
		return nil
	}
	defer f.close()
	if f.id != id && !f.noMessage {
		return nil
	}
	now := s.Now()
	last, orders := lastDeferrals(f.spec), f.spec.Orders()
	for g, r := range f.spec.All() {
		if final(f.removal.Tag(r)) || channel != "" && (r.Channel != channel || !strings.EqualFold(r.Host, host)) {
			continue
		}
		w := OpenRecipient{Channel: strings.Clone(r.Channel), Host: strings.Clone(r.Host), Address: strings.Clone(r.Address), Sender: strings.Clone(g.Sender.Address),
			Offset: r.Offset, Accepted: f.arrival(), State: "queued"}
		if g.Sender.Channel == builtin.Error {
			w.Sender = ""
		}
		settings, unserved := s.Unserved(r)
		if settings != nil && settings.GiveUp() > 0 {
			w.Expires = f.arrival().Add(f.away() + settings.GiveUp())
		}
		if e := last[r.Offset]; e != nil {
			w.Tries, w.Next, w.Last = int(attrInt(e, "attempt")), nextOf(e, now), e.Time
			w.Answer, w.Status, w.State = strings.Clone(e.Text), strings.Clone(e.Get("status")), "waiting"
		}
		switch {
		case r.Tag == workspec.TagLocked:
			w.State = "running"
		case unserved:
			w.State = "unserved"
		}
		switch o := orders.Of(r.Offset); {
		case o.Freeze != nil:
			w.State, w.Cause, w.Expires = "frozen", strings.Clone(o.Freeze.Get(workspec.KeyCause)), time.Time{}
		case o.Held(now):
			w.State, w.Until = "held", o.Until
		}
		list = append(list, w)
	}
	return list
}
