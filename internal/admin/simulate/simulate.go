// Package simulate predicts when the delivery queue will be empty: it plays a copy of the
// queue on a virtual clock, with the scheduler's own decisions and hosts that are made up
// (docs/simulate.md).
//
// What survives a crash: nothing; the postoffice is only read, without locks.
//
// Diagnostics: Run's error is a *config.Error for a postoffice that cannot be used and for
// a clause of Options.Set, an error of the disk, or that of its context. A specification
// that cannot be read is no error; it is named in Result.Unread.
package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/sim"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// Options are the assumptions of a simulation.
type Options struct {
	Set     string        // clauses that would be, one a line; "": none
	Down    []string      // hosts, or channel/hosts, that never answer
	Up      []string      // that answer from now on, whatever they did before
	Latency time.Duration // of a delivery, half more or less; 0: 500ms
	Until   time.Duration // how far to play; 0: until nothing is left, a year at most
	Seed    uint64
}

// Result is what a simulation has shown.
type Result struct {
	Now          time.Time `json:"now"`
	Messages     int       `json:"messages"`
	Recipients   int       `json:"recipients"`
	EndingAtOnce int       `json:"ending_at_once"` // on channels error and bitbucket
	Aside        int       `json:"aside"`          // held, frozen, without a clause
	Unread       []string  `json:"unread,omitempty"`
	Assumptions  []string  `json:"assumptions"`
	Courses      []*Course `json:"courses"` // as it is, and with Set
}

// Course is one run over the queue.
type Course struct {
	Set       string  `json:"set,omitempty"`
	Delivered int     `json:"delivered"`
	Expired   int     `json:"expired"`
	Left      int     `json:"left"`
	Ended     float64 `json:"ended_after"` // seconds until the last outcome
	Hosts     []*Host `json:"hosts"`
}

// Host is what becomes of a host's mail. Recipients are counted.
type Host struct {
	Host       string  `json:"host"`
	Messages   int     `json:"messages"`
	Recipients int     `json:"recipients"`
	Delivered  int     `json:"delivered"`
	Expired    int     `json:"expired"`
	Left       int     `json:"left"`
	Drained    float64 `json:"drained_after"` // seconds until its last outcome; -1: some are left
	Connects   int     `json:"connects"`
	Trouble    string  `json:"trouble,omitempty"` // what the host has said last
}

// aYear bounds simulations without an end.
const aYear = 366 * 24 * time.Hour

// Run plays a copy of the queue of c's postoffice under the clauses of file. The postoffice
// is only read, and may be in use meanwhile.
func Run(ctx context.Context, c *config.Config, file *conf.File, a Options) (*Result, error) {
	levels, err := c.Int("HASHLEVELS", 0)
	if err != nil {
		return nil, err
	}
	dir := c.PostOffice()
	po, err := postoffice.OpenDir(dir, levels, false)
	if err != nil {
		return nil, &config.Error{File: dir, Reason: "cannot be used as the postoffice", Err: err}
	}
	defer func() {
		if f, ok := po.FS().(io.Closer); ok {
			_ = f.Close() // only the directory's descriptor
		}
	}()
	return play(ctx, po, file, a)
}

func play(ctx context.Context, po *postoffice.PostOffice, file *conf.File, a Options) (*Result, error) {
	now := time.Now()
	s := store.New(&store.Env{PostOffice: po, Conf: file, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)})
	q := &queue{result: &Result{Now: now}, since: map[string]time.Time{}, trouble: map[string]string{}}
	if err := q.read(ctx, s); err != nil {
		return nil, err
	}
	a.Latency = cmp.Or(a.Latency, 500*time.Millisecond)
	list, err := suspension.Read(po)
	if err != nil {
		return nil, err
	}
	for _, x := range list.Active(now) {
		if !x.Accepting {
			q.suspended = append(q.suspended, x)
		}
	}
	q.result.Assumptions = a.assumptions()
	for _, x := range q.suspended {
		q.result.Assumptions = append(q.result.Assumptions, "suspended: "+human.Clean(x.Subject()+", "+x.Details(now)))
	}
	sets := []string{""}
	if a.Set = strings.TrimSpace(a.Set); a.Set != "" {
		sets = append(sets, a.Set)
	}
	for _, set := range sets {
		clauses, err := conf.NewWhatIf(file, set)
		if err != nil {
			return nil, err
		}
		course := q.play(clauses, &a)
		course.Set = set
		q.result.Courses = append(q.result.Courses, course)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
	}
	return q.result, nil
}

// queue is the content of the delivery queue.
type queue struct {
	mail    []*store.Peeked
	since   map[string]time.Time // when a host that is in trouble failed first
	trouble map[string]string    // its last reply
	result  *Result

	suspended []*suspension.Suspension // of deliveries
}

// gate has the suspensions decide in a world.
type gate struct {
	*queue
	clauses *conf.WhatIf
	world   *sim.World
}

// Thread implements thread.Gate.
func (g *gate) Thread(channel, host string) *thread.Suspension {
	return g.find(func(s *suspension.Suspension) bool { return !s.OfMessages() && s.Thread(channel, host) })
}

// Vertex implements thread.Gate. The world counts the messages as it gets them.
func (g *gate) Vertex(v *thread.Vertex) *thread.Suspension {
	p, channel, host := g.mail[v.Message.Number-1], v.Thread.Channel(), v.Thread.Host
	return g.find(func(s *suspension.Suspension) bool {
		if !s.OfMessages() || !s.Thread(channel, host) || !s.From(p.Sender) {
			return false
		}
		settings := g.clauses.Match(channel, host)
		return s.Source == "" || settings != nil && leaves(s, suspension.ParseSources(settings.Sources), p, channel, host)
	})
}

// leaves reports whether a recipient of a thread would leave from the source of a suspension.
func leaves(s *suspension.Suspension, of suspension.Sources, p *store.Peeked, channel, host string) bool {
	return slices.ContainsFunc(p.Open, func(w store.Waiting) bool {
		return w.Channel == channel && strings.EqualFold(w.Host, host) && s.Leaves(of, p.ID.Turn()+uint64(w.Moves))
	})
}

func (g *gate) find(is func(*suspension.Suspension) bool) *thread.Suspension {
	for _, s := range g.suspended {
		if !s.Over(g.world.Now()) && is(s) {
			return &thread.Suspension{Subject: s.Subject(), Until: s.Until}
		}
	}
	return nil
}

// suspend has a world's deliveries suspended.
func (q *queue) suspend(w *sim.World, clauses *conf.WhatIf) {
	if len(q.suspended) == 0 {
		return
	}
	vertices, ends := false, []time.Time(nil)
	for _, s := range q.suspended {
		vertices = vertices || s.OfMessages()
		if !s.Until.IsZero() {
			ends = append(ends, s.Until)
		}
	}
	w.Suspend(&gate{q, clauses, w}, vertices, ends)
}

// read reads every specification. One that cannot be read is listed; one that is removed
// meanwhile is ignored.
func (q *queue) read(ctx context.Context, s *store.Store) error {
	r := q.result
	err := s.PostOffice.Queue.List(func(name string) error {
		p, err := s.Peek(name)
		syntax := (*workspec.SyntaxError)(nil)
		switch {
		case errors.Is(err, postoffice.ErrGone):
			return ctx.Err()
		case errors.As(err, &syntax), errors.Is(err, workspec.ErrUnknownFormat), errors.Is(err, fs.ErrPermission):
			r.Unread = append(r.Unread, err.Error())
			return ctx.Err()
		case err != nil:
			return err
		case p == nil:
			return ctx.Err()
		}
		r.Messages++
		r.Recipients += len(p.Open) + p.Ending + p.Aside
		r.EndingAtOnce += p.Ending
		r.Aside += p.Aside
		for _, f := range p.Failed {
			if first, ok := q.since[f.Host]; !ok || f.At.Before(first) {
				q.since[f.Host] = f.At
			}
		}
		for i := range p.Open {
			if w := &p.Open[i]; w.HostTries > 0 {
				q.trouble[store.ThreadName(w.Channel, w.Host)] = w.HostText
			}
		}
		if len(p.Open) > 0 {
			q.mail = append(q.mail, p)
		}
		return ctx.Err()
	})
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	// The order of a directory is no property of the queue.
	slices.SortFunc(q.mail, func(a, b *store.Peeked) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return nil
}

func (a *Options) assumptions() []string {
	list := []string{
		fmt.Sprintf("a delivery takes %v, half more or less; a new connection 100ms; one that fails 30s", a.Latency),
		"a host that is in trouble stays so for as long again as it has been, then it answers",
		"a recipient that was put off n times for its own sake is put off again with a chance of n+1 in n+2",
		"everything else is delivered at its first attempt; no new mail comes",
	}
	if len(a.Down) > 0 {
		list = append(list, "never answers: "+strings.Join(a.Down, " "))
	}
	if len(a.Up) > 0 {
		list = append(list, "answers from now on: "+strings.Join(a.Up, " "))
	}
	return list
}

// play runs the queue under a configuration.
func (q *queue) play(clauses *conf.WhatIf, a *Options) *Course {
	w := sim.New(a.Seed, q.result.Now)
	random := rand.New(rand.NewPCG(a.Seed, 3))
	hosts := map[*sim.Host]*Host{}
	q.suspend(w, clauses)
	for _, p := range q.mail {
		m := sim.Message{From: p.Sender, Origin: p.Origin, Accepted: p.ID.Time(), Away: p.Away}
		for open := p.Open; len(open) > 0; {
			name, n := store.ThreadName(open[0].Channel, open[0].Host), 1
			for n < len(open) && store.ThreadName(open[n].Channel, open[n].Host) == name {
				n++
			}
			s := clauses.Match(open[0].Channel, open[0].Host)
			if s == nil {
				open = open[n:]
				continue
			}
			h := w.Host(name)
			if hosts[h] == nil {
				hosts[h] = &Host{Host: name, Trouble: q.trouble[name]}
				q.assume(h, a, random)
			}
			hosts[h].Messages++
			hosts[h].Recipients += n
			m.To = append(m.To, sim.Destination{Ring: ringFor(w, s, open[0].Channel, open[0].Host), Name: name, Rcpts: n, History: historyOf(open[:n])})
			open = open[n:]
		}
		w.Send(m)
	}
	w.Drain(cmp.Or(a.Until, aYear))
	return sumUp(w, hosts)
}

func ringFor(w *sim.World, s *conf.Settings, channel, host string) *sim.Ring {
	return w.Ring(s.RingKey(channel, host), s.Policy, sim.Ring{Slots: s.Command.Slots(), Overfeed: s.Overfeed, MaxTA: s.MaxTA, IdleMax: s.IdleMax})
}

// historyOf returns what recipients of one thread have behind them together, as the engine
// reckons it.
func historyOf(list []store.Waiting) (h thread.History) {
	for i := range list {
		w := &list[i]
		if i == 0 || w.Next.Before(h.Next) {
			h.Next = w.Next
		}
		h.Attempts, h.Away = max(h.Attempts, w.Attempts), max(h.Away, w.Away)
		if w.HostTries > 0 {
			h.HostTries, h.HostText = max(h.HostTries, w.HostTries), w.HostText
		}
	}
	return h
}

func (q *queue) assume(h *sim.Host, a *Options, random *rand.Rand) {
	h.Latency, h.Spread, h.Connect, h.Timeout = a.Latency, 0.5, 100*time.Millisecond, 30*time.Second
	h.Decide = func(l *sim.Delivery, _ time.Time) sim.Verdict {
		if n := l.Deferred; n > 0 && random.IntN(n+2) < n+1 {
			return sim.Verdict{Result: thread.Deferred}
		}
		return sim.Verdict{}
	}
	_, host, _ := strings.Cut(h.Name, "/")
	named := func(list []string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, host) || strings.EqualFold(s, h.Name) })
	}
	since, inTrouble := q.since[h.Name]
	switch {
	case named(a.Down):
		h.Down = []sim.Outage{{To: sim.Forever}}
	case inTrouble && !named(a.Up):
		h.Down = []sim.Outage{{To: max(q.result.Now.Sub(since), 0)}}
	}
}

// sumUp counts the outcomes.
func sumUp(w *sim.World, hosts map[*sim.Host]*Host) *Course {
	c := &Course{}
	last := map[*sim.Host]time.Duration{}
	start := w.Now().Add(-w.Since())
	for _, l := range w.Deliveries {
		h := hosts[l.Host]
		if l.Outcome != sim.Open {
			last[l.Host] = max(last[l.Host], l.Done.Sub(start))
		}
		switch l.Outcome {
		case sim.Delivered:
			h.Delivered += l.Rcpts
		case sim.Expired, sim.Failed:
			h.Expired += l.Rcpts
		case sim.Open:
			h.Left += l.Rcpts
		}
	}
	for sh, h := range hosts {
		h.Connects, h.Drained = sh.Connects, last[sh].Seconds()
		c.Ended = max(c.Ended, h.Drained)
		if h.Left > 0 {
			h.Drained = -1
		}
		c.Delivered, c.Expired, c.Left = c.Delivered+h.Delivered, c.Expired+h.Expired, c.Left+h.Left
		c.Hosts = append(c.Hosts, h)
	}
	slices.SortFunc(c.Hosts, func(a, b *Host) int { return strings.Compare(a.Host, b.Host) })
	return c
}
