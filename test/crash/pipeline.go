package crash

import (
	"zmailer/internal/stage/router/route"

	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/agent"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// pipeline is one start of all stages on one disk, as one process.
type pipeline struct {
	setup  *setup
	disk   *cutfs.FS
	world  *world
	po     *postoffice.PostOffice
	router *router.Router
	spool  *store.Store
	agent  *agent.Agent
	policy *postoffice.Owner // of who freezes
	ledger *ledger.Journal   // nil: none is kept

	missing map[string]int // specification -> rounds in which its message was not there
}

// setup is what does not change between lives.
type setup struct {
	tables [2]string // directories of the routing tables, before and after they were mended
	levels [2]int    // hash levels, before and after a change
	strict bool
	conf   *conf.File
	log    *slog.Logger
	ahead  time.Duration // of the clock: a minute passes while the last rounds are made
	minute func() bool   // one more minute has passed; nil: no
	boot   string        // ID of the boot; "": no ledger is kept
}

func (s *setup) now() time.Time {
	now := time.Now().Add(s.ahead)
	if s.minute != nil && s.minute() {
		now = now.Add(time.Minute)
	}
	return now
}

// boot starts the stages as their programs do; stage 1 is after the tables were
// mended and the hash depth was changed.
func boot(disk *cutfs.FS, w *world, s *setup, stage int) (*pipeline, error) {
	po, err := postoffice.Open(postoffice.Config{FS: disk, HashLevels: s.levels[stage], Strict: s.strict})
	if err != nil {
		return nil, err
	}
	p := &pipeline{setup: s, disk: disk, world: w, po: po, missing: map[string]int{}}
	if s.boot != "" {
		p.ledger = ledger.New(po, ledger.Config{Role: "pipeline", Now: s.now, Boot: func() string { return s.boot }, Log: s.log, Limit: 1 << 10})
	}
	tables := s.tables[stage]
	p.router, err = router.New(po, router.Config{Ledger: p.ledger, Config: route.Config{Hostname: "mta.example", Log: s.log, Now: s.now,
		Rules: rules.Config{Dir: tables, Hostname: "mta.example", LocalUsers: tables + "/users", Log: s.log}}})
	if err != nil {
		return nil, err
	}
	p.spool = p.newSpool()
	owner, err := po.Owners.Take("agent")
	if err != nil {
		return nil, err
	}
	p.agent = &agent.Agent{PostOffice: po, Owner: owner, Name: "test", Log: s.log, Now: s.now}
	p.policy, err = po.Owners.Take("policy")
	return p, err
}

func (p *pipeline) newSpool() *store.Store {
	return store.New(&store.Env{PostOffice: p.po, Conf: p.setup.conf, Hostname: "mta.example", Postmaster: "postmaster@mta.example",
		Now: p.setup.now, Log: p.setup.log, Ledger: p.ledger})
}

// close ends the stages in order.
func (p *pipeline) close() error {
	p.ledger.Close()
	return errors.Join(p.router.Close(), p.agent.Release(), p.policy.Release())
}

// live is one life: the load, rounds until what is left waits for something; then an
// ordered end and a start with mended tables and another hash depth, what was set
// aside put back, and everything brought to its end.
func live(disk *cutfs.FS, w *world, s *setup) error {
	p, err := boot(disk, w, s, 0)
	if err != nil {
		return err
	}
	for _, m := range load {
		if err := p.submit(m); err != nil {
			return err
		}
	}
	if _, err := p.round(); err != nil {
		return err
	}
	if err := p.close(); err != nil {
		return err
	}
	return goOn(disk, w, s)
}

// goOn is every life after the first, and the second half of that.
func goOn(disk *cutfs.FS, w *world, s *setup) error {
	p, err := boot(disk, w, s, 1)
	if err == nil {
		err = p.drain()
	}
	if err == nil {
		err = p.close()
	}
	return err
}

// submit is a submitter: when it returns nil, it has told its user yes.
func (p *pipeline) submit(m message) error {
	text := "from <" + m.from + ">\n"
	for _, to := range m.to {
		text += "to <" + to + ">\n"
	}
	text += "env-end\nSubject: " + m.subject + "\n\nbody of " + m.subject + "\n"
	switch {
	case m.user:
		return p.asUser(m, text)
	case m.program:
		return p.asProgram(m, text)
	}
	d, err := p.po.Submissions.NewDraft("submit")
	if err != nil {
		return err
	}
	if _, err := d.Write([]byte(text)); err != nil {
		return errors.Join(err, d.Abort())
	}
	accepting := p.ledger.Accepting()
	a, err := d.Commit()
	if err != nil {
		accepting.Abandon()
		return err
	}
	if len(m.to)%2 == 0 {
		accepting.In(a.ID, len(m.to)) // it came by SMTP
	} else {
		accepting.Abandon()
	}
	p.world.accepted[m.subject] = true
	if !m.freeze {
		return nil
	}
	c, err := p.po.Router.Claim(p.policy, strings.TrimPrefix(a.Name, postoffice.Router+"/"))
	if err != nil {
		return err
	}
	return c.Freeze("policy")
}

// asUser is a user's submit. It dies with the pipeline.
func (p *pipeline) asUser(m message, text string) error {
	daemon := uint32(os.Getuid())
	p.disk.SetUID(user)
	defer p.disk.SetUID(daemon)
	po, err := postoffice.Open(postoffice.Config{FS: p.disk, Strict: p.setup.strict, Submits: true})
	if err != nil {
		return err
	}
	d, err := po.Submissions.NewDraft("submit")
	if err != nil {
		return err
	}
	if _, err := io.WriteString(d, text); err != nil {
		return errors.Join(err, d.Abort())
	}
	if _, err := d.Commit(); err != nil {
		return err
	}
	p.world.accepted[m.subject] = true
	return nil
}

// asProgram is a program that knows the postoffice's directories and nothing of our mark,
// as one that was written for ZMailer. It writes its file once, and has written all of it
// to the disk before the bit that makes it a message.
func (p *pipeline) asProgram(m message, text string) error {
	const name = postoffice.Public + "/program.1.1.1"
	f, err := p.disk.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	for _, step := range []func() error{f.Sync, func() error { return f.Chmod(0o700) }, f.Sync, func() error { return p.disk.SyncDir(postoffice.Public) }} {
		if err == nil {
			err = step()
		}
	}
	if err = errors.Join(err, f.Close()); err == nil {
		p.world.accepted[m.subject] = true
	}
	return err
}

// pickUp copies what users have submitted. What has lost bytes stays, and is logged.
func (p *pipeline) pickUp() error {
	list, err := p.po.Submissions.List()
	for _, s := range list {
		_, perr := p.router.PickUp(s.Name)
		if incomplete := (*postoffice.IncompleteError)(nil); errors.As(perr, &incomplete) {
			p.setup.log.Error("not-picked-up", "name", s.Name, "reason", perr)
			continue
		}
		err = errors.Join(err, perr)
	}
	return err
}

// putBack gives the router what was deferred or frozen.
func (p *pipeline) putBack() error {
	list, err := p.po.Aside.ListDeferred()
	if err != nil {
		return err
	}
	for _, name := range list {
		if _, err := p.po.Aside.Resubmit(name); err != nil {
			return err
		}
	}
	frozen, err := p.disk.ReadDir(postoffice.Freezer)
	if err != nil {
		return err
	}
	for _, e := range frozen {
		ino, _, _ := strings.Cut(e.Name, ".")
		// As an operator thaws it, with mv.
		if err := durable.MoveNew(p.disk, postoffice.Freezer+"/"+e.Name, postoffice.Router+"/"+ino); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// round recovers, routes and delivers once. It returns how many specifications there
// were. An error of one message does not stop the others.
func (p *pipeline) round() (n int, err error) {
	if p.disk.Dead() {
		return 0, cutfs.ErrCut
	}
	// Made anew: a scheduler removes the numbers of the dead at its second look, minutes
	// after the first, when all else has reached the disk; here no minutes pass.
	p.spool = p.newSpool()
	err = errors.Join(p.router.Recover(), p.spool.Recover())
	p.spool.Sweep()
	if err == nil {
		_, err = p.ledger.Settle(context.Background(), ledger.Patience{Looks: 1})
		err = errors.Join(err, p.ledger.Keep())
	}
	err = errors.Join(err, p.pickUp())
	if _, rerr := p.router.RouteAll(); rerr != nil {
		err = errors.Join(err, rerr)
	}
	var names []string
	if lerr := p.po.Queue.List(func(name string) error { names = append(names, name); return nil }); lerr != nil {
		err = errors.Join(err, lerr)
	}
	for _, name := range names {
		derr := p.deliver(name)
		if errors.Is(derr, store.ErrMessageGone) {
			// The engine gives it a minute to come back.
			if p.missing[name]++; p.missing[name] > 3 {
				derr = p.spool.Abandon(name)
			} else {
				derr = nil
			}
		}
		if derr != nil && !errors.Is(derr, postoffice.ErrGone) {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, derr))
		}
	}
	return len(names), err
}

// drain makes rounds until nothing is left, a bounded number of them.
func (p *pipeline) drain() error {
	var last error
	for i := range 12 {
		if p.disk.Dead() {
			return cutfs.ErrCut
		}
		if i > 3 {
			p.setup.ahead += 20 * time.Second
		}
		var n int
		err := p.putBack()
		n, last = p.round()
		if last = errors.Join(err, last); last == nil && n == 0 {
			left, err := p.left()
			if err != nil || left == 0 {
				return err
			}
		}
	}
	if last == nil {
		last = errors.New("mail is left after the last round")
	}
	return last
}

// left counts what waits in router/ and queue/: a message without specification is left
// alone for a minute if its owner may live.
func (p *pipeline) left() (n int, err error) {
	pending, err := p.po.Router.List(false, p.setup.now())
	if err != nil {
		return 0, err
	}
	n = len(pending)
	err = p.po.Queue.ListMessages(func(string) error { n++; return nil })
	return n, err
}

// deliver does what the scheduler's engine does with one specification, without its
// waiting.
func (p *pipeline) deliver(name string) error {
	l, err := p.spool.Load(name)
	if errors.Is(err, store.ErrMessageGone) {
		return p.spool.Abandon(name) // without the engine's minute of patience
	}
	if err != nil || l.Gone {
		return err
	}
	hosts := map[taproto.Job]bool{}
	attempts := map[int64]int{}
	addresses := map[int64]string{}
	var jobs []taproto.Job
	for _, w := range l.Open {
		attempts[w.Offset], addresses[w.Offset] = w.Attempts, w.Address
		if j := (taproto.Job{Name: l.Name, Host: w.Host}); !hosts[j] {
			hosts[j] = true
			jobs = append(jobs, j)
		}
	}
	var outcomes []store.Outcome
	deferred := map[string]int{}
	for _, j := range jobs {
		box := &mailbox{world: p.world, disk: p.disk}
		for _, line := range p.agent.Do(context.Background(), j, box) {
			if line.Kind == taproto.LineAnswer && line.Answer.Word == taproto.Deferred {
				off := line.Answer.Offset
				n := attempts[off] + 1
				deferred[box.subject+"/"+addresses[off]] = n
				outcomes = append(outcomes, store.Outcome{Offset: off, Result: thread.Deferred, Text: line.Answer.Text,
					Notary: workspec.ParseNotary(line.Answer.Notary), Attempt: n, Next: p.spool.Now().Add(time.Minute)})
			}
		}
	}
	if len(outcomes) > 0 {
		if _, err := p.spool.Record(l.Name, outcomes); err != nil {
			return err
		}
		for key, n := range deferred {
			p.world.waiting[key] = n
		}
	}
	_, err = p.spool.Settle(l.Name, nil)
	return err
}
