package web

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// browse logs in to the pages of a postoffice.
func browse(t *testing.T, o *office.Office, write bool) *visitor {
	t.Helper()
	settings, err := config.Load("")
	assert.Must(t, err)
	c := Config{Source: Open(o.PostOffice, o.Dir, settings), Hostname: "mx.example"}
	if write {
		c.Orders = c.Source.(Orderer)
	}
	return visitorTo(t, c).enter()
}

// page returns a page and text returns the answer to a form.
func (v *visitor) page(path string) string { _, text := v.get(path); return text }

func (v *visitor) text(path string, form url.Values) string {
	_, text := v.post(path, form)
	return text
}

// order fills in a page's form: what it asks, then yes.
func (v *visitor) order(form url.Values) (asked, done string) {
	v.t.Helper()
	form.Set("csrf", v.csrf())
	asked = v.text("/act", form)
	form.Set("sure", "yes")
	return asked, v.text("/act", form)
}

// field returns the value of a form's field.
func field(t *testing.T, page, name string) string {
	t.Helper()
	m := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no %s in\n%s", name, page)
	}
	return html.UnescapeString(m[1])
}

// wantStates compares the states of recipients.
func wantStates(t *testing.T, o *office.Office, what string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	_, err := view.New(o.PostOffice, time.Now()).Each(t.Context(), selector.Selector{}, func(m *view.Message) error {
		for i := range m.Recipients {
			got[m.Recipients[i].Address] = m.Recipients[i].State
		}
		return nil
	})
	assert.Must(t, err)
	for address, state := range want {
		assert.Equal(t, got[address], state, "%s: %s", what, address)
	}
}

func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		assert.Contains(t, text, p)
	}
}

// M41 A20: what a page orders is what the command would do, under the same name in the
// history and the orders, and the page's undo takes it back.
func TestPageGivesOrdersAndTakesThemBack(t *testing.T) {
	for verb, want := range map[string]string{"hold": view.Held, "freeze": view.Frozen, "remove": view.Removed, "expire": view.Failed} {
		t.Run(verb, func(t *testing.T) {
			o := office.New(t)
			o.Run(t, "scheduler")
			id, name, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("b.example", "b1@x"))
			b := browse(t, o, true)
			wantIn(t, b.page("/message/"+id), "a1@x", "b1@x", `value="`+verb+`"`, "Subject", "x@client.example")
			asked, done := b.order(url.Values{"verb": {verb}, "where": {"id " + id + " and to a1@x"}, "reason": {"asked by Joe"}})
			wantIn(t, asked, "would change 1 recipient of 1 message; nothing was changed", "It can be undone")
			wantIn(t, done, verb, "a1@x", "asked by Joe", "web/", "Undo")
			wantStates(t, o, "ordered", map[string]string{"a1@x": want, "b1@x": view.Waiting})
			wantIn(t, string(o.Read(t, "transport/"+name)), "web/")
			wantIn(t, b.page("/orders"), verb, "can be undone")
			undone := b.text("/undo", url.Values{"csrf": {field(t, done, "csrf")}, "order": {field(t, done, "order")}})
			wantIn(t, undone, "undone for 1 message", "by web/")
			wantStates(t, o, "undone", map[string]string{"a1@x": view.Waiting, "b1@x": view.Waiting})
			assert.Contains(t, b.text("/undo", url.Values{"csrf": {field(t, done, "csrf")}, "order": {field(t, done, "order")}}), "it was undone", "a second undo")
		})
	}
}

func TestPageTellsWhatWasNotDone(t *testing.T) {
	o := office.New(t)
	id, _, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	b := browse(t, o, true)
	_, done := b.order(url.Values{"verb": {"release"}, "id": {id}})
	wantIn(t, done, "none of its open recipients can be released")
	_, done = b.order(url.Values{"verb": {"hold"}, "id": {id}, "until": {"yesterday"}})
	wantIn(t, done, "write 2h")
	wantStates(t, o, "refused", map[string]string{"a1@x": view.Waiting})
	b = browse(t, o, false)
	page := b.page("/message/" + id)
	if strings.Contains(page, `name="verb"`) {
		t.Error("a page for reading offers orders")
	}
	wantIn(t, b.text("/act", url.Values{"csrf": {field(t, page, "csrf")}, "verb": {"remove"}, "id": {id}, "sure": {"yes"}}), "for reading")
	wantStates(t, o, "reading", map[string]string{"a1@x": view.Waiting})
}

// A18: pages say of the queue what its files say, and nothing of what they hold is
// anything but text.
func TestPagesShowHostileMailAsText(t *testing.T) {
	o := office.New(t)
	o.Run(t, "scheduler")
	const script = `<script>alert(1)</script>`
	a := o.Submit(t, "from <\"<script>x</script>\"@client.example>\nto <user@a.example.com>\nenv-end\nSubject: =?utf-8?q?=3Cscript=3Ealert(2)=3C/script=3E?= "+script+"\n\nbody secret\n")
	id, name, offsets := o.EnqueueFrom(t, `"<script>"@client.example`, office.To("a.example", `"<img/src=x>"@x`))
	o.Event(t, name, workspec.Event{Time: time.Now(), Event: workspec.EventDeferred, Recipient: offsets[0], Text: "451 " + script + " \u202etxt",
		Attrs: []workspec.Attr{{Key: "attempt", Value: "1"}, {Key: "status", Value: "4.0.0"}}})
	b := browse(t, o, true)
	for _, path := range []string{"/", "/queue", "/message/" + id, "/message/" + a.ID.String(), "/queue?where=reply+script", "/threads", "/orders", "/message/S1A1"} {
		page := b.page(path)
		if strings.Contains(page, "<script") || strings.Contains(page, "<img") || strings.Contains(page, "\u202e") {
			t.Errorf("%s:\n%s", path, page)
		}
		if strings.Contains(page, "body secret") {
			t.Errorf("%s shows a body", path)
		}
	}
	wantIn(t, b.page("/message/"+id), "451 &lt;script&gt;alert(1)&lt;/script&gt;", "1 attempt", "No scheduler"[:0])
	wantIn(t, b.page("/message/"+a.ID.String()), "&lt;script&gt;alert(2)&lt;/script&gt;", "to route")
	wantIn(t, b.page("/"), "<strong>2</strong> messages wait", "smtp/a.example", "under 10 minutes: 2")
	wantIn(t, b.page("/queue?to=nobody@*"), "0 messages", "Nothing waits that matches")
}

// Pages and orders of several people at once.
func TestPagesServeManyAtOnce(t *testing.T) {
	o := office.New(t)
	o.Run(t, "scheduler")
	ids := make([]string, 8)
	for i := range ids {
		ids[i], _, _ = o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	}
	b := browse(t, o, true)
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() { b.order(url.Values{"verb": {"hold"}, "id": {id}}) })
		all.Go(func() { b.page("/"); b.page("/message/" + id) })
	}
	all.Wait()
	wantIn(t, b.page("/queue?state=held"), "8 messages with 8 recipients match")
}

func TestMissingThingsAreNotFound(t *testing.T) {
	o := office.New(t)
	b := browse(t, o, false)
	id := postoffice.SpoolID{Ino: 1, MTime: time.Now().UnixNano()}.String()
	for _, path := range []string{"/message/" + id, "/message/x", "/order/20261121-031502-hold-4711", "/order/x", "/thread?channel=smtp&host=x", "/thread", "/no/such"} {
		r, err := b.Get(b.server.URL + path)
		assert.Must(t, err)
		r.Body.Close()
		assert.Equal(t, r.StatusCode, http.StatusNotFound, path)
	}
	if n, err := Open(o.PostOffice, o.Dir, nil).Waiting(t.Context()); err == nil {
		t.Errorf("without a scheduler: got %d", n)
	}
}

// The end of zmweb waits for the order that is being executed, and none begins after it.
func TestNoOrderBeginsAfterTheEnd(t *testing.T) {
	o := office.New(t)
	id, _, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	settings, err := config.Load("")
	assert.Must(t, err)
	w := Open(o.PostOffice, o.Dir, settings)
	hold := Command{Verb: "hold", IDs: []string{id}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// An order whose browser has gone before its turn is not begun.
	if g, err := w.Give(ctx, "web", hold); err != nil || g.Order != "" || g.Error == "" {
		t.Errorf("given up: got %+v, %v", g, err)
	}
	wantStates(t, o, "given up", map[string]string{"a1@x": view.Waiting})
	if g, err := w.Give(t.Context(), "web", hold); err != nil || g.Order == "" || g.Error != "" {
		t.Errorf("got %+v, %v", g, err)
	}
	wantStates(t, o, "held", map[string]string{"a1@x": view.Held})
	w.Close()
	late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if g, err := w.Give(late, "web", Command{Verb: "release", IDs: []string{id}}); err != nil || g.Order != "" {
		t.Errorf("after the end: got %+v, %v", g, err)
	}
	wantStates(t, o, "after the end", map[string]string{"a1@x": view.Held})
}

// Alarms that cannot be read leave the rest of the overview.
func TestOverviewIsShownWithoutAlarms(t *testing.T) {
	o := office.New(t)
	o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	path := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(path, []byte("ALARMS=\"nonsense\"\n"), 0o600))
	settings, err := config.Load(path)
	assert.Must(t, err)
	w := Open(o.PostOffice, o.Dir, settings)
	if _, err := view.NewSurvey(view.New(o.PostOffice, time.Now()), settings).Alarms(); err == nil {
		t.Fatal("its alarms can be read")
	}
	v, err := w.Survey(t.Context())
	if err != nil || v.Messages != 1 || v.Problem == "" || v.Status == nil {
		t.Errorf("got %+v, %v", v, err)
	}
}
