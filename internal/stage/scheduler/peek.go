package scheduler

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

// peeked is what a specification asks for, as somebody sees it who only looks.
type peeked struct {
	id     postoffice.SpoolID
	sender string
	origin thread.Origin
	away   time.Duration
	open   []Waiting // by channel and host
	// Recipients without a thread: those that the scheduler ends at once, and those that
	// wait for something else than an agent.
	ending, aside int
	// failed is when hosts failed that are in trouble, for each recipient that told of it.
	failed []hostFailure
}

// hostFailure is a time at which a host failed.
type hostFailure struct {
	host string // channel/host
	at   time.Time
}

// peek reads a specification and changes nothing: it opens files for reading, takes no
// lock and mends nothing. nil: there is nothing to deliver in it.
func (s *Spool) peek(name string) (*peeked, error) {
	f, err := s.openToLook(name)
	if err != nil || f.noMessage || !f.spec.Complete || len(f.spec.Groups) == 0 {
		return nil, err
	}
	p := &peeked{id: f.id, sender: f.spec.Groups[0].Sender.Address, origin: whoseMail(f.spec), away: f.away()}
	last, now := f.deferrals(), s.Now()
	f.recipients(func(g *workspec.Group, r *workspec.Recipient) {
		r.Tag = f.tagOf(r)
		if final(r.Tag) {
			return
		}
		settings, unserved := s.unserved(r)
		switch {
		case r.Channel == builtin.Error, r.Channel == builtin.Bitbucket:
			p.ending++
		case unserved, f.orders.Waits(r, now):
			p.aside++
		default:
			e := last[r.Offset]
			w := s.waiting(f, g, r, settings, e, false)
			p.open = append(p.open, w)
			if w.HostTries > 0 {
				p.failed = append(p.failed, hostFailure{threadName(w.Channel, w.Host), e.Time})
			}
		}
	})
	slices.SortStableFunc(p.open, func(a, b Waiting) int {
		return strings.Compare(threadName(a.Channel, a.Host), threadName(b.Channel, b.Host))
	})
	return p, nil
}

// threadName is a thread's channel/host; hosts are one whatever their case.
func threadName(channel, host string) string { return channel + "/" + strings.ToLower(host) }

// openToLook is open without the right to write.
func (s *Spool) openToLook(name string) (f *opened, err error) {
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
	f = &opened{Spec: &postoffice.Spec{Name: name, Info: info}}
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
	message, err := s.PostOffice.StatMessage(name)
	if errors.Is(err, postoffice.ErrGone) {
		f.noMessage = true
		return f, nil
	}
	f.id = postoffice.IDOf(message)
	return f, err
}
