package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zmailer/test/suite"
)

// soak is one run.
type soak struct {
	options
	dir     string
	mail    *suite.Suite
	books   *books
	plan    *schedule
	servers []*server
	files   []*os.File

	gap                         time.Duration // the longest pause between two messages of a submitter
	waiting                     atomic.Int64  // messages in the postoffice, as last counted
	largest                     atomic.Int64  // the most of them
	kills                       atomic.Int64
	edits                       atomic.Int64
	depths                      atomic.Int64
	orders, questions, reloaded atomic.Int64
	scarcities, pauses          atomic.Int64
	atStart, atEnd              *use

	starting sync.Mutex   // of the whole system; while held, scheduler.conf, zmailer.conf or a table may be bad
	settings sync.Mutex   // of zmailer.conf: who changes it, or has it bad for a while
	bad      atomic.Int64 // grows when zmailer.conf turns bad, and when it is good again: odd while it is bad

	mu      sync.Mutex
	trouble []string       // what actors could not do
	ended   map[string]int // how often each daemon was ended since all were started
	events  chan struct{}
	hand    *hand
	// settledByHand are messages that the ledger misses for a removal; below 0: no one has
	// asked it.
	settledByHand int
}

// submitters in the mix: by SMTP, by submit, and one for large messages.
const (
	smtpSubmitters = 4
	strangers      = 2 // by SMTP from addresses that are not in RELAYNETS
	programs       = 2
	editors        = 2
)

// newSoak makes a directory with configuration and postoffice, and the other hosts.
func newSoak(o options) (s *soak, err error) {
	s = &soak{options: o, books: newBooks(), ended: map[string]int{}, gap: 150 * time.Millisecond, events: make(chan struct{}, 1), settledByHand: -1}
	if s.bin, err = filepath.Abs(o.bin); err != nil {
		return nil, err
	}
	if s.dir, err = o.kept(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	log, err := s.create("log")
	if err != nil {
		return nil, err
	}
	text, err := s.create("schedule")
	if err != nil {
		return nil, err
	}
	s.plan = &schedule{w: text, begin: time.Now()}
	if err := s.serve(); err != nil {
		return nil, err
	}
	addr, err := ownAddr()
	if err != nil {
		return nil, err
	}
	s.mail = &suite.Suite{Bin: s.bin, Dir: s.dir, Hostname: hostname, SMTPAddr: addr, Output: log, OnEvent: s.event,
		Settings: map[string]string{"ROUTERPOLL": "1s", "HASHLEVELS": "0", "RELAYNETS": "127.0.0.1/32", "RELAYDOMAINS": "relaydomains",
			"GREYLISTDELAY": "1s", "ADDRESSVERIFYTIME": "1s"}}
	s.hand = newHand(s)
	s.mail.Files = s.configuration()
	for n := range users {
		s.mail.Users = append(s.mail.Users, fmt.Sprintf("u%d", n))
	}
	return s, s.mail.Init()
}

// ownAddr returns an address of loopback that no other program uses, for smtpserver or another
// host, also not while that is down: who takes its port then would accept its mail.
func ownAddr() (string, error) {
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:%d", 2+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250), 20000+rand.IntN(10000))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}

func (s *soak) create(name string) (*os.File, error) {
	f, err := os.Create(filepath.Join(s.dir, name))
	if err == nil {
		s.files = append(s.files, f)
	}
	return f, err
}

// serve starts the other hosts.
func (s *soak) serve() error {
	for _, name := range []string{"s0", "s1", "d0", "e0", "back"} {
		v, err := newServer(newDice(s.seed, name, s.plan), name, s.seed, s.books)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, v)
	}
	return nil
}

// configuration returns what stands beside zmailer.conf.
func (s *soak) configuration() map[string]string {
	var routes, aliases strings.Builder
	never := ""
	for _, v := range s.servers {
		fmt.Fprintf(&routes, "%s.example smtp!%s\n", v.name, v.routeHost())
		if v.name == "e0" {
			_, never, _ = strings.Cut(v.routeHost(), "]:")
		}
	}
	for n := range boxes {
		fmt.Fprintf(&aliases, "box%d: %s/mail/box%d.mbox\n", n, s.dir, n)
	}
	fmt.Fprintf(&aliases, "tri: u0, u1, %s\n", triRemote)
	return map[string]string{"relaydomains": strings.Join(relayDomains(), "\n") + "\n", "routes": routes.String(), "aliases": aliases.String(), "scheduler.conf": fmt.Sprintf(schedulerConf, never)}
}

// schedulerConf tries again soon; mail for the host on one port expires soon too.
const schedulerConf = `PARAM global-report-interval = 2s
*/*
	interval=1s retries="1 1 2 3" expiry=1h maxta=20 maxring=50 maxthr=20
smtp/*:%s
	expiry=6s
	command="ta-smtp --slots=20 $channel"
smtp/*
	command="ta-smtp --slots=20 $channel"
local/*
file/*
	command="ta-mailbox --slots=4 $channel"
`

// event takes in one line of the log.
func (s *soak) event(e suite.Event) {
	s.books.event(e.Word, e.Get("id"), e.Get("rcpt"), e.Get("from"), e.Get("report"))
	select {
	case s.events <- struct{}{}:
	default: // somebody is to look already
	}
}

// complain notes what an actor could not do: the soak is not good then.
func (s *soak) complain(actor string, err error) {
	s.plan.say(actor, "FAILED: "+err.Error())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = append(s.trouble, actor+": "+err.Error())
}

func (s *soak) broken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trouble)
}

// actorNames returns what -without takes.
func actorNames() []string {
	return []string{"smtp", "strangers", "submit", "large", "outages", "killer", "editor", "depth", "clerk", "pauser", "asker", "reloads", "scarce"}
}

// load runs all actors for a time.
func (s *soak) load(ctx context.Context, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var actors sync.WaitGroup
	start := func(kind, name string, act func(ctx context.Context, d *dice) error) {
		if slices.Contains(s.without, kind) {
			return
		}
		d := newDice(s.seed, name, s.plan)
		actors.Go(func() {
			if err := act(ctx, d); err != nil {
				s.complain(name, err)
			}
		})
	}
	number := 0
	submitter := func(d *dice, large bool) *mix {
		number++
		return newMix(newDice(s.seed, fmt.Sprint("mix ", number), s.plan), s.seed, s.mailDir(), number, large)
	}
	for n := range smtpSubmitters {
		x := submitter(nil, false)
		start("smtp", fmt.Sprint("smtp ", n), func(ctx context.Context, d *dice) error { return s.overSMTP(ctx, d, x) })
	}
	for n := range programs {
		x := submitter(nil, false)
		start("submit", fmt.Sprint("submit ", n), func(ctx context.Context, d *dice) error { return s.bySubmit(ctx, d, x) })
	}
	big := submitter(nil, true)
	start("large", "large", func(ctx context.Context, d *dice) error { return s.largeOnes(ctx, d, big) })
	for n := range strangers {
		x := submitter(nil, false)
		x.foreign = true
		start("strangers", fmt.Sprint("stranger ", n), func(ctx context.Context, d *dice) error { return s.asStranger(ctx, d, x) })
	}
	for _, v := range s.servers {
		start("outages", "outage "+v.name, v.outages)
	}
	start("killer", "killer", s.killer)
	for n := range editors {
		start("editor", fmt.Sprint("editor ", n), s.editor)
	}
	start("depth", "depth", s.depth)
	for n := range clerks {
		start("clerk", fmt.Sprint("clerk ", n), s.clerk)
	}
	start("pauser", "pauser", s.pauser)
	start("asker", "asker", s.asker)
	start("reloads", "reloads", s.reloads)
	start("scarce", "scarce", s.scarce)
	start("", "use", func(ctx context.Context, _ *dice) error { return s.watchUse(ctx) })
	start("", "reader", func(ctx context.Context, _ *dice) error { return s.readers(ctx) })
	start("", "watch", func(ctx context.Context, _ *dice) error { return s.watch(ctx) })
	actors.Wait()
}

// largeOnes sends large messages, one after the other, by SMTP and by submit.
func (s *soak) largeOnes(ctx context.Context, d *dice, x *mix) error {
	for s.ready(ctx) {
		m, err := x.next()
		if err != nil {
			return err
		}
		s.books.begin(m)
		st, id := refused, ""
		if d.chance(50) {
			st, id, err = s.submit(m, 0)
		} else if c, derr := dial(ctx, s.mail.SMTPAddr); derr != nil {
			err = derr
		} else {
			st, id, err = c.send(m, manner{pipelined: d.chance(50)})
			c.close()
		}
		s.books.answered(m, st, id)
		d.say("message %d, %d bytes: %v %v", m.seq, m.size, st, err)
		if !d.pause(ctx, 100*time.Millisecond, 4*time.Second) {
			break
		}
	}
	return nil
}

// watch counts the messages in the postoffice now and then.
func (s *soak) watch(ctx context.Context) error {
	for {
		left, err := s.mail.Left()
		if err != nil {
			return err
		}
		n := int64(0)
		for _, name := range left {
			if !strings.HasPrefix(name, "transport/") && !strings.HasPrefix(name, "router/..") {
				n++
			}
		}
		s.waiting.Store(n)
		s.largest.Store(max(n, s.largest.Load()))
		if !wait(ctx, 500*time.Millisecond) {
			return nil
		}
	}
}

// close ends everything that still runs.
func (s *soak) close() {
	if s.mail != nil {
		s.mail.Kill()
		// Agents that outlived their zmctl are not among its own.
		if list, err := s.mail.Processes(); err == nil {
			for _, p := range list {
				if err := p.Kill(); err != nil {
					fmt.Fprintln(os.Stderr, "soak:", err)
				}
			}
		}
	}
	for _, v := range s.servers {
		v.close()
	}
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
}
