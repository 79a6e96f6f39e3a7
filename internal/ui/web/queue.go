package web

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"zmailer/internal/admin/selector"
)

// pageLength is how many messages a page of the queue has.
const pageLength = 100

// filterNames returns the fields of the form, each a word of the selector language.
func filterNames() []string { return []string{"from", "to", "channel", "host", "state", "older"} }

// filter is what somebody chose of the queue.
type filter struct {
	Values map[string]string
	Where  string // an expression beside them
	sel    selector.Selector
}

func (f *filter) read(form url.Values) error {
	f.Values, f.Where = map[string]string{}, strings.TrimSpace(form.Get("where"))
	for _, name := range filterNames() {
		text := strings.TrimSpace(form.Get(name))
		if text == "" {
			continue
		}
		f.Values[name] = text
		one, err := selector.Column(name, text)
		if err != nil {
			return err
		}
		f.sel = f.sel.And(one)
	}
	if f.Where != "" {
		one, err := selector.Parse(f.Where)
		if err != nil {
			return err
		}
		f.sel = f.sel.And(one)
	}
	return nil
}

// link returns the page with this filter from a message on.
func (f *filter) link(from int) string {
	q := url.Values{}
	for name, text := range f.Values {
		q.Set(name, text)
	}
	if f.Where != "" {
		q.Set("where", f.Where)
	}
	if from > 0 {
		q.Set("from-message", strconv.Itoa(from))
	}
	return "/queue?" + q.Encode()
}

func whereThread(channel, host string) string {
	return "channel " + selector.Quote(channel) + " and host " + selector.Quote(host)
}

// queuePage is the list of what waits.
type queuePage struct {
	Filter     filter
	Expression string // what all of it is chosen by; "": everything
	Listing
	First  int    // number of the first message, from 1
	Last   int    // of the last one
	Length int    // of a page
	Before string // links
	After  string
	States []string
	Verbs  []verb
}

// queue lists what waits.
func (p *Page) queue(v *visit) {
	var q queuePage
	q.States = []string{"waiting", "due", "delivering", "suspended", "held", "frozen", "delivered", "failed", "accepted", "deferred", "open"}
	q.Verbs = verbs()
	if err := q.Filter.read(v.r.URL.Query()); err != nil {
		q.Problem = clean(err.Error())
		p.render(v.w, http.StatusBadRequest, "queue", v, &q)
		return
	}
	from, err := strconv.Atoi(v.r.FormValue("from-message"))
	if err != nil || from < 0 {
		from = 0
	}
	q.Expression, q.First = q.Filter.sel.String(), from+1
	found, err := p.c.Source.List(v.r.Context(), q.Expression, from, pageLength)
	if err != nil {
		p.failed(v, "queue", err)
		return
	}
	q.Listing = *found
	q.Last, q.Length = from+len(q.Messages), pageLength
	q.Problem = clean(q.Problem)
	if from > 0 {
		q.Before = q.Filter.link(max(0, from-pageLength))
	}
	if from+pageLength < q.All {
		q.After = q.Filter.link(from + pageLength)
	}
	p.render(v.w, http.StatusOK, "queue", v, &q)
}
