package rcptcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice/verified"
	"zmailer/internal/run/memo"
)

// Defaults of ProbeOptions, Postfix's address_verify_*.
const (
	DefaultPositiveExpire  = 31 * 24 * time.Hour
	DefaultPositiveRefresh = 7 * 24 * time.Hour
	DefaultNegativeExpire  = 3 * 24 * time.Hour
	DefaultNegativeRefresh = 3 * time.Hour
	DefaultProbeWait       = 6 * time.Second
)

// ProbeOptions say how next hops are asked for recipients, and how long their answers count.
type ProbeOptions struct {
	// Command returns the program that delivers to a next hop, with its arguments and
	// environment, in the mode that answers probes. An error: it knows none.
	Command func(channel, host string) (argv, env []string, err error)
	Attach  func(*exec.Cmd) (done func(), err error) // Options.Attach of it
	// Cache keeps the answers; nil: only for a moment.
	Cache *verified.Cache
	Most  int // entries of Cache, for those who open it
	// Answers are used for the time Expire, and asked again in the background from Refresh on. An
	// Expire of 0: such answers are not kept.
	PositiveExpire, PositiveRefresh, NegativeExpire, NegativeRefresh time.Duration
	Wait                                                             time.Duration // of a client for an answer; the question goes on
	// Count probes are begun in the time Per at one next hop, at most; 0: no limit.
	Count int
	Per   time.Duration

	Now func() time.Time
	Log *slog.Logger
}

const (
	// probeTime is how long a probe may take: a slow server's answer is there when the client
	// comes again.
	probeTime = 2 * time.Minute
	// maxProbes and maxHopProbes bound the probes at a time, in all and at a next hop.
	maxProbes, maxHopProbes = 40, 5
	// maxForeign bounds the probes at a time at all foreign next hops, so that slow ones leave
	// places for those of our domains.
	maxForeign = 10
	// holdOff is how long a recipient is not asked about again when the answer was temporary,
	// and hopHoldOff how long no one is at a next hop that could not be reached.
	holdOff, hopHoldOff = time.Minute, 10 * time.Second
	// maxHops bounds the next hops that are remembered.
	maxHops = 1000
)

// ProbeGreeting is the first line of a program that answers probes.
const ProbeGreeting = "zmailer probe 1"

// Finding is what is known about a recipient at its next hop.
type Finding struct {
	verified.Entry
	Cached bool // it was known before
}

// UndecidedError is a recipient about whom the next hop says nothing now.
type UndecidedError struct {
	Code status.Code // of class 4
	Text string
}

func (e *UndecidedError) Error() string { return e.Code.String() + " " + e.Text }

// Prober asks next hops. Many goroutines may use it.
type Prober struct {
	o       ProbeOptions
	again   *memo.Memo[UndecidedError] // by key or next hop: not asked now
	ctx     context.Context
	cancel  context.CancelFunc
	working sync.WaitGroup

	mu       sync.Mutex
	programs map[string]*Checker // by command line
	flights  map[string]*flight  // by key
	hops     map[string]*hop
	foreign  hop  // the use of all foreign next hops together
	trouble  bool // with the cache, logged
}

// flight is a probe on its way.
type flight struct {
	done chan struct{}
	got  verified.Entry
	err  error
}

// hop is the use of a next hop.
type hop struct {
	running int
	begun   []time.Time // the last Count
}

// used returns how many probes were begun within a time.
func (h *hop) used(now time.Time, per time.Duration) int {
	h.begun = slices.DeleteFunc(h.begun, func(t time.Time) bool { return now.Sub(t) >= per || now.Before(t) })
	return len(h.begun)
}

func tooMany() error {
	return &UndecidedError{status.Code{Class: 4, Subject: 4, Detail: 5}, "too many address verifications are under way"}
}

// NewProber makes a prober. Nothing is started yet.
func NewProber(o ProbeOptions) *Prober {
	o.Wait = cmp.Or(o.Wait, DefaultProbeWait)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Prober{o: o, again: memo.New[UndecidedError](maxKept), programs: map[string]*Checker{}, flights: map[string]*flight{}, hops: map[string]*hop{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Key returns what the cache knows a recipient by.
func (n NextHop) Key() string { return n.hop() + " " + strings.ToLower(n.User) }

func (n NextHop) hop() string {
	if strings.HasPrefix(n.Host, "unix:") {
		return n.Channel + " " + n.Host
	}
	return n.Channel + " " + strings.ToLower(n.Host)
}

// Known returns what the cache has, and whether it still counts.
func (p *Prober) Known(n NextHop) (e verified.Entry, counts bool) {
	if p.o.Cache == nil {
		return e, false
	}
	e, ok, err := p.o.Cache.Get(n.Key())
	p.cacheTrouble(err)
	if !ok {
		return e, false
	}
	expire, _ := p.times(e.OK)
	age := p.o.Now().Sub(e.Probed)
	return e, age >= -time.Minute && age < expire
}

func (p *Prober) times(ok bool) (expire, refresh time.Duration) {
	if ok {
		return p.o.PositiveExpire, p.o.PositiveRefresh
	}
	return p.o.NegativeExpire, p.o.NegativeRefresh
}

// cacheTrouble logs trouble with the cache once: next hops are asked without it.
func (p *Prober) cacheTrouble(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && !p.trouble {
		p.o.Log.Error("verify-cache-trouble", "reason", err, "advice", "next hops are asked each time")
	}
	p.trouble = err != nil
}

// Verify returns what is known about a recipient, asked if need be. Its error is an
// *UndecidedError.
func (p *Prober) Verify(ctx context.Context, n NextHop) (Finding, error) {
	if e, counts := p.Known(n); counts {
		if _, refresh := p.times(e.OK); p.o.Now().Sub(e.Probed) >= refresh {
			_, _ = p.begin(n) // its answer is for later; without it this one counts on
		}
		return Finding{e, true}, nil
	}
	return p.Ask(ctx, n)
}

// Ask asks the next hop, whatever is known.
func (p *Prober) Ask(ctx context.Context, n NextHop) (Finding, error) {
	f, err := p.begin(n)
	if err != nil {
		return Finding{}, err
	}
	timer := time.NewTimer(p.o.Wait)
	defer timer.Stop()
	select {
	case <-f.done:
		return Finding{f.got, false}, f.err
	case <-timer.C:
	case <-ctx.Done():
	}
	return Finding{}, &UndecidedError{status.Code{Class: 4, Subject: 1, Detail: 1}, "address verification in progress"}
}

// begin begins a probe, or finds the one that is on its way.
func (p *Prober) begin(n NextHop) (*flight, error) {
	key, now := n.Key(), p.o.Now()
	for _, k := range []string{key, n.hop()} {
		if why, ok := p.again.Get(k, now); ok {
			return nil, &why
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flights[key]; f != nil {
		return f, nil
	}
	if err := p.ctx.Err(); err != nil {
		return nil, &UndecidedError{status.SystemTrouble, "the server is stopping"}
	}
	h := p.hops[n.hop()]
	if h == nil {
		if len(p.hops) >= maxHops {
			maps.DeleteFunc(p.hops, func(_ string, h *hop) bool { return h.running == 0 && h.used(now, p.o.Per) == 0 })
		}
		if len(p.hops) >= maxHops {
			return nil, tooMany()
		}
		h = &hop{}
		p.hops[n.hop()] = h
	}
	// A client can name any number of domains whose mail goes to one host: together they get what
	// one next hop gets.
	uses := []*hop{h}
	if n.Foreign {
		uses = append(uses, &p.foreign)
	}
	for i, u := range uses {
		most := []int{maxHopProbes, maxForeign}[i]
		if len(p.flights) >= maxProbes || u.running >= most || p.o.Count > 0 && u.used(now, p.o.Per) >= p.o.Count {
			return nil, tooMany()
		}
	}
	c, err := p.program(n)
	if err != nil {
		return nil, &UndecidedError{status.Code{Class: 4, Subject: 3, Detail: 5}, err.Error()}
	}
	f := &flight{done: make(chan struct{})}
	p.flights[key] = f
	for _, u := range uses {
		u.running++
		if p.o.Count > 0 {
			u.begun = append(u.begun, now)
		}
	}
	p.working.Go(func() {
		f.got, f.err = p.probe(c, n)
		p.mu.Lock()
		delete(p.flights, key)
		for _, u := range uses {
			u.running--
		}
		p.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// program returns the process that asks a next hop; p.mu is held.
func (p *Prober) program(n NextHop) (*Checker, error) {
	argv, env, err := p.o.Command(n.Channel, n.Host)
	if err != nil {
		return nil, err
	}
	line := strings.Join(env, "\x00") + "\x00\x00" + strings.Join(argv, "\x00")
	c := p.programs[line]
	if c == nil {
		if len(p.programs) >= maxPrograms {
			for other, old := range p.programs { // of a configuration that has changed, most likely
				delete(p.programs, other)
				go old.Close()
				break
			}
		}
		c, err = New(Options{Program: argv, Env: env, Time: probeTime, Greeting: ProbeGreeting, Mode: "--probe", Attach: p.o.Attach, Log: p.o.Log, Now: p.o.Now})
		if err != nil {
			return nil, err
		}
		p.programs[line] = c
	}
	return c, nil
}

// maxPrograms bounds the processes: one for each command of scheduler.conf that serves next hops
// of recipients to be verified.
const maxPrograms = 16

// probe asks, and keeps the answer.
func (p *Prober) probe(c *Checker, n NextHop) (verified.Entry, error) {
	line, err := c.line(p.ctx, n.Channel+" "+address.EncodeXText(n.Host)+" "+address.EncodeXText(n.User))
	now := p.o.Now()
	if err != nil {
		why := UndecidedError{status.SystemTrouble, err.Error()}
		p.again.Put(n.hop(), why, now, hopHoldOff)
		return verified.Entry{}, &why
	}
	word, rest, _ := strings.Cut(line, " ")
	code, text, _ := strings.Cut(rest, " ")
	s, ok := status.Parse(code)
	e := verified.Entry{Key: n.Key(), OK: word == "deliverable", Probed: now, Code: code, Text: text}
	if !ok || word != "deliverable" && word != "undeliverable" {
		if !ok || s.Class != 4 {
			s = status.SystemTrouble
		}
		why := UndecidedError{s, text}
		if word == "away" {
			p.again.Put(n.hop(), why, now, hopHoldOff)
		} else {
			p.again.Put(n.Key(), why, now, holdOff)
		}
		p.o.Log.Warn("verify-undecided", "rcpt", n.User, "channel", n.Channel, "host", n.Host, "status", code, "reason", text)
		return e, &why
	}
	p.o.Log.Info("verified", "rcpt", n.User, "channel", n.Channel, "host", n.Host, "status", code, "reply", text, "result", word)
	if expire, _ := p.times(e.OK); expire > 0 && p.o.Cache != nil {
		p.cacheTrouble(p.o.Cache.Put(e))
	}
	return e, nil
}

// Close ends the processes.
func (p *Prober) Close() {
	p.cancel()
	p.mu.Lock()
	programs := p.programs
	p.programs = map[string]*Checker{}
	p.mu.Unlock()
	for _, c := range programs {
		c.Close()
	}
	p.working.Wait()
}

// ProbeCommand makes the command of an agent one that answers probes.
func ProbeCommand(argv []string) ([]string, error) {
	if len(argv) == 0 || filepath.Base(argv[0]) != "ta-smtp" {
		return nil, errors.New("recipients can be verified at next hops that ta-smtp serves, and the command is " + fmt.Sprintf("%.80q", strings.Join(argv, " ")))
	}
	return append([]string{argv[0], "--probe"}, argv[1:]...), nil
}
