package web

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/trace"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/assert"
	"zmailer/internal/wire/mailq"
)

// nasty is what an unauthenticated client may write wherever it supplies the text.
const nasty = `"><script>alert(1)</script><img src=x onerror=alert(2)>'` + "\u202e&lt;b&gt; javascript:alert(3) {{.}}"

const someID = "S10117782A2CnLkQ0vB8C"

// pretended is a Source without a postoffice.
type pretended struct {
	messages []*view.Message
	text     string // used wherever a client supplies the text
	err      error
}

func (s *pretended) Survey(context.Context) (*Survey, error) {
	c := NewCounter(time.Now())
	for _, m := range s.messages {
		c.Add(m)
	}
	v := c.Survey()
	v.Status = s.status()
	return v, s.err
}

func (s *pretended) List(_ context.Context, _ string, first, most int) (*Listing, error) {
	l := NewLister(first, most)
	for _, m := range s.messages {
		l.Add(m)
	}
	return l.Settle(), s.err
}

func (s *pretended) Waiting(context.Context) (int, error) { return len(s.messages), s.err }

func (s *pretended) Look(_ context.Context, id postoffice.SpoolID) (*Look, error) {
	if len(s.messages) == 0 {
		return nil, ErrNotFound
	}
	return &Look{ID: id.String(), State: "queued", Message: s.messages[0], Why: []string{s.text}, Header: []view.HeaderField{{Name: "Subject", Value: s.text}, {Name: s.text, Value: s.text}},
		Steps: []view.Step{{Time: time.Now(), Event: s.text, Text: s.text}}}, s.err
}

func (s *pretended) status() *Status {
	states := []view.StateCount{{State: s.text, Files: 1}}
	return &Status{Overview: &view.Overview{PostOffice: s.text, Owners: []view.Owner{{Says: s.text}},
		Directories: []view.Directory{{Name: "queue", States: states}, {Name: "postman", Problem: s.text}, {Name: "deferred", States: states, Problem: s.text}}},
		Suspensions: []view.Suspension{{Order: s.text, Subject: s.text, By: s.text, Reason: s.text, Since: time.Now()}},
		Alarms:      []alarm.Alarm{{Kind: alarm.Kind(s.text), Subject: s.text, Since: time.Now().Add(-time.Hour), Text: s.text}}}
}

func (s *pretended) info() mailq.ThreadInfo {
	return mailq.ThreadInfo{Channel: "smtp", Host: s.text, State: s.text, Trouble: s.text, Clause: s.text, Messages: 1, Recipients: 1}
}

func (s *pretended) Threads(context.Context) ([]mailq.ThreadInfo, error) {
	return []mailq.ThreadInfo{s.info()}, s.err
}

func (s *pretended) Thread(context.Context, string, string) (*Thread, error) {
	return &Thread{Info: s.info(), State: s.text, Waiting: []mailq.WaitingInfo{{ID: s.text, Rcpt: s.text, From: s.text, State: s.text, Answer: s.text, Cause: s.text}}}, s.err
}

func (s *pretended) Suspensions(context.Context) ([]view.Suspension, error) {
	var list []view.Suspension
	if len(s.messages) > 0 {
		list = append(s.status().Suspensions, view.Suspension{Accepting: true, Order: s.text, Subject: s.text, By: s.text, Reason: s.text})
	}
	return list, s.err
}

func (s *pretended) Search(_ context.Context, q view.Search) (*view.Found, error) {
	f := &view.Found{Unsearched: true, More: 1}
	for i := range min(len(s.messages), 100) {
		l := &trace.Life{ID: someID, From: s.text, HasFrom: true, State: s.text, Accepted: time.Now(), In: trace.In{MessageID: s.text}}
		if i%3 != 1 {
			l.Recipients = []trace.Recipient{{Address: s.text, Original: s.text, State: s.text, Status: s.text, Relay: s.text, Last: s.text}}
		}
		f.Lives = append(f.Lives, l)
	}
	return f, s.err
}

func (s *pretended) order() Order {
	o := act.Operation{ID: "20261121-031502-hold-4711", Who: s.text, Verb: s.text, Selector: s.text, Reason: s.text, Until: s.text, Flags: s.text}
	return Order{Operation: o, Undo: s.text, IDs: []string{s.text}}
}

func (s *pretended) Orders(context.Context, int) ([]Order, error) {
	return []Order{s.order()}, s.err
}

func (s *pretended) Order(context.Context, postoffice.OperationID) (*Order, error) {
	o := s.order()
	return &o, s.err
}

// noted is an Orderer that does nothing.
type noted struct {
	text string
	got  []Command
	who  string

	suspended []Suspending
	resumed   []postoffice.OperationID
}

func (n *noted) Try(context.Context, Command) (string, error) { return n.text, nil }

func (n *noted) Give(_ context.Context, who string, c Command) (*Given, error) {
	n.who, n.got = who, append(n.got, c)
	return &Given{Order: "20261121-031502-hold-4711", Lines: []string{n.text}, Error: n.text}, nil
}

func (n *noted) TrySuspend(context.Context, Suspending) (string, error) { return n.text, nil }

func (n *noted) Suspend(_ context.Context, who string, s Suspending) (*Given, error) {
	n.who, n.suspended = who, append(n.suspended, s)
	return &Given{Order: "20261121-031502-suspend-4711", Lines: []string{n.text}}, nil
}

func (n *noted) Resume(_ context.Context, who string, id postoffice.OperationID) (*Given, error) {
	n.who, n.resumed = who, append(n.resumed, id)
	return &Given{Order: "20261121-031502-resume-4711", Lines: []string{n.text}}, nil
}

func (n *noted) Undo(context.Context, string, postoffice.OperationID) (string, error) {
	return n.text, nil
}

func hostile() *pretended {
	return &pretended{text: nasty, messages: []*view.Message{{ID: someID, Name: nasty, State: "queued", Since: time.Now().Add(-2 * time.Hour), AgeSeconds: 7200, Size: 1000,
		Sender: nasty, HasSender: true, Why: nasty, Problem: nasty, Files: []string{nasty}, Recipients: []view.Recipient{
			{Address: nasty, Channel: "smtp", Host: nasty, State: "waiting", Unserved: nasty, Status: nasty, Last: nasty}}}}}
}

const testToken = "a-token-that-is-long-enough"

// visitor is a browser.
type visitor struct {
	t      *testing.T
	server *httptest.Server
	http.Client
}

func visitorTo(t *testing.T, c Config) *visitor {
	t.Helper()
	if c.Samples == nil {
		c.Samples, _ = NewSamples(nil)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log, c.Hosts = slog.New(slog.DiscardHandler), []string{"127.0.0.1"}
	if c.Token == "" {
		c.Token = testToken
	}
	v := &visitor{t: t, server: httptest.NewServer(New(c))}
	t.Cleanup(v.server.Close)
	jar, err := cookiejar.New(nil)
	assert.Must(t, err)
	v.Jar = jar
	return v
}

// get asks for a page, and gives its code and text.
func (v *visitor) get(path string) (int, string) {
	v.t.Helper()
	r, err := v.Get(v.server.URL + path)
	return v.read(r, err)
}

func (v *visitor) post(path string, form url.Values) (int, string) {
	v.t.Helper()
	r, err := v.PostForm(v.server.URL+path, form)
	return v.read(r, err)
}

func (v *visitor) read(r *http.Response, err error) (int, string) {
	v.t.Helper()
	assert.Must(v.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	assert.Must(v.t, err)
	return r.StatusCode, string(b)
}

// enter logs in.
func (v *visitor) enter() *visitor {
	v.t.Helper()
	if code, page := v.post("/login", url.Values{"token": {testToken}}); code != http.StatusOK || !strings.Contains(page, "Log out") {
		v.t.Fatalf("login: got %d\n%s", code, page)
	}
	return v
}

// csrf returns the secret of the session's forms.
func (v *visitor) csrf() string {
	v.t.Helper()
	_, page := v.get("/orders")
	m := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindStringSubmatch(page)
	if m == nil {
		v.t.Fatalf("no secret in\n%s", page)
	}
	return m[1]
}

func pagesOf() []string {
	return []string{"/", "/?refresh=10&span=24h", "/queue", "/queue?to=" + url.QueryEscape(nasty), "/message/" + someID, "/threads",
		"/thread?channel=smtp&host=x", "/orders", "/suspensions", "/suspensions?host=" + url.QueryEscape(nasty), "/search?word=" + url.QueryEscape(nasty), "/order/20261121-031502-hold-4711", "/find?id=" + url.QueryEscape(nasty), "/message/" + url.PathEscape(nasty), "/no/such"}
}

// Whatever mail says, a page has no script, no handler of events and no address of
// another scheme in it.
func TestTextOfStrangersStaysText(t *testing.T) {
	n := &noted{text: nasty}
	v := visitorTo(t, Config{Source: hostile(), Orders: n, Hostname: nasty}).enter()
	check := func(path, page string) {
		t.Helper()
		tags := regexp.MustCompile(`<[a-zA-Z/!][^>]*>`).FindAllString(page, -1)
		for _, tag := range tags {
			name := strings.ToLower(strings.Trim(strings.Fields(strings.Trim(tag, "</>"))[0], "/"))
			if name == "script" || name == "img" || name == "b" || regexp.MustCompile(`(?i)\son[a-z]+\s*=`).MatchString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag, "")) {
				t.Errorf("%s: got %s", path, tag)
			}
			if regexp.MustCompile(`(?i)(href|action|src)="\s*javascript`).MatchString(tag) {
				t.Errorf("%s: got %s", path, tag)
			}
		}
		if text := regexp.MustCompile(`<[a-zA-Z/!][^>]*>`).ReplaceAllString(page, ""); strings.Contains(text, "\u202e") {
			t.Errorf("%s: it has a text that turns round what stands beside it", path)
		}
		if strings.Contains(page, "style=") {
			t.Errorf("%s: it has a style that its policy forbids", path)
		}
	}
	for _, path := range pagesOf() {
		_, page := v.get(path)
		check(path, page)
	}
	secret := v.csrf()
	_, page := v.post("/act", url.Values{"csrf": {secret}, "verb": {"hold"}, "id": {someID}})
	check("confirm", page)
	assert.Contains(t, page, "Hold?", "questions")
	_, page = v.post("/act", url.Values{"csrf": {secret}, "verb": {"hold"}, "id": {someID}, "sure": {"yes"}, "reason": {nasty}})
	check("given", page)
	_, page = v.post("/undo", url.Values{"csrf": {secret}, "order": {"20261121-031502-hold-4711"}})
	check("undone", page)
	for _, form := range []url.Values{{"host": {nasty}, "sender": {nasty}, "until": {nasty}, "reason": {nasty}}, {"accepting": {"no"}, "reason": {nasty}}} {
		form.Set("csrf", secret)
		_, page = v.post("/suspend", form)
		check("confirm a suspension", page)
		assert.Contains(t, page, `name="sure"`, "questions")
		form.Set("sure", "yes")
		_, page = v.post("/suspend", form)
		check("suspended", page)
	}
	if len(n.suspended) != 2 || n.suspended[0].Host != nasty || strings.Contains(n.suspended[0].Reason, "\u202e") || !n.suspended[1].Accepting {
		t.Errorf("got %+v", n.suspended)
	}
	if len(n.got) != 1 || n.who != "web" || strings.Contains(n.got[0].Reason, "\u202e") {
		t.Errorf("got %+v by %q", n.got, n.who)
	}
}

func TestEachAnswerForbidsWhatPagesDoNotHave(t *testing.T) {
	v := visitorTo(t, Config{Source: hostile()}).enter()
	for _, path := range append(pagesOf(), "/login", "/style.css", "/icon.svg") {
		r, err := v.Get(v.server.URL + path)
		assert.Must(t, err)
		r.Body.Close()
		for name, want := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin"} {
			assert.Equal(t, r.Header.Get(name), want, "%s: %s", path, name)
		}
	}
}

func TestNobodySeesAnythingWithoutLogin(t *testing.T) {
	v := visitorTo(t, Config{Source: hostile(), Orders: &noted{}})
	v.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, path := range pagesOf()[:12] {
		r, err := v.Get(v.server.URL + path)
		assert.Must(t, err)
		r.Body.Close()
		if to := r.Header.Get("Location"); r.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, "/login") {
			t.Errorf("%s: got %d to %q", path, r.StatusCode, to)
		}
	}
	if code, _ := v.post("/act", url.Values{"verb": {"remove"}, "id": {someID}, "sure": {"yes"}}); code != http.StatusSeeOther {
		t.Errorf("act: got %d", code)
	}
	for _, to := range []string{"//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", "javascript:alert(1)"} {
		assert.Equal(t, inner(to), "/", "page after login")
	}
}

func TestCookieIsForOurOwnPagesAlone(t *testing.T) {
	for _, secure := range []bool{false, true} {
		v := visitorTo(t, Config{Source: hostile(), Secure: secure, Cookie: "2580"})
		v.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		r, err := v.PostForm(v.server.URL+"/login", url.Values{"token": {testToken}, "to": {"/queue"}})
		assert.Must(t, err)
		r.Body.Close()
		if len(r.Cookies()) != 1 || r.Header.Get("Location") != "/queue" {
			t.Fatalf("got %v to %q", r.Cookies(), r.Header.Get("Location"))
		}
		c := r.Cookies()[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != secure || strings.HasPrefix(c.Name, "__Host-") != secure || c.Domain != "" {
			t.Errorf("got %+v", c)
		}
	}
}

// Orders need the form's secret, a request of our own, and a page that may write. Op5: also
// those that suspend and resume.
func TestOrdersOfOthersAreRefused(t *testing.T) {
	for path, form := range map[string]url.Values{
		"/act":     {"verb": {"remove"}, "id": {someID}},
		"/suspend": {"host": {"a.example"}},
		"/resume":  {"order": {"20261121-031502-suspend-4711"}},
	} {
		t.Run(path[1:], func(t *testing.T) { ordersOfOthers(t, path, form) })
	}
}

func ordersOfOthers(t *testing.T, path string, what url.Values) {
	form := func(secret string) url.Values {
		f := maps.Clone(what)
		f.Set("csrf", secret)
		f.Set("sure", "yes")
		return f
	}
	n := &noted{}
	v := visitorTo(t, Config{Source: hostile(), Orders: n}).enter()
	secret := v.csrf()
	for name, c := range map[string]struct {
		secret string
		header map[string]string
		want   int
	}{
		"no secret":         {"", nil, http.StatusForbidden},
		"another's secret":  {NewToken(), nil, http.StatusForbidden},
		"another site":      {secret, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"a site beside it":  {secret, map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
		"another origin":    {secret, map[string]string{"Origin": "http://evil.example"}, http.StatusForbidden},
		"no origin at all":  {secret, map[string]string{"Origin": "null"}, http.StatusForbidden},
		"another host name": {secret, map[string]string{"Host": "evil.example:2580"}, http.StatusMisdirectedRequest},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, v.server.URL+path, strings.NewReader(form(c.secret).Encode()))
		assert.Must(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for k, text := range c.header {
			r.Header.Set(k, text)
		}
		if h := c.header["Host"]; h != "" {
			r.Host = h
		}
		if code, _ := v.read(v.Do(r)); code != c.want {
			t.Errorf("%s: got %d, want %d", name, code, c.want)
		}
	}
	done := func() int { return len(n.got) + len(n.suspended) + len(n.resumed) }
	if done() > 0 {
		t.Fatalf("it was done: %+v", n)
	}
	if code, _ := v.post(path, form(secret)); code != http.StatusOK || done() != 1 {
		t.Errorf("ours: got %d, %+v", code, n)
	}

	v = visitorTo(t, Config{Source: hostile()}).enter()
	code, page := v.post(path, form(v.csrf()))
	if code != http.StatusForbidden || !strings.Contains(page, "reading") {
		t.Errorf("reading alone: got %d\n%s", code, page)
	}
	for _, path := range pagesOf() {
		_, page := v.get(path)
		if strings.Contains(page, `action="/act"`) && strings.Contains(page, "<button name=\"verb\"") || strings.Contains(page, `action="/suspend"`) || strings.Contains(page, `action="/resume"`) {
			t.Errorf("%s: it offers orders", path)
		}
	}
}

func TestCommandsThatMeanNothingAreRefused(t *testing.T) {
	n := &noted{}
	v := visitorTo(t, Config{Source: hostile(), Orders: n}).enter()
	secret := v.csrf()
	for name, form := range map[string]url.Values{
		"no verb":        {"id": {someID}},
		"unknown verb":   {"verb": {"init"}, "id": {someID}},
		"nothing chosen": {"verb": {"hold"}},
		"a flag":         {"verb": {"hold"}, "id": {"--all"}},
		"no expression":  {"verb": {"hold"}, "where": {"host ("}},
	} {
		form.Set("csrf", secret)
		form.Set("sure", "yes")
		if code, _ := v.post("/act", form); code != http.StatusBadRequest {
			t.Errorf("%s: got %d", name, code)
		}
	}
	if len(n.got) > 0 {
		t.Errorf("it was done: %+v", n.got)
	}
}

func TestPasswordsLetInAndGuessesWait(t *testing.T) {
	now := time.Now()
	n := &noted{}
	v := visitorTo(t, Config{Source: hostile(), Orders: n, Now: func() time.Time { return now }, Login: func(_ context.Context, name, password, _ string) (string, error) {
		if name != "anna" || password != "correct horse" {
			return "", ErrRefused
		}
		return name, nil
	}})
	try := func(password string) int {
		code, _ := v.post("/login", url.Values{"user": {"anna"}, "password": {password}})
		return code
	}
	for i := range triesFree {
		assert.Equal(t, try("wrong"), http.StatusUnauthorized, "try %d", i)
	}
	assert.Equal(t, try("correct horse"), http.StatusTooManyRequests, "after %d failures", triesFree)
	now = now.Add(triesPause)
	assert.Equal(t, try("correct horse"), http.StatusOK, "after a pause")
	v.post("/act", url.Values{"csrf": {v.csrf()}, "verb": {"release"}, "id": {someID}, "sure": {"yes"}})
	assert.Equal(t, n.who, "web:anna")
	now = now.Add(sessionIdle + time.Second)
	if _, page := v.get("/queue"); strings.Contains(page, "Log out") {
		t.Errorf("the session has not ended")
	}
}

// Who may read gives no orders, and who may do nothing is not even asked about; a right
// that is taken away is gone with the next request.
func TestRightsAreThoseOfNow(t *testing.T) {
	rights := map[string]Right{"reader": MayRead, "writer": MayWrite}
	asked, locked := "", errors.New("PAM does not answer")
	n := &noted{}
	v := visitorTo(t, Config{Source: hostile(), Orders: n, Machine: true, Right: func(name string) Right { return rights[name] },
		Login: func(_ context.Context, name, password, from string) (string, error) {
			if asked = name; password == "later" {
				return "", locked
			}
			return name, nil
		}})
	enter := func(user, password string) (int, string) {
		return v.post("/login", url.Values{"user": {user}, "password": {password}})
	}
	if code, _ := enter("root", "x"); code != http.StatusUnauthorized || asked != "" {
		t.Errorf("a name without a right: got %d, %q was asked about", code, asked)
	}
	if code, _ := enter("reader", "later"); code != http.StatusServiceUnavailable {
		t.Errorf("while the lookup fails: got %d", code)
	}
	form := url.Values{"verb": {"remove"}, "id": {someID}, "sure": {"yes"}}
	if code, page := enter("reader", "x"); code != http.StatusOK || strings.Contains(page, `action="/act"`) || !strings.Contains(page, "reader, reading") {
		t.Errorf("reader: got %d\n%s", code, page)
	}
	form.Set("csrf", v.csrf())
	if code, page := v.post("/act", form); code != http.StatusForbidden || !strings.Contains(page, "WEBWRITERS") || len(n.got) > 0 {
		t.Errorf("reader's order: got %d\n%s", code, page)
	}
	if code, page := v.post("/undo", url.Values{"csrf": {v.csrf()}, "order": {"20261121-031502-hold-4711"}}); code != http.StatusForbidden {
		t.Errorf("reader's undo: got %d\n%s", code, page)
	}
	rights["reader"] = MayWrite
	if code, _ := v.post("/act", form); code != http.StatusOK || len(n.got) != 1 {
		t.Errorf("with the right: got %d, %+v", code, n.got)
	}
	delete(rights, "reader")
	if _, page := v.get("/queue"); strings.Contains(page, "Log out") {
		t.Error("who has no right any more sees the queue")
	}
}

// What an order about very many messages did fits on a page, with the line that sums up.
func TestLongResultsAreCut(t *testing.T) {
	text := strings.Repeat("S1  released\n\n", mostLines-1) + "S2  released\nS3  released\norder x undone for 201 messages\n"
	list := lines(text)
	if n := len(list); n != mostLines+1 || list[n-2] != "and 2 more lines" || list[n-1] != "order x undone for 201 messages" {
		t.Errorf("got %d lines, %q", n, list[max(0, n-3):])
	}
	if list := lines("a\nb\n"); len(list) != 2 {
		t.Errorf("got %q", list)
	}
}
