package web

import (
	"net/http"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

func (p *Page) overview(v *visit) {
	ctx := v.r.Context()
	found, err := p.survey.get(ctx)
	if err != nil {
		p.failed(v, "overview", err)
		return
	}
	// Without orders the page is as good.
	orders, _ := p.c.Source.Orders(ctx, 5)
	chosen := spanOf(v.r.FormValue("span"))
	p.render(v.w, http.StatusOK, "overview", v, map[string]any{
		"Survey": found, "Bars": newBars(found.Hosts), "Status": found.Status, "Orders": orders,
		"Plots": p.c.Samples.plots(p.c.Now(), chosen), "Spans": spans(), "Span": chosen.Name, "Refresh": v.r.FormValue("refresh"),
	})
}

func (p *Page) message(v *visit) {
	id, err := postoffice.ParseSpoolID(v.r.PathValue("id"))
	if err != nil {
		p.fail(v, http.StatusNotFound, "This is no spool ID: "+clean(v.r.PathValue("id")))
		return
	}
	look, err := p.c.Source.Look(v.r.Context(), id)
	if err != nil {
		p.failed(v, "message", err)
		return
	}
	p.render(v.w, http.StatusOK, "message", v, map[string]any{"Look": look, "Verbs": fitting(look)})
}

// find leads to the message that somebody asks for, or searches for the word.
func (p *Page) find(v *visit) {
	word := strings.TrimSpace(v.r.FormValue("id"))
	text, _, _ := strings.Cut(strings.Trim(word, "<>"), "@") // of a Message-ID of ours
	id, err := postoffice.ParseSpoolID(text)
	if err != nil {
		http.Redirect(v.w, v.r, searchLink(word), http.StatusSeeOther)
		return
	}
	http.Redirect(v.w, v.r, messageLink(id.String()), http.StatusSeeOther)
}

// threads are those of the scheduler.
func (p *Page) threads(v *visit) {
	list, err := p.c.Source.Threads(v.r.Context())
	text := ""
	if err != nil {
		text = clean(err.Error())
	}
	more := 0
	const most = 500
	if len(list) > most {
		list, more = list[:most], len(list)-most
	}
	for i := range list {
		cleanThread(&list[i])
	}
	p.render(v.w, http.StatusOK, "threads", v, map[string]any{"Threads": list, "More": more, "Trouble": text})
}

// cleanThread makes text from outside safe to display. Names stay as they are: links
// are made of them.
func cleanThread(t *mailq.ThreadInfo) { t.Trouble = clean(t.Trouble) }

func (p *Page) thread(v *visit) {
	t, err := p.c.Source.Thread(v.r.Context(), v.r.FormValue("channel"), v.r.FormValue("host"))
	if err != nil {
		p.failed(v, "thread", err)
		return
	}
	cleanThread(&t.Info)
	for i := range t.Waiting {
		w := &t.Waiting[i]
		w.Rcpt, w.From, w.Answer = clean(w.Rcpt), clean(w.From), clean(w.Answer)
	}
	p.render(v.w, http.StatusOK, "thread", v, map[string]any{"Thread": t, "Where": whereThread(t.Info.Channel, t.Info.Host)})
}

func (p *Page) orders(v *visit) {
	const most = 200
	list, err := p.c.Source.Orders(v.r.Context(), most)
	if err != nil {
		p.failed(v, "orders", err)
		return
	}
	p.render(v.w, http.StatusOK, "orders", v, map[string]any{"Orders": list, "Most": len(list) == most})
}

// order is one of them, and what became of it if it was just given.
func (p *Page) order(v *visit) {
	id, ok := postoffice.ParseOperationID(v.r.PathValue("id"))
	if !ok {
		p.fail(v, http.StatusNotFound, "This is no order: "+clean(v.r.PathValue("id")))
		return
	}
	o, err := p.c.Source.Order(v.r.Context(), id)
	if err != nil {
		p.failed(v, "order", err)
		return
	}
	p.render(v.w, http.StatusOK, "order", v, map[string]any{"Order": o, "Given": p.gate.sessions.given(v.session, string(o.ID))})
}
