package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/wire/mailq"
)

// Sampler takes samples of one postoffice. One goroutine at a time may use it.
type Sampler struct {
	dir     string
	po      *postoffice.PostOffice
	tail    *ledger.Tail
	call    *view.SchedulerClient
	stages  map[string]*counted
	counts  counts
	last    totals
	before  *Sample
	tries   map[string]uint64 // attempts of each thread
	router  bool
	checked time.Time
	close   io.Closer // nil: the postoffice is its owner's
}

// New makes a Sampler. Its rates count from now on.
func New(po *postoffice.PostOffice, dir string) *Sampler {
	return &Sampler{dir: dir, po: po, tail: ledger.NewTail(po, false), stages: map[string]*counted{}}
}

// Close gives back what it holds, but not a postoffice that New was given.
func (s *Sampler) Close() {
	s.tail.Close()
	s.hangUp()
	if s.close != nil {
		_ = s.close.Close() // a directory that was only read
	}
}

// counts are those of the ledger's lines that came since it began.
type counts struct{ accepted, routed, done, delivered, failed uint64 }

// totals are what rates are the differences of.
type totals struct {
	at time.Time
	counts
	live                bool // the next three are the scheduler's
	deliveries          uint64
	deferrals, failures uint64
}

// Take looks at everything.
func (s *Sampler) Take(ctx context.Context) (*Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := time.Now()
	x := &Sample{Time: now, PostOffice: s.dir, Threads: []Thread{}}
	if err := s.askScheduler(ctx, x); err != nil {
		x.Silent, x.Scheduler = err.Error(), nil
		s.hangUp()
	}
	s.standing(x, now)
	s.alive(x, now)
	_ = s.tail.Read(s.enter) // lines that cannot be read are not counted; check --ledger reports them
	s.rate(x, now)
	if b, err := s.po.ReadAlarms(); err == nil && x.Scheduler != nil {
		x.Alarms = alarm.Parse(b)
	}
	s.before = x
	return x, ctx.Err()
}

func (s *Sampler) enter(l ledger.Line) error {
	switch l.Verb {
	case ledger.In:
		s.counts.accepted++
	case ledger.Routed:
		s.counts.routed++
		if !l.Entered {
			s.counts.accepted++ // who submitted it may not write into the ledger
		}
	case ledger.Done:
		s.counts.done++
		s.counts.delivered += uint64(l.End.Delivered)
		s.counts.failed += uint64(l.End.Failed + l.End.Silent + l.End.Expired)
	default:
	}
	return nil
}

// rate computes rates since the previous sample.
func (s *Sampler) rate(x *Sample, now time.Time) {
	t := totals{at: now, counts: s.counts}
	if c := x.Scheduler; c != nil {
		t.live, t.deliveries, t.deferrals, t.failures = true, c.Deliveries, c.Deferrals, c.Failures
	}
	last := s.last
	s.last = t
	if last.at.IsZero() {
		return
	}
	x.Seconds = now.Sub(last.at).Seconds()
	if x.Seconds <= 0 {
		return
	}
	per := func(now, before uint64) float64 {
		if now < before {
			return 0 // another scheduler's
		}
		return float64(now-before) / x.Seconds
	}
	x.Rates = Rates{Accepted: per(t.accepted, last.accepted), Routed: per(t.routed, last.routed), Done: per(t.done, last.done),
		Delivered: per(t.delivered, last.delivered), Failed: per(t.failed, last.failed)}
	if t.live && last.live {
		x.Rates.Delivered, x.Rates.Failed = per(t.deliveries, last.deliveries), per(t.failures, last.failures)
		x.Rates.Deferred = per(t.deferrals, last.deferrals)
	}
}

// ask puts a request to the scheduler.
func (s *Sampler) ask(r mailq.Request, fn func(line []byte) error) error {
	if err := patience(s.call); err != nil {
		return err
	}
	_, err := s.call.Ask(r, func(line string) error { return fn([]byte(line)) })
	return err
}

// askScheduler fills in what the scheduler knows.
func (s *Sampler) askScheduler(ctx context.Context, x *Sample) error {
	if s.call == nil {
		c, err := dial(ctx, s.dir)
		if err != nil {
			return err
		}
		s.call = c
	}
	if err := s.ask(mailq.Request{Kind: mailq.JSONStatus}, func(line []byte) error {
		x.Scheduler = &mailq.StatusInfo{}
		return json.Unmarshal(line, x.Scheduler)
	}); err != nil {
		return err
	}
	tries := map[string]uint64{}
	seconds := 0.0
	if s.before != nil {
		seconds = x.Time.Sub(s.before.Time).Seconds()
	}
	err := s.ask(mailq.Request{Kind: mailq.JSONThreads}, func(line []byte) error {
		var t Thread
		if err := json.Unmarshal(line, &t.ThreadInfo); err != nil {
			return err
		}
		key := t.Channel + "/" + t.Host
		tries[key] = t.Attempts
		// A thread that is new had no attempts before.
		if was := s.tries[key]; s.tries != nil && seconds > 0 && t.Attempts >= was {
			t.Rate = float64(t.Attempts-was) / seconds
		}
		x.Threads = append(x.Threads, t)
		return nil
	})
	s.tries = tries
	ByNeed.Sort(x.Threads)
	return err
}

// Waiting asks the scheduler for the recipients of a thread, at most so many.
func (s *Sampler) Waiting(ctx context.Context, channel, host string, most int) ([]mailq.WaitingInfo, error) {
	c, err := dial(ctx, s.dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	enough := errors.New("enough")
	var list []mailq.WaitingInfo
	first := true
	_, err = c.Ask(mailq.Request{Kind: mailq.JSONThread, Channel: channel, Host: host}, func(line string) error {
		if first {
			first = false // the thread
			return nil
		}
		if len(list) == most {
			return enough
		}
		var w mailq.WaitingInfo
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			return err
		}
		list = append(list, w)
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return list, err
}

// Order is how threads are sorted.
type Order string

// Orders of threads.
const (
	ByNeed       Order = "need" // those in trouble first, then the fullest
	ByRecipients Order = "recipients"
	ByAge        Order = "age"
	ByRate       Order = "rate"
	ByName       Order = "name"
)

// Orders lists them.
func Orders() []Order { return []Order{ByNeed, ByRecipients, ByAge, ByRate, ByName} }

// states returns those of a thread, with the most urgent at the end.
func states() []string {
	return []string{"idle", "waiting", "active", "paused", "no-place", "throttled", "probing", "trouble"}
}

// Sort sorts threads.
func (o Order) Sort(list []Thread) {
	rank := map[string]int{}
	for i, name := range states() {
		rank[name] = i
	}
	slices.SortStableFunc(list, func(a, b Thread) int {
		by := 0
		switch o {
		case ByRecipients:
			by = b.Recipients - a.Recipients
		case ByAge:
			by = cmp.Compare(b.OldestSeconds, a.OldestSeconds)
		case ByRate:
			by = cmp.Compare(b.Rate, a.Rate)
		case ByName:
		default:
			by = cmp.Or(rank[b.State]-rank[a.State], b.Recipients-a.Recipients)
		}
		return cmp.Or(by, strings.Compare(a.Channel, b.Channel), strings.Compare(a.Host, b.Host))
	})
}

// gone reports whether a directory does not exist: one that is made when it is needed.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Open makes a Sampler of the postoffice that the configuration names; Close closes that,
// too.
func Open(settings *config.Config) (*Sampler, error) {
	po, err := view.OpenPostOffice(settings)
	if err != nil {
		return nil, err
	}
	s := New(po, settings.PostOffice())
	if f, ok := po.FS().(io.Closer); ok {
		s.close = f
	}
	return s, nil
}
