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
	msg        *message // nil: nothing is looked up ahead
	tables     *rules.Tables
	done       int
	generation int
}

func newAhead(msg *message, tables *rules.Tables) ahead {
	decided := msg.policy.fate.Fate != policy.None || msg.policy.filter != nil || msg.expiredText != ""
	if msg.batch == nil || len(msg.to) < 2 || decided || msg.header.received > maxReceived || !tables.Asks() {
		return ahead{}
	}
	return ahead{msg: msg, tables: tables, generation: msg.batch.Generation()}
}

// from is called before the recipient at i is resolved: those behind it are looked up.
func (a *ahead) from(i int) {
	if a.msg == nil {
		return
	}
	g := a.msg.batch.Generation()
	if g > a.generation+1 {
		a.done = i // answers were forgotten
	}
	a.generation = g
	for a.done = max(a.done, i+1); a.done < min(i+table.Window, len(a.msg.to)); a.done++ {
		if m, err := address.Parse(a.msg.to[a.done].Address); err == nil {
			a.tables.Ahead(rules.Query{Recipient: m, Batch: a.msg.batch, Report: a.msg.report})
		}
	}
}

// waited reports whether the message has asked servers or programs.
func (msg *message) waited() bool { return msg.batch != nil && msg.batch.Asked() }

// maskLookup is how the sources of MASQUERADE are asked.
type maskLookup struct {
	ctx   context.Context
	batch *table.Batch // nil: each lookup is made by itself
	ahead bool
}

func (a maskLookup) ask(t table.Table, key string) (table.Value, bool, error) {
	switch {
	case a.batch == nil:
		return t.Lookup(a.ctx, key)
	case a.ahead:
		return a.batch.Prefetch(t, key)
	}
	return a.batch.Lookup(t, key)
}

// ahead has the addresses of a field looked up, those behind the one at i.
func (q *masquerade) ahead(a maskLookup, list []address.Listed, i int) {
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
				_, _, _ = q.of(maskLookup{ctx: a.batch.Background(), batch: a.batch, ahead: true}, m)
			})
		}
	}
}

func (q *masquerade) asks() bool {
	for _, t := range q.tables {
		if table.Asks(t) {
			return true
		}
	}
	return false
}
