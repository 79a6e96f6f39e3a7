package rules

import (
	"context"

	"zmailer/internal/mail/address"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// lookups are how an expansion asks the sources that are no text tables.
type lookups struct {
	ctx   context.Context
	batch *table.Batch // nil: each lookup is made by itself
	ahead bool         // in the background, for a recipient whose turn has not come
}

func (l lookups) ask(e *external, key string) (table.Value, bool, error) {
	switch {
	case l.batch == nil:
		return e.Lookup(l.ctx, key)
	case l.ahead:
		return l.batch.Prefetch(e.Table, key)
	}
	return l.batch.Lookup(e.Table, key)
}

// busy is called before work that may take about a millisecond.
func (l lookups) busy() {
	if l.batch != nil && !l.ahead {
		l.batch.Busy()
	}
}

func (l lookups) waits() {
	if l.batch != nil && !l.ahead {
		l.batch.Waits()
	}
}

// beforeUser is called before a user is looked up in the system's database, which may be
// a directory on another machine. That lookup cannot be interrupted.
func (x *expansion) beforeUser(local string) {
	if p, ok := x.t.passwd.(*passwd); ok && x.batch != nil && x.t.logins == nil && !p.remembers(local) {
		x.waits()
	}
}

// Asks reports whether resolving a recipient may ask servers or programs.
func (t *Tables) Asks() bool {
	for _, layers := range [...][]layer{t.fqdn, t.local, t.aliases, t.routes,
		t.aliasDomains, t.mailboxDomains, t.mailboxes, t.uids, t.gids, t.relayDomains, t.relayRcpts} {
		for _, l := range layers {
			if l.ext != nil && table.Asks(l.ext.Table) {
				return true
			}
		}
	}
	return false
}

// Ahead has the keys of a recipient asked in the background, if there are sources that are
// asked, so that Resolve finds their answers. It decides nothing.
func (t *Tables) Ahead(q Query) {
	if q.Batch == nil || !t.Asks() {
		return
	}
	x := expansion{lookups: lookups{batch: q.Batch}, t: t, rcpt: q.Recipient, report: q.Report}
	x.later(func(x *expansion) error { return x.mailbox(q.Recipient, false) })
}

// later does something with an expansion in the background that gives and logs nothing and
// reads no files. What goes wrong, goes wrong again when the recipient's turn comes.
func (x *expansion) later(do func(*expansion) error) {
	batch := x.batch
	y := expansion{
		t: x.t, rcpt: x.rcpt, report: x.report, brief: true,
		trace: func(Step) {}, give: func(Target) error { return nil },
	}
	y.path = append(y.path, x.path...) // an alias that leads back is not asked again
	batch.Go(func() {
		y.lookups = lookups{ctx: batch.Background(), batch: batch, ahead: true}
		_ = do(&y)
	})
}

// values resolves the values of an alias, those to come looked up ahead.
func (x *expansion) values(list []text.Value, m address.Mailbox, may rights) error {
	a := x.aheadOf(m)
	for i := range list {
		if a != nil {
			a.upTo(x, i, len(list), func(i int) *text.Value { return &list[i] })
		}
		if err := x.value(&list[i], m, may); err != nil {
			return err
		}
	}
	return nil
}

// each hands over the members of a list in their order, those to come looked up ahead.
func (x *expansion) each(l *list, m address.Mailbox, do func(*member) error) error {
	a := x.aheadOf(m)
	if a == nil {
		return l.each(x.ctx, do)
	}
	waiting := make([]member, 0, 2*table.Window)
	next := 0
	one := func() error {
		a.upTo(x, 0, len(waiting)-next, func(i int) *text.Value { return &waiting[next+i].Value })
		a.taken()
		next++
		return do(&waiting[next-1])
	}
	err := l.each(x.ctx, func(v *member) error {
		if len(waiting) == cap(waiting) {
			waiting, next = append(waiting[:0], waiting[next:]...), 0
		}
		waiting = append(waiting, *v)
		if len(waiting)-next < table.Window {
			return nil
		}
		return one()
	})
	for err == nil && next < len(waiting) {
		err = one()
	}
	return err
}

// ahead is how far the values of something are looked up.
type ahead struct {
	m          address.Mailbox
	done       int // values, from the first one on
	base       int // of them, those that are gone from the list
	generation int
}

// aheadOf is nil if there is nothing to be looked up ahead.
func (x *expansion) aheadOf(m address.Mailbox) *ahead {
	if x.batch == nil || x.ahead || x.brief || x.dry || !x.t.Asks() {
		return nil
	}
	return &ahead{m: m, generation: x.batch.Generation()}
}

// upTo has the values behind the one at i looked up, as far as Window allows.
func (a *ahead) upTo(x *expansion, i, n int, at func(int) *text.Value) {
	i, n = i+a.base, n+a.base
	g := x.batch.Generation()
	if g > a.generation+1 {
		a.done = i // answers were forgotten
	}
	a.generation = g
	for a.done = max(a.done, i+1); a.done < min(i+table.Window, n); a.done++ {
		v := *at(a.done - a.base)
		if v.Kind != text.ToAddress {
			continue
		}
		m := a.m
		x.later(func(x *expansion) error { return x.value(&v, m, rights{uid: Nobody}) })
	}
}

// taken is called when the first value is taken off the list.
func (a *ahead) taken() { a.base++ }
