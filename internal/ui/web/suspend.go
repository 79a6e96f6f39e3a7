package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/human"
)

// Suspending is what is to be suspended: deliveries that match every field that is set, or the
// acceptance of new mail.
type Suspending struct {
	Host, Channel, Sender, Source string
	Accepting                     bool
	Until, Reason                 string
}

// suspending reads the form.
func suspending(form url.Values) Suspending {
	text := func(name string) string { return strings.TrimSpace(form.Get(name)) }
	note := func(name string) string { return human.Cut(human.Clean(human.OneLine(form.Get(name))), 300) }
	s := Suspending{Accepting: form.Get("accepting") != "", Until: note("until"), Reason: note("reason")}
	if !s.Accepting {
		s.Host, s.Channel, s.Sender, s.Source = text("host"), text("channel"), text("sender"), text("source")
	}
	return s
}

// suspensions lists what is suspended.
func (p *Page) suspensions(v *visit) {
	list, err := p.c.Source.Suspensions(v.r.Context())
	trouble := ""
	if err != nil {
		trouble = clean(err.Error())
	}
	var deliveries, drains []view.Suspension
	for i := range list {
		if list[i].Accepting {
			drains = append(drains, list[i])
		} else {
			deliveries = append(deliveries, list[i])
		}
	}
	p.render(v.w, http.StatusOK, "suspensions", v, map[string]any{"Deliveries": deliveries, "Drains": drains, "Trouble": trouble, "Form": suspending(v.r.URL.Query())})
}

// suspend asks whether somebody is sure, and then does it.
func (p *Page) suspend(v *visit) {
	s := suspending(v.r.PostForm)
	if v.r.PostForm.Get("sure") != "yes" {
		text, err := p.c.Orders.TrySuspend(v.r.Context(), s)
		if err != nil {
			p.fail(v, http.StatusBadRequest, clean(err.Error()))
			return
		}
		p.render(v.w, http.StatusOK, "suspend", v, map[string]any{"Suspending": s, "Text": text})
		return
	}
	verb := "suspend"
	if s.Accepting {
		verb = "drain"
	}
	p.suspended(v, verb, func(ctx context.Context) (*Given, error) { return p.c.Orders.Suspend(ctx, v.who, s) })
}

// resume ends a suspension.
func (p *Page) resume(v *visit) {
	id, ok := postoffice.ParseOperationID(v.r.PostForm.Get("order"))
	if !ok {
		p.fail(v, http.StatusBadRequest, "This is no order.")
		return
	}
	p.suspended(v, "resume", func(ctx context.Context) (*Given, error) { return p.c.Orders.Resume(ctx, v.who, id) })
}

// suspended gives an order about suspensions, and leads to its page.
func (p *Page) suspended(v *visit, verb string, give func(ctx context.Context) (*Given, error)) {
	ctx, cancel := giving(v.r.Context())
	defer cancel()
	g, err := give(ctx)
	p.survey.fresh()
	if err != nil {
		p.c.Log.Warn("ordered", "who", v.who, "verb", verb, "client", client(v.r), "reason", err)
		p.fail(v, http.StatusConflict, clean(unsure(err).Error()))
		return
	}
	p.c.Log.Info("ordered", "who", v.who, "verb", verb, "order", g.Order, "client", client(v.r))
	p.gate.sessions.remember(v.session, g)
	http.Redirect(v.w, v.r, "/order/"+url.PathEscape(g.Order), http.StatusSeeOther)
}

// Suspensions implements Source.
func (w *Postoffice) Suspensions(context.Context) ([]view.Suspension, error) {
	list, err := suspension.Read(w.po)
	if err != nil {
		return nil, err
	}
	for _, d := range list.Damaged {
		err = errors.Join(err, fmt.Errorf("%s; it suspends nothing: correct the line, or remove it by zmctl resume --all", d))
	}
	return view.Suspensions(list.Active(time.Now())), err
}

func newSuspension(s *Suspending) (*suspension.Suspension, error) {
	until, err := act.ParseUntil(s.Until, time.Now())
	if err != nil {
		return nil, fmt.Errorf("until: %w", err)
	}
	return suspension.New(suspension.Suspension{Host: s.Host, Channel: s.Channel, Sender: s.Sender, Source: s.Source, Accepting: s.Accepting,
		Until: until, Reason: s.Reason})
}

// countTime bounds how long the recipients are counted that a suspension would concern.
const countTime = 2 * time.Second

// TrySuspend implements Orderer, as the methods after it do.
func (w *Postoffice) TrySuspend(ctx context.Context, s Suspending) (string, error) {
	x, err := newSuspension(&s)
	if err != nil {
		return "", err
	}
	text := x.Subject()
	if !x.Until.IsZero() {
		text += ", until " + stamp(x.Until)
	}
	if x.Accepting {
		return text + "; what is queued is delivered; nothing was changed\n", nil
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	messages, recipients := 0, 0
	_, err = w.spool().Each(ctx, selector.Selector{}, func(m *view.Message) error {
		n := 0
		for i := range m.Recipients {
			if r := &m.Recipients[i]; r.Open() && r.Channel != "" && x.Thread(r.Channel, r.Host) && x.From(m.Sender) {
				n++
			}
		}
		if n > 0 {
			messages, recipients = messages+1, recipients+n
		}
		return ctx.Err()
	})
	least := ""
	if err != nil {
		least = "at least " // the queue is long, or a part of it cannot be read
	}
	match := "match now"
	if x.Source != "" {
		match += " if they leave from that address"
	}
	return fmt.Sprintf("%s: %s%s of %s in the queue %s; nothing was changed\n", text, least, human.Count(recipients, "recipient"), human.Count(messages, "message"), match), nil
}

func (w *Postoffice) Suspend(ctx context.Context, who string, s Suspending) (*Given, error) {
	x, err := newSuspension(&s)
	if err != nil {
		return nil, err
	}
	keep, done, err := w.ordering(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	x.Who = act.Who(who)
	if x, err = act.Suspend(w.po, *x, keep); err != nil {
		return nil, err
	}
	word := "suspended: "
	if x.Accepting {
		word = "refused: "
	}
	return &Given{Order: string(x.Order), Lines: []string{human.Clean(word + x.Subject())}}, nil
}

func (w *Postoffice) Resume(ctx context.Context, who string, id postoffice.OperationID) (*Given, error) {
	keep, done, err := w.ordering(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ended, order, err := act.Resume(w.po, act.Resumption{Orders: []postoffice.OperationID{id}, Who: act.Who(who), Keep: keep})
	if err != nil {
		return nil, err
	}
	g := &Given{Order: string(order)}
	for _, x := range ended {
		word := "resumed: "
		if x.Accepting {
			word = "accepted: "
		}
		g.Lines = append(g.Lines, human.Clean(word+x.Subject()))
	}
	return g, nil
}

// ordering waits for the turn of an order, and returns for how long orders are kept.
func (w *Postoffice) ordering(ctx context.Context) (keep time.Duration, done func(), err error) {
	if keep, err = act.Keep(w.settings); err != nil {
		return 0, nil, err
	}
	done, err = w.turn(ctx)
	return keep, done, err
}
