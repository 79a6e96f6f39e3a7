package route

import (
	"context"

	"zmailer/internal/mail/address"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
)

// ahead has the recipients of an envelope looked up before their turn comes. The zero value
// does nothing.
type ahead struct {
	l          *letter // nil: nothing is looked up ahead
	tables     *rules.Tables
	done       int
	generation int
}

func newAhead(l *letter, tables *rules.Tables) ahead {
	decided := l.policy.fate.Fate != policy.None || l.givenUp != ""
	if l.batch == nil || len(l.to) < 2 || decided || l.header.received > maxReceived || !tables.Asks() {
		return ahead{}
	}
	return ahead{l: l, tables: tables, generation: l.batch.Generation()}
}

// from is called before the recipient at i is resolved: those behind it are looked up.
func (a *ahead) from(i int) {
	if a.l == nil {
		return
	}
	g := a.l.batch.Generation()
	if g > a.generation+1 {
		a.done = i // answers were forgotten
	}
	a.generation = g
	for a.done = max(a.done, i+1); a.done < min(i+table.Window, len(a.l.to)); a.done++ {
		if m, err := address.Parse(a.l.to[a.done].Address); err == nil {
			a.tables.Ahead(rules.Query{Recipient: m, Batch: a.l.batch, Report: a.l.report})
		}
	}
}

// waited reports whether the message has asked servers or programs.
func (l *letter) waited() bool { return l.batch != nil && l.batch.Asked() }

// asking is how the sources of MASQUERADE are asked.
type asking struct {
	ctx   context.Context
	batch *table.Batch // nil: each lookup is made by itself
	ahead bool
}

func (a asking) ask(t table.Table, key string) (table.Value, bool, error) {
	switch {
	case a.batch == nil:
		return t.Lookup(a.ctx, key)
	case a.ahead:
		return a.batch.Prefetch(t, key)
	}
	return a.batch.Lookup(t, key)
}

// ahead has the addresses of a field looked up, those behind the one at i.
func (q *masquerade) ahead(a asking, list []address.Listed, i int) {
	if a.batch == nil || !q.asks() {
		return
	}
	first, end := i+table.Window-1, min(i+table.Window, len(list))
	if i == 0 {
		first = 1
	}
	for ; first < end; first++ {
		if m := list[first].Mailbox; list[first].Err == nil && !m.IsNull() {
			a.batch.Go(func() {
				// What goes wrong, goes wrong again when its turn comes.
				_, _, _ = q.of(asking{ctx: a.batch.Background(), batch: a.batch, ahead: true}, m)
			})
		}
	}
}

// asks reports whether any source is a server or a program.
func (q *masquerade) asks() bool {
	for _, t := range q.tables {
		if table.Asks(t) {
			return true
		}
	}
	return false
}
