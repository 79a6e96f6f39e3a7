package main

import (
	"context"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/web"
	"zmailer/internal/workspec"
	"zmailer/test/office"
)

// browser asks the pages of a postoffice.
type browser struct {
	t    *testing.T
	base string
	http.Client
}

func browse(o *office.Office, t *testing.T, write bool) *browser {
	t.Helper()
	settings, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	samples, err := web.NewSamples(o.FS())
	if err != nil {
		t.Fatal(err)
	}
	source := web.Open(o.PostOffice, o.Dir, settings)
	c := web.Config{Source: source, Samples: samples, Token: "a-token-for-this-test",
		Hosts: []string{"127.0.0.1"}, Hostname: "mx.example", Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	if write {
		c.Orders = source
	}
	s := httptest.NewServer(web.New(c))
	t.Cleanup(s.Close)
	b := &browser{t: t, base: s.URL}
	if b.Jar, err = cookiejar.New(nil); err != nil {
		t.Fatal(err)
	}
	b.post("/login", url.Values{"token": {"a-token-for-this-test"}})
	return b
}

func (b *browser) read(r *http.Response, err error) string {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

func (b *browser) get(path string) string {
	b.t.Helper()
	r, err := b.Get(b.base + path)
	return b.read(r, err)
}

func (b *browser) post(path string, form url.Values) string {
	b.t.Helper()
	r, err := b.PostForm(b.base+path, form)
	return b.read(r, err)
}

// order fills in a page's form: what it asks, then yes.
func (b *browser) order(form url.Values) (asked, done string) {
	b.t.Helper()
	form.Set("csrf", b.field(b.get("/orders"), "csrf"))
	asked = b.post("/act", form)
	form.Set("sure", "yes")
	return asked, b.post("/act", form)
}

func (b *browser) field(page, name string) string {
	b.t.Helper()
	m := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		b.t.Fatalf("no %s in\n%s", name, page)
	}
	return html.UnescapeString(m[1])
}

// M41 A20: what a page orders is what the command would do, under the same name in the
// history and the orders, and the page's undo takes it back.
func TestPageGivesOrdersAndTakesThemBack(t *testing.T) {
	for verb, want := range map[string]string{"hold": view.Held, "freeze": view.Frozen, "remove": view.Removed, "expire": view.Failed} {
		t.Run(verb, func(t *testing.T) {
			o := office.New(t)
			o.Run(t, "scheduler")
			id, name, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"), office.To("b.example", "b1@x"))
			b := browse(o, t, true)
			wantIn(t, b.get("/message/"+id), "a1@x", "b1@x", `value="`+verb+`"`, "Subject", "x@client.example")
			asked, done := b.order(url.Values{"verb": {verb}, "where": {"id " + id + " and to a1@x"}, "reason": {"asked by Joe"}})
			wantIn(t, asked, "would change 1 recipient of 1 message; nothing was changed", "It can be undone")
			wantIn(t, done, verb, "a1@x", "asked by Joe", "web/", "Undo")
			wantStates(t, "ordered", map[string]string{"a1@x": want, "b1@x": view.Waiting})
			wantIn(t, string(o.Read(t, "transport/"+name)), "web/")
			wantIn(t, b.get("/orders"), verb, "can be undone")
			undone := b.post("/undo", url.Values{"csrf": {b.field(done, "csrf")}, "order": {b.field(done, "order")}})
			wantIn(t, undone, "undone for 1 message", "by web/")
			wantStates(t, "undone", map[string]string{"a1@x": view.Waiting, "b1@x": view.Waiting})
			if again := b.post("/undo", url.Values{"csrf": {b.field(done, "csrf")}, "order": {b.field(done, "order")}}); !strings.Contains(again, "it was undone") {
				t.Errorf("a second undo: got\n%s", again)
			}
		})
	}
}

func TestPageTellsWhatWasNotDone(t *testing.T) {
	o := office.New(t)
	id, _, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	b := browse(o, t, true)
	_, done := b.order(url.Values{"verb": {"release"}, "id": {id}})
	wantIn(t, done, "none of its open recipients can be released")
	_, done = b.order(url.Values{"verb": {"hold"}, "id": {id}, "until": {"yesterday"}})
	wantIn(t, done, "write 2h")
	wantStates(t, "refused", map[string]string{"a1@x": view.Waiting})
	b = browse(o, t, false)
	page := b.get("/message/" + id)
	if strings.Contains(page, `name="verb"`) {
		t.Error("a page for reading offers orders")
	}
	wantIn(t, b.post("/act", url.Values{"csrf": {b.field(page, "csrf")}, "verb": {"remove"}, "id": {id}, "sure": {"yes"}}), "for reading")
	wantStates(t, "reading", map[string]string{"a1@x": view.Waiting})
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
	b := browse(o, t, true)
	for _, path := range []string{"/", "/queue", "/message/" + id, "/message/" + a.ID.String(), "/queue?where=reply+script", "/threads", "/orders", "/message/S1A1"} {
		page := b.get(path)
		if strings.Contains(page, "<script") || strings.Contains(page, "<img") || strings.Contains(page, "\u202e") {
			t.Errorf("%s:\n%s", path, page)
		}
		if strings.Contains(page, "body secret") {
			t.Errorf("%s shows a body", path)
		}
	}
	wantIn(t, b.get("/message/"+id), "451 &lt;script&gt;alert(1)&lt;/script&gt;", "1 attempt", "No scheduler"[:0])
	wantIn(t, b.get("/message/"+a.ID.String()), "&lt;script&gt;alert(2)&lt;/script&gt;", "to route")
	wantIn(t, b.get("/"), "<strong>2</strong> messages wait", "smtp/a.example", "under 10 minutes: 2")
	wantIn(t, b.get("/queue?to=nobody@*"), "0 messages", "Nothing waits that matches")
}

// Pages and orders of several people at once.
func TestPagesServeManyAtOnce(t *testing.T) {
	o := office.New(t)
	o.Run(t, "scheduler")
	ids := make([]string, 8)
	for i := range ids {
		ids[i], _, _ = o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	}
	b := browse(o, t, true)
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() { b.order(url.Values{"verb": {"hold"}, "id": {id}}) })
		all.Go(func() { b.get("/"); b.get("/message/" + id) })
	}
	all.Wait()
	wantIn(t, b.get("/queue?state=held"), "8 messages with 8 recipients match")
}

func TestMissingThingsAreNotFound(t *testing.T) {
	o := office.New(t)
	b := browse(o, t, false)
	id := postoffice.SpoolID{Ino: 1, MTime: time.Now().UnixNano()}.String()
	for _, path := range []string{"/message/" + id, "/message/x", "/order/20261121-031502-hold-4711", "/order/x", "/thread?channel=smtp&host=x", "/thread", "/no/such"} {
		r, err := b.Get(b.base + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusNotFound {
			t.Errorf("%s: got %d", path, r.StatusCode)
		}
	}
	if n, err := web.Open(o.PostOffice, o.Dir, nil).Waiting(t.Context()); err == nil {
		t.Errorf("without a scheduler: got %d", n)
	}
}

// What zmctl web keeps in the postoffice is known to zmctl check.
func TestCheckKnowsWhatTheWebPageKeeps(t *testing.T) {
	o := office.New(t)
	if err := os.WriteFile(filepath.Join(o.Dir, web.TokenFile), []byte("a-token-for-this-test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	samples, err := web.NewSamples(o.FS())
	if err != nil {
		t.Fatal(err)
	}
	samples.Waiting(time.Now(), 3)
	if err := samples.Save(); err != nil {
		t.Fatal(err)
	}
	// It warns that no daemon runs.
	out, _, _ := invoke(t, "check")
	wantIn(t, out, web.TokenFile+": of zmctl web", web.SampleFile+": of zmctl web")
}

// The end of zmweb waits for the order that is being executed, and none begins after it.
func TestNoOrderBeginsAfterTheEnd(t *testing.T) {
	o := office.New(t)
	id, _, _ := o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	settings, err := config.Load("")
	if err != nil {
		t.Fatal(err)
	}
	w := web.Open(o.PostOffice, o.Dir, settings)
	hold := web.Command{Verb: "hold", IDs: []string{id}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// An order whose browser has gone before its turn is not begun.
	if g, err := w.Give(ctx, "web", hold); err != nil || g.Order != "" || g.Error == "" {
		t.Errorf("given up: got %+v, %v", g, err)
	}
	wantStates(t, "given up", map[string]string{"a1@x": view.Waiting})
	if g, err := w.Give(t.Context(), "web", hold); err != nil || g.Order == "" || g.Error != "" {
		t.Errorf("got %+v, %v", g, err)
	}
	wantStates(t, "held", map[string]string{"a1@x": view.Held})
	w.Close()
	late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if g, err := w.Give(late, "web", web.Command{Verb: "release", IDs: []string{id}}); err != nil || g.Order != "" {
		t.Errorf("after the end: got %+v, %v", g, err)
	}
	wantStates(t, "after the end", map[string]string{"a1@x": view.Held})
}

// Alarms that cannot be read leave the rest of the overview.
func TestOverviewIsShownWithoutAlarms(t *testing.T) {
	o := office.New(t)
	o.EnqueueFrom(t, "x@client.example", office.To("a.example", "a1@x"))
	path := filepath.Join(t.TempDir(), "zmailer.conf")
	if err := os.WriteFile(path, []byte("ALARMS=\"nonsense\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	settings, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	w := web.Open(o.PostOffice, o.Dir, settings)
	if _, err := view.New(o.PostOffice, time.Now()).Alarms(settings); err == nil {
		t.Fatal("its alarms can be read")
	}
	v, err := w.Survey(t.Context())
	if err != nil || v.Messages != 1 || v.Problem == "" || v.Status == nil {
		t.Errorf("got %+v, %v", v, err)
	}
}
