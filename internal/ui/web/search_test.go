package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/test/office"
)

// slow is a Source whose searches last until their context ends or they are let go.
type slow struct {
	*pretended
	begun chan string
	ended chan error
	free  chan struct{}
}

func (s *slow) Search(ctx context.Context, q view.Search) (*view.Found, error) {
	s.begun <- q.Word
	var err error
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-s.free:
	}
	s.ended <- err
	return &view.Found{}, err
}

func slowly() *slow {
	return &slow{pretended: hostile(), begun: make(chan string, 10), ended: make(chan error, 10), free: make(chan struct{})}
}

func receive[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(60 * time.Second):
		t.Fatal("waited in vain for " + what)
	}
	return v
}

// Op7: the next search of a user ends the one before, and that of another user goes on.
func TestOp7UserHasOneSearchAtATime(t *testing.T) {
	s := slowly()
	c := Config{Source: s, Login: func(_ context.Context, name, _, _ string) (string, error) { return name, nil }}
	v := visitorTo(t, c)
	enter := func(name string) {
		t.Helper()
		v.post("/login", url.Values{"user": {name}, "password": {"x"}})
	}
	answers := make(chan int, 3)
	search := func(word string) {
		at, _ := url.Parse(v.server.URL)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.server.URL+"/search?word="+word, nil)
		assert.Must(t, err)
		for _, k := range v.Jar.Cookies(at) {
			r.AddCookie(k)
		}
		go func() {
			a, err := http.DefaultClient.Do(r)
			if err != nil {
				answers <- 0
				return
			}
			a.Body.Close()
			answers <- a.StatusCode
		}()
		assert.Equal(t, receive(t, s.begun, "a search"), word, "search that has begun")
	}
	enter("anna")
	search("first")
	enter("joe")
	search("other")
	enter("anna") // another login of the same user
	search("second")
	if err := receive(t, s.ended, "the end of the first search"); !errors.Is(err, errOther) {
		t.Errorf("the first search ended with %v", err)
	}
	assert.Equal(t, receive(t, answers, "its answer"), http.StatusConflict, "answer to the first search")
	close(s.free)
	for range 2 {
		assert.Equal(t, receive(t, answers, "an answer"), http.StatusOK, "answer")
		assert.NoError(t, receive(t, s.ended, "its end"))
	}
}

// Op7: a search ends when its browser has gone, and gives its place back.
func TestOp7SearchEndsWithItsClient(t *testing.T) {
	s := slowly()
	v := visitorTo(t, Config{Source: s}).enter()
	for range 2 * searchesOnce {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+"/search?word=alice", nil)
		assert.Must(t, err)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if a, err := v.Do(r); err == nil {
				a.Body.Close()
			}
		}()
		receive(t, s.begun, "a search")
		cancel()
		if err := receive(t, s.ended, "its end"); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		<-gone
	}
}

// page of a postoffice whose log is a file.
func browseLog(t *testing.T, o *office.Office, log string) *visitor {
	t.Helper()
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "log"), []byte(log), 0o600))
	conf := filepath.Join(dir, "zmailer.conf")
	assert.Must(t, os.WriteFile(conf, []byte("POSTOFFICE="+o.Dir+"\nLOGFILE="+filepath.Join(dir, "log")+"\n"), 0o600))
	settings := assert.Get(config.Load(conf))(t)
	w := Open(o.PostOffice, o.Dir, settings)
	return visitorTo(t, Config{Source: w, Orders: w, Hostname: "mx.example"}).enter()
}

// Op7: the page finds what zmctl trace finds, newest first, in the log and in the queue, and
// names in the log are text.
func TestOp7PageSearchesTheLog(t *testing.T) {
	o := office.New(t)
	queued, _, _ := o.EnqueueFrom(t, "alice@client.example", office.To("a.example", "late@x.example"))
	const hostileName = `\"><script>alert(1)</script>\u202e@x.example`
	log := ""
	id := func(i int) string { return fmt.Sprintf("S99781%02dA28Cb3lTyDjf", 10+i) }
	for i, rcpt := range []string{"bob@x.example", hostileName, "carol@x.example"} {
		log += fmt.Sprintf("time=2026-11-21T03:21:%02dZ level=INFO msg=routed program=router id=%s from=alice@client.example rcpts=1 message-id=\"<%d@client.example>\"\n", i, id(i), i)
		log += fmt.Sprintf("time=2026-11-21T03:21:%02dZ level=INFO msg=delivered program=scheduler id=%s rcpt=\"%s\" channel=smtp host=x.example status=2.0.0 reply=\"250 <b>Ok</b>\" attempt=1 relay=mx.x.example[192.0.2.7]:25\n", i, id(i), rcpt)
	}
	b := browseLog(t, o, log)
	page := b.page("/search?word=alice@client.example")
	wantIn(t, page, id(0), id(1), id(2), queued, "bob@x.example", "mx.x.example[192.0.2.7]:25", "&lt;script&gt;alert(1)", "250 &lt;b&gt;Ok", "4 messages")
	if strings.Contains(page, "<script") || strings.Contains(page, "<b>") || strings.Contains(page, "\u202e") {
		t.Errorf("names in the log are more than text:\n%s", page)
	}
	if strings.Index(page, queued) > strings.Index(page, id(2)) || strings.Index(page, id(2)) > strings.Index(page, id(0)) {
		t.Error("it is not the newest first")
	}
	page = b.page("/search?word=" + url.QueryEscape("<1@client.example>"))
	if !strings.Contains(page, id(1)) || strings.Contains(page, id(0)) {
		t.Errorf("by Message-ID:\n%s", page)
	}
	page = b.page("/search?word=alice@client.example&since=" + url.QueryEscape("2026-11-21T03:21:01Z") + "&until=" + url.QueryEscape("2026-11-21T03:21:01Z"))
	if !strings.Contains(page, id(1)) || strings.Contains(page, id(0)) || strings.Contains(page, id(2)) {
		t.Errorf("by time:\n%s", page)
	}
	for _, query := range []string{"word=a", "word=alice&since=never", "word=alice&until=never", "word=" + strings.Repeat("x", longestSearch+1)} {
		code, _ := b.get("/search?" + query)
		assert.Equal(t, code, http.StatusBadRequest, "answer to %.40s", query)
	}
	// The field of every page leads to a message or to a search.
	wantIn(t, b.page("/find?id="+queued), "late@x.example", "Why it waits")
	wantIn(t, b.page("/find?id=late@x.example"), queued)
}

// Op7: a log with very much about a few messages does not take the memory of the machine.
func TestOp7SearchKeepsABoundedNumberOfLines(t *testing.T) {
	o := office.New(t)
	const id = "S9978110A28Cb3lTyDjf"
	log := strings.Repeat("time=2026-11-21T03:21:00Z level=INFO msg=deferred program=scheduler id="+id+" rcpt=bob@x.example channel=smtp host=x.example attempt=1 status=4.0.0 reply=later\n", searchLines+10)
	b := browseLog(t, o, log)
	wantIn(t, b.page("/search?word=bob@x.example"), id, view.ErrManyLines.Error())
}

// Op5: a page suspends and resumes deliveries, and has new mail refused, as zmctl does: under
// the same names in orders/, with end, reason and operator, and its undo takes it back.
func TestOp5PageSuspendsAndResumes(t *testing.T) {
	o := office.New(t)
	o.EnqueueFrom(t, "x@shop.example", office.To("a.example", "a1@x"), office.To("a.example", "a2@x"), office.To("b.example", "b1@x"))
	o.EnqueueFrom(t, "y@other.example", office.To("a.example", "a1@x"))
	b := browse(t, o, true)
	suspend := func(form url.Values) (asked, done string) {
		t.Helper()
		form.Set("csrf", b.csrf())
		asked = b.text("/suspend", form)
		form.Set("sure", "yes")
		return asked, b.text("/suspend", form)
	}
	inForce := func() []*suspension.Suspension {
		return assert.Get(suspension.Read(o.PostOffice))(t).Active(time.Now())
	}

	asked, done := suspend(url.Values{"host": {"A.example"}, "sender": {"@shop.example"}, "until": {"2h"}, "reason": {"their maintenance"}})
	wantIn(t, asked, "2 recipients of 1 message", "nothing was changed")
	wantIn(t, done, "Undo", "their maintenance")
	list := inForce()
	if len(list) != 1 || list[0].Subject() != "host a.example, sender @shop.example" || !strings.HasPrefix(list[0].Who, "web/") || list[0].Reason != "their maintenance" || time.Until(list[0].Until) < time.Hour {
		t.Fatalf("in force: %+v", list)
	}
	op := assert.Get(act.ReadOperation(o.PostOffice, list[0].Order, nil))(t)
	assert.Equal(t, op.Verb, "suspend", "operation")
	wantIn(t, b.page("/"), "host a.example, sender @shop.example")
	wantIn(t, b.page("/suspensions"), "their maintenance", string(list[0].Order), `action="/resume"`)

	resumed := b.text("/resume", url.Values{"csrf": {b.csrf()}, "order": {string(list[0].Order)}})
	wantIn(t, resumed, "Undo")
	assert.Equal(t, len(inForce()), 0, "suspensions after resuming")
	b.text("/undo", url.Values{"csrf": {b.csrf()}, "order": {field(t, resumed, "order")}})
	assert.Equal(t, len(inForce()), 1, "suspensions after undoing that")
	b.text("/undo", url.Values{"csrf": {b.csrf()}, "order": {field(t, done, "order")}})
	assert.Equal(t, len(inForce()), 0, "suspensions after undoing the first")

	asked, _ = suspend(url.Values{"accepting": {"no"}, "reason": {"moving"}})
	wantIn(t, asked, "new mail", "nothing was changed")
	list = inForce()
	if len(list) != 1 || !list[0].Accepting || list[0].Reason != "moving" {
		t.Fatalf("in force: %+v", list)
	}
	form := url.Values{"csrf": {b.csrf()}, "accepting": {"no"}, "sure": {"yes"}}
	if code, _ := b.post("/suspend", form); code != http.StatusConflict {
		t.Errorf("a second drain: got %d", code)
	}
	b.text("/resume", url.Values{"csrf": {b.csrf()}, "order": {string(list[0].Order)}})
	assert.Equal(t, len(inForce()), 0, "suspensions at the end")
	if code, _ := b.post("/resume", url.Values{"csrf": {b.csrf()}, "order": {string(list[0].Order)}}); code != http.StatusConflict {
		t.Errorf("what has ended: got %d", code)
	}
	for name, form := range map[string]url.Values{"nothing": {}, "a bad source": {"source": {"mx.example"}}, "a bad end": {"host": {"a"}, "until": {"soon"}}} {
		form.Set("csrf", b.csrf())
		if code, _ := b.post("/suspend", form); code != http.StatusBadRequest {
			t.Errorf("%s: got %d", name, code)
		}
	}
}
