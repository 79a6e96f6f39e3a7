// Package whatif explains what the router would do with mail, by the present configuration or
// by another one, as Go values: one address or message (Engine.Explain), or all queued mail
// beside where it goes now (Compare). Engines are the router's own tables and decisions, in
// this process, with the rights of its user; lookups in databases and directories are made
// by the program lookup. It owns nothing on disk and writes nothing.
//
// Diagnostics: a *config.Error is a configuration that cannot be used. An error of Compare
// with view.ErrListing is a directory that could not be listed: the comparison holds for the
// rest.
package whatif

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/workspec"
)

// Engine explains by one configuration. It is for one goroutine.
type Engine struct {
	explainer *route.Explainer
	messages  *route.Messages
	services  *conf.File // nil: scheduler.conf cannot be used
	// ServicesErr is why an Explanation does not contain which clause serves a target.
	ServicesErr error
	suspended   []*suspension.Suspension
}

// Open reads a configuration and its tables.
func Open(settings *config.Config) (*Engine, error) {
	c, err := router.ConfigFrom(settings)
	if err != nil {
		return nil, err
	}
	e := &Engine{}
	if e.explainer, err = route.NewExplainer(c.Config, c.PostOffice, c.HashLevels); err != nil {
		return nil, err
	}
	e.services, e.ServicesErr = conf.Load(settings, os.Geteuid() == 0)
	if e.ServicesErr != nil {
		e.services = nil
	}
	e.readSuspensions(settings)
	return e, nil
}

// readSuspensions reads what operators have suspended, if there is a postoffice.
func (e *Engine) readSuspensions(settings *config.Config) {
	po, err := view.OpenPostOffice(settings)
	if err != nil {
		return
	}
	e.suspended = view.New(po, time.Now()).Suspended()
	if f, ok := po.FS().(interface{ Close() error }); ok {
		_ = f.Close() // only the directory's descriptor
	}
}

// suspend notes for each target whether its deliveries are suspended. Which source a message
// would have is not known before it is accepted.
func (e *Engine) suspend(x *route.Explanation) {
	for _, r := range x.Recipients {
		for i := range r.Targets {
			t := &r.Targets[i]
			from := cmp.Or(t.Sender, x.Sender)
			for _, s := range e.suspended {
				if t.Service != nil && s.Source == "" && s.Thread(t.Channel, t.Host) && s.From(from) {
					t.Service.Suspended = human.Clean(s.Subject() + ", " + s.Details(time.Now()))
				}
			}
		}
	}
}

// Close ends the connections and children of the tables.
func (e *Engine) Close() error {
	err := e.explainer.Close()
	if e.messages != nil {
		err = errors.Join(err, e.messages.Close())
	}
	return err
}

// Explain answers a question, with the clause that serves each target.
func (e *Engine) Explain(ctx context.Context, q route.Question) *route.Explanation {
	x := e.explainer.Explain(ctx, q)
	x.Serve(e.service)
	e.suspend(x)
	return x
}

// ExplainFile explains the message in a file below a postoffice, in short.
func (e *Engine) ExplainFile(ctx context.Context, dir, name string) (*route.Explanation, error) {
	if e.messages == nil {
		d, err := route.OpenMessages(dir)
		if err != nil {
			return nil, &config.Error{File: dir, Reason: "POSTOFFICE cannot be used", Err: err}
		}
		e.messages = d
	}
	return e.explainer.ExplainFile(ctx, e.messages, name), nil
}

// service is who serves a channel and host; nil if that is not known.
func (e *Engine) service(channel, host string) *route.Service {
	if e.services == nil {
		return nil
	}
	s := e.services.Service(channel, host)
	return &route.Service{Served: s.Served, Clause: s.Clause, Where: s.Where, Code: s.Code, Text: s.Text}
}

// Options say what Compare compares.
type Options struct {
	Spool      *view.Spool
	PostOffice string // its directory
	Selector   selector.Selector
	Candidate  *Engine
	Present    *Engine     // nil: the candidate is the present configuration, or that cannot be used
	Total      func(n int) // gets an estimate of the number of messages; nil is allowed
	Step       func()      // is called for each message; nil is allowed
}

// comparer compares the mail of one postoffice.
type comparer struct {
	o   Options
	sum *Comparison
}

// Compare compares where queued mail goes with where the candidate would route it.
func Compare(ctx context.Context, o Options) (*Comparison, error) {
	x := &comparer{o: o, sum: newComparison()}
	if o.Total != nil {
		total := 0
		// An estimate, of names alone; a directory that cannot be listed is reported by the
		// second walk.
		_ = o.Spool.Walk(ctx, o.Selector, func(view.Ref) error { total++; return nil })
		o.Total(total)
	}
	err := o.Spool.Walk(ctx, o.Selector, func(r view.Ref) error {
		if o.Step != nil {
			o.Step()
		}
		return x.message(ctx, r)
	})
	x.sum.settle(o.Candidate)
	return x.sum, err
}

// message compares one message, if it is selected.
func (x *comparer) message(ctx context.Context, r view.Ref) error {
	m, err := x.o.Spool.Load(r)
	if errors.Is(err, view.ErrMoved) {
		x.sum.Moved++
		return nil
	}
	if err != nil || m != nil && m.Problem != "" && m.State != view.StateSetAside {
		x.sum.Unread++
		return nil
	}
	if m == nil || m.State == view.StateSetAside || m.State == view.StateCopy || m.File.Name == "" {
		return nil
	}
	open := m.OpenOffsets()
	if !m.Choose(x.o.Selector, x.o.Spool.Now) {
		return nil
	}
	var now *route.Explanation
	done := make(chan error, 1)
	go func() (err error) {
		defer func() { done <- err }()
		if x.o.Present != nil {
			now, err = x.o.Present.explainQueued(ctx, x.o.PostOffice, m)
		}
		return err
	}()
	then, err := x.o.Candidate.explainQueued(ctx, x.o.PostOffice, m)
	if err = errors.Join(err, <-done); err != nil {
		return err
	}
	if now != nil && (now.Verdict == route.VerdictGone || now.Verdict == route.VerdictUnreadable) {
		now = nil
	}
	if then.Verdict == route.VerdictGone {
		x.sum.Moved++
		return nil
	}
	x.take(m, open, now, then)
	return nil
}

// explainQueued explains a message with the sender of each target.
func (e *Engine) explainQueued(ctx context.Context, dir string, m *view.Message) (*route.Explanation, error) {
	x, err := e.ExplainFile(ctx, dir, m.File.Path())
	if err != nil {
		return nil, err
	}
	for _, r := range x.Recipients {
		for i := range r.Targets {
			if t := &r.Targets[i]; t.Sender == "" {
				t.Sender = x.Sender
			}
		}
	}
	return x, nil
}

func (x *comparer) take(m *view.Message, open map[int64]bool, now, then *route.Explanation) {
	if m.State == view.StateQueued && m.Spec != nil {
		spec := queuedOf(m, open)
		n := 0
		for i := range spec {
			if spec[i].asked {
				n++
			}
		}
		if n > 0 {
			x.sum.add(m.ID, "", n, compare(spec, now, then))
		}
		return
	}
	x.aside(m, now, then)
}

// queuedOf returns the recipients of a specification, and which of them are open; those that
// the message has left were asked for.
func queuedOf(m *view.Message, open map[int64]bool) []queued {
	asked := open
	if m.Hidden > 0 {
		asked = m.OpenOffsets()
	}
	var list []queued
	for gi := range m.Spec.Groups {
		g := &m.Spec.Groups[gi]
		sender := g.Sender.Address
		if g.Sender.Channel == "error" || sender == "<>" {
			sender = ""
		}
		for ri := range g.Recipients {
			r := &g.Recipients[ri]
			uid, err := strconv.ParseUint(r.Privilege, 10, 32)
			if err != nil {
				uid = nobodyUID
			}
			list = append(list, queued{
				place: place{Channel: r.Channel, Host: r.Host, User: r.Address, Privilege: uint32(uid), Sender: sender},
				open:  open[r.Offset], asked: asked[r.Offset], orcpt: orcptOf(r),
			})
		}
	}
	return list
}

// orcptOf returns the address that a recipient's sender wrote, if it is recorded.
func orcptOf(r *workspec.Recipient) string {
	for _, word := range strings.Fields(r.Notary) {
		if key, value, ok := strings.Cut(word, "="); ok && strings.EqualFold(key, "ORCPT") {
			if _, text, ok := strings.Cut(value, ";"); ok {
				if plain, err := address.DecodeXText(text); err == nil {
					return plain
				}
			}
		}
	}
	return ""
}

// aside compares a message that is not queued: what waits in router/ or freezer/ with
// what the present configuration would do, what waits in deferred/ with that it waits.
func (x *comparer) aside(m *view.Message, now, then *route.Explanation) {
	dir, _, _ := strings.Cut(m.File.Path(), "/")
	if postoffice.IsRouterDir(dir) {
		dir = postoffice.Router
	}
	picked := x.picked(m)
	if m.State == view.StateDeferred {
		n, list := released(m.Why, picked, now, then)
		x.sum.add(m.ID, dir, n, list)
		return
	}
	base := now
	if base == nil {
		base = then // the present configuration is the one that is asked for
	}
	if !goes(base) {
		n, list := released(strings.TrimSpace(base.Why), picked, nil, then)
		if sameVerdict(base, then) {
			list = nil
		}
		x.sum.add(m.ID, dir, n, list)
		return
	}
	var spec []queued
	n := 0
	for i := range base.Recipients {
		r := base.Recipients[i]
		for j := range r.Targets {
			p := &r.Targets[j]
			asked := picked(r.Address) && !isNotice(p)
			if asked {
				n++
			}
			spec = append(spec, queued{place: *p, open: true, asked: asked})
		}
	}
	list := compare(spec, base, then)
	for i := range list {
		list[i].present = false // the present one is what it is compared with
	}
	x.sum.add(m.ID, dir, n, list)
}

// picked reports whether a recipient of the envelope was selected.
func (x *comparer) picked(m *view.Message) func(addr string) bool {
	if x.o.Selector.Empty() || m.Hidden == 0 {
		return func(string) bool { return true }
	}
	return func(addr string) bool {
		return slices.ContainsFunc(m.Recipients, func(r view.Recipient) bool { return r.Address == human.Clean(addr) })
	}
}

// released returns the differences for a message that was put off or frozen, for why.
func released(why string, picked func(string) bool, now, then *route.Explanation) (n int, list []difference) {
	from := route.VerdictDeferred + " (" + human.Clean(why) + ")"
	if !goes(then) {
		d := stopped(then)
		d.from, d.present = from, sameVerdict(now, then)
		for i := range then.Recipients {
			if picked(then.Recipients[i].Address) {
				n++
				d.address = then.Recipients[i].Address
				if d.to != from {
					list = append(list, d)
				}
			}
		}
		return n, list
	}
	for i := range then.Recipients {
		r := then.Recipients[i]
		if !picked(r.Address) {
			continue
		}
		n++
		var news []*place
		for j := range r.Targets {
			if p := &r.Targets[j]; !isNotice(p) {
				news = append(news, p)
			}
		}
		d := difference{kind: Work, address: r.Address, from: from, to: texts(news), present: now != nil && goes(now)}
		if len(news) == 1 {
			d.pair = threadOf(news[0])
		}
		if r.Verdict == route.VerdictRejected && len(news) > 0 {
			d.kind, d.detail = Fail, errorText(news[0].Host)
		}
		list = append(list, d)
	}
	return n, list
}
