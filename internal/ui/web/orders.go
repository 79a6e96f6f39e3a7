package web

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// newOrder returns an operation as pages show it; render makes its texts safe to display.
func newOrder(o *act.Operation) Order {
	return Order{Operation: *o, Undo: o.UndoDoes()}
}

// Orders implements Source.
func (w *Postoffice) Orders(ctx context.Context, most int) ([]Order, error) {
	var list []Order
	enough := errors.New("enough")
	err := act.Operations(w.po, true, func(o *act.Operation) error {
		if len(list) == most {
			return enough
		}
		list = append(list, newOrder(o))
		return ctx.Err()
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return list, err
}

// listedMessages is how many messages of an order a page lists.
const listedMessages = 200

// Order implements Source.
func (w *Postoffice) Order(_ context.Context, id postoffice.OperationID) (*Order, error) {
	var ids []string
	o, err := act.ReadOperation(w.po, id, func(id string) error {
		if len(ids) < listedMessages {
			ids = append(ids, id)
		}
		return nil
	})
	if errors.Is(err, postoffice.ErrGone) {
		return nil, fmt.Errorf("order %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	order := newOrder(o)
	order.IDs = ids
	return &order, nil
}

func (w *Postoffice) request(who string, c Command) (r act.Request, err error) {
	if r.Verb = act.VerbOf(c.Verb); r.Verb == nil {
		return r, fmt.Errorf("unknown order %q", c.Verb)
	}
	if len(c.IDs) > 0 {
		if r.Select, err = selector.Column("id", c.IDs...); err != nil {
			return r, err
		}
	}
	if c.Where != "" {
		where, err := selector.Parse(c.Where)
		if err != nil {
			return r, err
		}
		r.Select = r.Select.And(where)
	}
	if r.Select.Empty() {
		return r, errors.New("no message was selected")
	}
	r.Named = c.Where == ""
	if r.Until, err = act.ParseUntil(c.Until, time.Now()); err != nil {
		return r, err
	}
	if r.Keep, err = act.Keep(w.settings); err != nil {
		return r, err
	}
	r.Who, r.Reason, r.Silent, r.Report = act.Who(who), c.Reason, c.Silent, c.Report
	return r, nil
}

// tryShown is how many messages a trial lists.
const tryShown = 10

// Try implements Orderer, as the methods after it do.
func (w *Postoffice) Try(ctx context.Context, c Command) (string, error) {
	r, err := w.request("", c)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	now, shown := time.Now(), 0
	sum, err := act.Preview(ctx, w.po, r, func(m *view.Message, list []view.Recipient) error {
		if shown++; shown <= tryShown {
			addresses := make([]string, len(list))
			for i := range list {
				addresses[i] = list[i].Address
			}
			fmt.Fprintf(&b, "%s  %s  %s  %s\n", m.ID, human.Span(now.Sub(m.Since)), m.From(), view.Named(addresses))
		}
		return nil
	})
	if n := sum.Messages - tryShown; n > 0 {
		fmt.Fprintf(&b, "and %s\n", human.Count(n, "more message"))
	}
	fmt.Fprintf(&b, "%s would change %s of %s; nothing was changed\n", c.Verb, human.Count(sum.Recipients, "recipient"), human.Count(sum.Messages, "message"))
	return b.String(), err
}

// turn waits until no other order is being executed. An order whose browser has gone by
// then is not begun: its user may have given it again.
func (w *Postoffice) turn(ctx context.Context) (done func(), err error) {
	select {
	case <-w.giving:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		w.giving <- struct{}{}
		return nil, err
	}
	return func() { w.giving <- struct{}{} }, nil
}

// Close waits for the order that is being executed, and lets none begin after it.
func (w *Postoffice) Close() { <-w.giving }

// Give executes a command; once begun it goes on for OrderTime at most, whatever ctx does.
func (w *Postoffice) Give(ctx context.Context, who string, c Command) (*Given, error) {
	r, err := w.request(who, c)
	if err != nil {
		return &Given{Error: human.Clean(err.Error())}, nil
	}
	done, err := w.turn(ctx)
	if err != nil {
		return &Given{Error: err.Error()}, nil
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), OrderTime)
	defer cancel()
	g, more := &Given{}, 0
	r.Outcome = func(o act.Outcome) {
		switch {
		case o.Text == "":
		case len(g.Lines) == listedMessages:
			more++
		default:
			g.Lines = append(g.Lines, o.ID+"  "+human.Clean(o.Text))
		}
	}
	sum, err := act.Do(ctx, w.po, r)
	g.Order = string(sum.Operation)
	if more > 0 {
		g.Lines = append(g.Lines, "and "+human.Count(more, "more message"))
	}
	if err = errors.Join(err, sum.Err()); err == nil && sum.Messages == 0 {
		err = errors.New("nothing matches that can be " + r.Verb.Done)
	}
	if err != nil {
		g.Error = human.Clean(err.Error())
	}
	return g, nil
}

// Undo undoes an order.
func (w *Postoffice) Undo(ctx context.Context, who string, id postoffice.OperationID) (string, error) {
	keep, done, err := w.ordering(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), OrderTime)
	defer cancel()
	var b strings.Builder
	u := &act.Undoer{PostOffice: w.po, Who: act.Who(who), Keep: keep, Undone: func(id postoffice.SpoolID, text string) {
		b.WriteString(id.String() + "  " + human.Clean(text) + "\n")
	}}
	sum, err := u.Operation(ctx, id)
	if sum.Messages > 0 {
		fmt.Fprintf(&b, "%s undone for %s\n", id, human.Count(sum.Messages, "message"))
	}
	if sum.Suspensions > 0 {
		fmt.Fprintf(&b, "%s undone\n", id)
	}
	return b.String(), err
}
