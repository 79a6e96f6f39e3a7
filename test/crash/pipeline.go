package crash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"zmailer/internal/agent"
	"zmailer/internal/durable/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/router"
	"zmailer/internal/router/rules"
	"zmailer/internal/scheduler"
	"zmailer/internal/scheduler/thread"
	"zmailer/internal/taproto"
	"zmailer/internal/workspec"
)

// pipeline is one life of all stages on one disk, as one process.
type pipeline struct {
	disk   *cutfs.FS
	world  *world
	po     *postoffice.PostOffice
	router *router.Router
	spool  *scheduler.Spool
	agent  *agent.Agent
	levels int
}

// setup is what does not change between lives.
type setup struct {
	tables string // directory of the routing tables
	conf   *scheduler.Conf
	log    *slog.Logger
	levels int
	now    func() time.Time
}

// boot starts the stages as their programs do.
func boot(disk *cutfs.FS, w *world, s *setup) (*pipeline, error) {
	po, err := postoffice.Open(postoffice.Config{FS: disk, HashLevels: s.levels})
	if err != nil {
		return nil, err
	}
	p := &pipeline{disk: disk, world: w, po: po, levels: s.levels}
	p.router, err = router.New(po, router.Config{Hostname: "mta.example", Log: s.log, Now: s.now,
		Rules: rules.Config{Dir: s.tables, Hostname: "mta.example", LocalUsers: s.tables + "/users", Log: s.log}})
	if err != nil {
		return nil, err
	}
	p.spool = &scheduler.Spool{PostOffice: po, Conf: s.conf, Hostname: "mta.example", Postmaster: "postmaster@mta.example",
		Now: s.now, Log: s.log}
	owner, err := po.NewOwner("agent")
	if err != nil {
		return nil, err
	}
	p.agent = &agent.Agent{PostOffice: po, Owner: owner, Name: "test", Log: s.log, Now: s.now}
	return p, nil
}

// message is one submission of the load.
type message struct {
	subject, from string
	to            []string
}

// submit is a submitter: when it returns nil, it has told its user yes.
func (p *pipeline) submit(m message) error {
	d, err := p.po.NewDraft("submit")
	if err != nil {
		return err
	}
	text := "from <" + m.from + ">\n"
	for _, to := range m.to {
		text += "to <" + to + ">\n"
	}
	text += "env-end\nSubject: " + m.subject + "\n\nbody of " + m.subject + "\n"
	if _, err := d.Write([]byte(text)); err != nil {
		return errors.Join(err, d.Abort())
	}
	if _, err := d.Commit(); err != nil {
		return err
	}
	p.world.accepted[m.subject] = true
	return nil
}

// drain recovers and routes and delivers until nothing is left, in a bounded number
// of rounds. An error of one message does not stop the others.
func (p *pipeline) drain() error {
	var last error
	for range 12 {
		if p.disk.Dead() {
			return cutfs.ErrCut
		}
		last = errors.Join(p.router.Recover(), p.spool.Recover())
		if _, err := p.router.RouteAll(); err != nil {
			last = errors.Join(last, err)
		}
		var names []string
		if err := p.po.ListTransport(func(name string) error { names = append(names, name); return nil }); err != nil {
			last = errors.Join(last, err)
		}
		for _, name := range names {
			if err := p.deliver(name); err != nil && !errors.Is(err, postoffice.ErrGone) {
				last = errors.Join(last, fmt.Errorf("%s: %w", name, err))
			}
		}
		if last == nil && len(names) == 0 {
			pending, err := p.po.ListRouter(false)
			if err != nil || len(pending) == 0 {
				return err
			}
		}
	}
	if last == nil {
		last = errors.New("mail is left after the last round")
	}
	return last
}

// deliver does what the scheduler's engine does with one specification, without its
// waiting.
func (p *pipeline) deliver(name string) error {
	l, err := p.spool.Load(name)
	if err != nil || l.Gone {
		return err
	}
	hosts := map[taproto.Job]bool{}
	attempts := map[int64]int{}
	var jobs []taproto.Job
	for _, w := range l.Open {
		attempts[w.Offset] = w.Attempts
		if j := (taproto.Job{Name: l.Name, Host: w.Host}); !hosts[j] {
			hosts[j] = true
			jobs = append(jobs, j)
		}
	}
	var outcomes []scheduler.Outcome
	for _, j := range jobs {
		for _, line := range p.agent.Do(context.Background(), j, &mailbox{p.world, p.disk}) {
			if line.Kind == taproto.LineAnswer && line.Answer.Word == taproto.Deferred {
				n := attempts[line.Answer.Offset] + 1
				outcomes = append(outcomes, scheduler.Outcome{Offset: line.Answer.Offset, Result: thread.Deferred, Text: line.Answer.Text,
					Notary: workspec.ParseNotary(line.Answer.Notary), Attempt: n, Next: time.Now().Add(time.Minute)})
			}
		}
	}
	if len(outcomes) > 0 {
		if err := p.spool.Record(l.Name, outcomes); err != nil {
			return err
		}
	}
	_, err = p.spool.Settle(l.Name, nil)
	return err
}
