package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/service"
	"zmailer/internal/admin/view"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// Exit codes of zmctl route --queue beside the usual ones.
const (
	exitDiffers = 1
	exitPartial = 2
)

// routeAhead is how many messages the two routers may be behind: it keeps them busy and
// bounds what is held.
const routeAhead = 64

// whatIf compares all queued mail with what a configuration would do.
type whatIf struct {
	s         *view.Spool
	sel       selector.Selector
	now, then *routerChild // now is nil if the present configuration is the one asked for, or broken
	sum       *routeSum
	bar       *progress
}

func runRouteQueue(c *cli.Context) error {
	if c.IsSet("message") {
		return cli.Exit("zmctl route --queue: --message names no queued mail; name spool IDs", config.ExitUsage)
	}
	sel, err := chosen(c)
	if err != nil {
		return err
	}
	present, err := config.FromCLI(outer(c))
	if err != nil {
		return err
	}
	candidate, err := candidateOf(c, present)
	if err != nil {
		return err
	}
	po, _, err := open(outer(c))
	if err != nil {
		return err
	}
	defer closeFS(po)
	// A bad scheduler.conf would be known at the end only.
	if _, err := askServices(c.Context, candidate, c.App.ErrWriter, nil); err != nil {
		return err
	}
	x := &whatIf{s: view.New(po, time.Now()), sel: sel, sum: newRouteSum()}
	if x.then, err = startRouter(c.Context, candidate, c.App.ErrWriter); err != nil {
		return err
	}
	defer x.then.close()
	if c.String("config") != "" {
		if x.now, err = startRouter(c.Context, service.Environment(present), c.App.ErrWriter); err != nil {
			return err
		}
		defer func() { x.now.close() }()
	}
	if err := x.try(c.App.ErrWriter); err != nil {
		return err
	}
	err = x.run(c)
	x.bar.end()
	if err != nil && !errors.Is(err, view.ErrListing) {
		return err
	}
	return x.report(c, candidate, err)
}

// candidateOf is the environment of programs that are to use the configuration to be
// compared: that of --config, else the present one.
func candidateOf(c *cli.Context, present *config.Config) ([]string, error) {
	env, name := service.Environment(present), c.String("config")
	if name == "" {
		return env, nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		name = filepath.Join(name, "zmailer.conf")
	}
	candidate, err := config.Load(name)
	if err != nil {
		return nil, err
	}
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "ZCONFIG=") })
	// The queue is this one, whatever the file says.
	return append(env, "ZCONFIG="+candidate.File), nil
}

// try has both routers read their configuration before anything is walked. A present one
// that is broken is no reason not to try another.
func (x *whatIf) try(stderr io.Writer) error {
	var r routing
	if err := x.then.ask("."); err != nil {
		return x.then.ended(err)
	}
	if err := x.then.answer(&r); err != nil {
		return err
	}
	if x.now == nil {
		return nil
	}
	err := x.now.ask(".")
	if err == nil {
		err = x.now.answer(&r)
	}
	if err != nil {
		x.now.close()
		x.now = nil
		fmt.Fprintln(stderr, "zmctl: the present configuration cannot be used; what it would do otherwise, too, is not told apart")
	}
	return nil
}

// asked is a message while the routers have it.
type asked struct {
	m    *view.Message
	open map[int64]bool // its open recipients, also those that were not selected
}

// run walks the queue, and compares behind that what the routers answer.
func (x *whatIf) run(c *cli.Context) error {
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	total := 0
	// An estimate, of names alone; what is wrong with a directory is told below.
	_ = x.s.Walk(ctx, x.sel, func(view.Ref) error { total++; return nil })
	x.bar = newProgress(c, "compared", total)
	waiting := make(chan asked, routeAhead)
	done := make(chan error, 1)
	go func() {
		err := x.collect(waiting)
		if err != nil {
			cancel() // nobody takes what is walked
		}
		for range waiting {
		}
		done <- err
	}()
	err := x.walk(ctx, waiting)
	close(waiting)
	if cerr := <-done; cerr != nil {
		return cerr
	}
	return err
}

// walk asks the routers of each message that is selected.
func (x *whatIf) walk(ctx context.Context, waiting chan<- asked) error {
	return x.s.Walk(ctx, x.sel, func(r view.Ref) error {
		x.bar.step()
		m, err := x.s.Load(r)
		if errors.Is(err, view.ErrMoved) {
			x.sum.movedOn()
			return nil
		}
		if err != nil || m != nil && m.Problem != "" && m.State != view.StateSetAside {
			x.sum.unread()
			return nil
		}
		if m == nil || m.State == view.StateSetAside || m.State == view.StateCopy || m.File.Name == "" {
			return nil
		}
		a := asked{m: m, open: m.OpenOffsets()}
		if !m.Choose(x.sel, x.s.Now) {
			return nil
		}
		m.Raw = nil // what was parsed of it is enough
		path := m.File.Path()
		if strings.ContainsAny(path, "\n") {
			return nil
		}
		for _, r := range []*routerChild{x.then, x.now} {
			if r == nil {
				continue
			}
			if err := r.ask(path); err != nil {
				return nil // its end is told by who waits for the answer
			}
		}
		select {
		case waiting <- a:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// collect compares what the routers answer.
func (x *whatIf) collect(waiting <-chan asked) error {
	for a := range waiting {
		var now, then *routing = nil, &routing{}
		if err := x.then.answer(then); err != nil {
			return err
		}
		if x.now != nil {
			now = &routing{}
			if err := x.now.answer(now); err != nil {
				return err
			}
			if now.Verdict == verdictGone || now.Verdict == verdictUnreadable {
				now = nil
			}
		}
		if then.Verdict == verdictGone {
			x.sum.movedOn()
			continue
		}
		x.take(a, now, then)
	}
	return nil
}

// take compares one message.
func (x *whatIf) take(a asked, now, then *routing) {
	m := a.m
	if m.State == view.StateQueued && m.Spec != nil {
		spec := queuedOf(m, a.open)
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

// queuedOf are the recipients of a specification, and which of them are open; those that
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
				place: place{Channel: r.Channel, Host: r.Host, User: r.Address, Privilege: uint32(uid), Sender: string([]rune(sender))},
				open:  open[r.Offset], asked: asked[r.Offset], orcpt: orcptOf(r),
			})
		}
	}
	return list
}

// orcptOf is the address that a recipient's sender wrote, if it is recorded.
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
func (x *whatIf) aside(m *view.Message, now, then *routing) {
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
	if !base.goes() {
		n, list := released(strings.TrimSpace(base.Why), picked, nil, then)
		if base.same(then) {
			list = nil
		}
		x.sum.add(m.ID, dir, n, list)
		return
	}
	var spec []queued
	n := 0
	for i := range base.Recipients {
		r := &base.Recipients[i]
		for _, p := range r.Targets {
			asked := picked(r.Address) && !p.notice()
			if asked {
				n++
			}
			spec = append(spec, queued{place: p, open: true, asked: asked})
		}
	}
	list := compare(spec, base, then)
	for i := range list {
		list[i].present = false // the present one is what it is compared with
	}
	x.sum.add(m.ID, dir, n, list)
}

// picked tells which recipients of an envelope were selected.
func (x *whatIf) picked(m *view.Message) func(addr string) bool {
	if x.sel.Empty() || m.Hidden == 0 {
		return func(string) bool { return true }
	}
	return func(addr string) bool {
		return slices.ContainsFunc(m.Recipients, func(r view.Recipient) bool { return r.Address == human.Clean(addr) })
	}
}

// released are the differences for a message that was put off or frozen, for why.
func released(why string, picked func(string) bool, now, then *routing) (n int, list []difference) {
	from := verdictDeferred + " (" + human.Clean(why) + ")"
	if !then.goes() {
		d := then.stopped()
		d.from, d.present = from, now.same(then)
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
		r := &then.Recipients[i]
		if !picked(r.Address) {
			continue
		}
		n++
		var news []*place
		for j := range r.Targets {
			if p := &r.Targets[j]; !p.notice() {
				news = append(news, p)
			}
		}
		d := difference{kind: wouldWork, address: r.Address, from: from, to: texts(news), present: now != nil && now.goes()}
		if len(news) == 1 {
			d.pair = news[0].thread()
		}
		if r.Verdict == verdictRejected && len(news) > 0 {
			d.kind, d.detail = wouldFail, errorText(news[0].Host)
		}
		list = append(list, d)
	}
	return n, list
}
