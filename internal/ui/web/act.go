package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"zmailer/internal/admin/selector"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// maxIDs is how many messages can be ticked in one form.
const maxIDs = 1000

// verb is what can be done, as the pages name it.
type verb struct {
	Name  string
	Label string
	Does  string
	Undo  bool
	// Danger: it is shown apart.
	Danger bool
	states []string // of recipients or messages that it is offered for; nil: all open ones
}

// verbs returns all of them. zmctl's have the same names and do the same.
func verbs() []verb {
	return []verb{
		{Name: "retry", Label: "Retry now", Does: "waiting recipients are tried at once", states: []string{"waiting", "deferred"}},
		{Name: "hold", Label: "Hold", Does: "they wait until they are released", Undo: true, states: []string{"waiting", "delivering", "frozen", "unserved"}},
		{Name: "release", Label: "Release", Does: "a hold ends", Undo: true, states: []string{"held"}},
		{Name: "freeze", Label: "Freeze", Does: "they wait for an operator and do not expire", Undo: true, states: []string{"waiting", "suspended", "delivering", "held", "unserved", "accepted", "deferred"}},
		{Name: "thaw", Label: "Thaw", Does: "frozen recipients are tried again, and their time begins anew", Undo: true, states: []string{"frozen"}},
		{Name: "reroute", Label: "Route again", Does: "the router decides again where they go", states: []string{"waiting", "suspended", "held", "frozen", "unserved", "deferred"}},
		{Name: "expire", Label: "Give up", Does: "they fail now, and the sender gets a report, which cannot be taken back once it is sent", Undo: true, Danger: true, states: []string{"waiting", "suspended", "held", "frozen", "unserved"}},
		{Name: "remove", Label: "Remove", Does: "they are taken out of the queue without a report", Undo: true, Danger: true},
	}
}

func verbOf(name string) (verb, bool) {
	all := verbs()
	i := slices.IndexFunc(all, func(v verb) bool { return v.Name == name })
	if i < 0 {
		return verb{}, false
	}
	return all[i], true
}

// fitting returns the verbs that can do something with a message.
func fitting(l *Look) []verb {
	if l.Message == nil {
		return nil
	}
	have := map[string]bool{}
	open := l.Message.State != "queued" && l.Message.State != "gone" && l.Message.State != "removed" && l.Message.State != "finishing"
	if open {
		have[l.Message.State] = true
	}
	for i := range l.Message.Recipients {
		if r := &l.Message.Recipients[i]; r.Open() && l.Message.State == "queued" {
			open = true
			have[r.State] = true
		}
	}
	var list []verb
	for _, v := range verbs() {
		if open && (v.states == nil || slices.ContainsFunc(v.states, func(s string) bool { return have[s] })) {
			list = append(list, v)
		}
	}
	return list
}

// command reads what somebody wants done.
func command(form url.Values) (Command, verb, error) {
	c := Command{Verb: form.Get("verb"), IDs: form["id"], Where: strings.TrimSpace(form.Get("where")),
		Reason: human.Cut(human.Clean(human.OneLine(form.Get("reason"))), 300), Until: human.Cut(human.Clean(human.OneLine(form.Get("until"))), 300),
		Silent: form.Get("silent") != "", Report: form.Get("report") != ""}
	v, ok := verbOf(c.Verb)
	if !ok {
		return c, v, errors.New("there is no such order")
	}
	if len(c.IDs) > maxIDs {
		return c, v, errors.New("these are too many messages for one form; choose them with a filter")
	}
	for _, id := range c.IDs {
		if _, err := postoffice.ParseSpoolID(id); err != nil {
			return c, v, errors.New("this is no spool ID: " + clean(id))
		}
	}
	if c.Where != "" {
		sel, err := selector.Parse(c.Where)
		if err != nil {
			return c, v, err
		}
		c.Where = sel.String()
	}
	if len(c.IDs) == 0 && c.Where == "" {
		return c, v, errors.New("no message was chosen: tick some, or use a filter")
	}
	if c.Until != "" && c.Verb != "hold" {
		c.Until = ""
	}
	c.Silent, c.Report = c.Silent && c.Verb == "expire", c.Report && c.Verb == "remove"
	return c, v, nil
}

// giving returns the context of an order: it goes on when its browser has gone, and may take
// longer than a page.
func giving(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), giveTime)
}

// unsure adds to the error of an order without a result that it may have been executed.
func unsure(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w; it may have been done in part or go on: look at Orders before you repeat it", err)
	}
	return err
}

// act asks whether somebody is sure, and then does it.
func (p *Page) act(v *visit) {
	c, what, err := command(v.r.PostForm)
	if err != nil {
		p.fail(v, http.StatusBadRequest, clean(err.Error()))
		return
	}
	ctx := v.r.Context()
	if v.r.PostForm.Get("sure") != "yes" {
		text, err := p.c.Orders.Try(ctx, c)
		trouble := ""
		if err != nil {
			trouble = clean(err.Error())
		}
		p.render(v.w, http.StatusOK, "confirm", v, map[string]any{"Command": c, "Verb": what, "Text": text, "Trouble": trouble})
		return
	}
	ctx, cancel := giving(ctx)
	defer cancel()
	g, err := p.c.Orders.Give(ctx, v.who, c)
	p.survey.fresh()
	if err != nil {
		p.c.Log.Warn("ordered", "who", v.who, "verb", c.Verb, "selector", c.Where, "messages", len(c.IDs), "client", client(v.r), "reason", err)
		p.failed(v, "act", unsure(err))
		return
	}
	p.c.Log.Info("ordered", "who", v.who, "verb", c.Verb, "order", g.Order, "selector", c.Where, "messages", len(c.IDs), "client", client(v.r))
	if g.Order == "" {
		p.render(v.w, http.StatusOK, "done", v, map[string]any{"Given": g, "Verb": what})
		return
	}
	p.gate.sessions.remember(v.session, g)
	http.Redirect(v.w, v.r, "/order/"+url.PathEscape(g.Order), http.StatusSeeOther)
}

// undo takes an order back.
func (p *Page) undo(v *visit) {
	id, ok := postoffice.ParseOperationID(v.r.PostForm.Get("order"))
	if !ok {
		p.fail(v, http.StatusBadRequest, "This is no order.")
		return
	}
	ctx, cancel := giving(v.r.Context())
	defer cancel()
	text, err := p.c.Orders.Undo(ctx, v.who, id)
	p.survey.fresh()
	g := &Given{Order: string(id), Lines: lines(text)}
	if err != nil {
		g.Error = clean(unsure(err).Error())
		p.c.Log.Warn("ordered", "who", v.who, "verb", "undo", "order", string(id), "client", client(v.r), "reason", err)
	} else {
		p.c.Log.Info("ordered", "who", v.who, "verb", "undo", "order", string(id), "client", client(v.r))
	}
	p.gate.sessions.remember(v.session, g)
	http.Redirect(v.w, v.r, "/order/"+url.PathEscape(string(id)), http.StatusSeeOther)
}

// mostLines is how many lines of a result a page shows.
const mostLines = 200

// lines returns the lines of a text that are not empty; of very many the first, and the last,
// which sums up.
func lines(text string) []string {
	var list []string
	more := 0
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); line == "" {
			continue
		}
		if len(list) == mostLines {
			list[mostLines-1], more = line, more+1
			continue
		}
		list = append(list, line)
	}
	if more > 0 {
		list = slices.Insert(list, mostLines-1, "and "+human.Count(more, "more line"))
	}
	return list
}
